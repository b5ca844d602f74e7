"""The spool: spans on the disk that no endpoint has accepted yet.

An SQLite file, for one scheduler at a time. The package knows neither Dask nor OpenTelemetry, and
is imported only if ``otel.spool.path`` is set. `dask_otel.spool.store` is its entry.
"""
