"""The SDK's part: exporters and their data.

It is slow to import and may block, so only the bridge's own threads use it, never the scheduler's
event loop.
"""
