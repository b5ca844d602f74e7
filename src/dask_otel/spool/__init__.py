"""The spool: spans on the disk that no endpoint has taken yet.

A file of SQLite, for one scheduler at a time. It knows neither Dask nor OpenTelemetry, and is
imported only if ``otel.spool.path`` is set. `dask_otel.spool.store` is its entry.
"""
