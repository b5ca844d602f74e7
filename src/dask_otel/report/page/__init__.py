"""The page: one file of HTML without network; what is measured comes from the rest of the report."""
