"""Replays: of graphs that are written by hand, and of histories whose truth is known."""
