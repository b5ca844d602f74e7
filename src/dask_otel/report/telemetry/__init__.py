"""Reads files, ours and others', into runs of spans and series; tolerates hostile input."""
