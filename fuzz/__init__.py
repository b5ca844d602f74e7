"""Hostile input by the million: `make fuzz`."""
