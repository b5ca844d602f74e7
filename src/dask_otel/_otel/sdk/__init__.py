"""The SDK's part: exporters and the data that they take.

Slow to import, and it may block: it is used in threads of the bridge's own, never on the
scheduler's event loop.
"""
