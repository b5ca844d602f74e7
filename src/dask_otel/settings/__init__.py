"""Configuration: the keys, their rules, and the error messages."""
