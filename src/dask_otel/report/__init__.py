"""Turns telemetry files into a page, text or JSON; depends on neither Dask nor OpenTelemetry."""
