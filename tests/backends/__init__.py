"""Tests against the real servers: run `make backends` once to build them."""
