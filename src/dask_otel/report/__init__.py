"""Telemetry files to one page, a text or JSON; knows neither Dask nor OpenTelemetry."""
