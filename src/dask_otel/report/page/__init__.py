"""The page: one file of HTML that needs no network."""
