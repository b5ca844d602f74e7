"""Profiles by span: stacks as bytes, trees of them with limits, and files of pprof."""
