"""The life of a span: from its first task to the record of its end."""
