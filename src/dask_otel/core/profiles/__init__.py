"""Profiles by span: stacks as bytes, their sums within limits, and files of pprof."""
