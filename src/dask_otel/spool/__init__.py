"""The spool: spans on the disk that no endpoint has taken yet.

A file of SQLite, for one scheduler at a time. It knows neither Dask nor OpenTelemetry, and nothing
of it is imported where ``otel.spool.path`` is not set. `dask_otel.spool.store` is its entry.
"""
