"""Worker side: makes a task's Dask span current while the task's code runs.

It needs only OpenTelemetry's API. It records, exports and sends nothing.
"""
