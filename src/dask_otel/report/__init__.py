"""The report of a run: telemetry files to one page, a text or JSON; knows neither Dask nor OpenTelemetry."""
