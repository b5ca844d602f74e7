"""Answers to what clients ask: the metrics of a settled span, and what goes on at present."""
