"""The pump: threads that carry records from the event loop to the exporters.

Knows neither Dask nor OpenTelemetry; `dask_otel.pump` is its entry.
"""
