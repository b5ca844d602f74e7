"""Configuration: the keys, their rules, and what to tell a person who breaks one."""
