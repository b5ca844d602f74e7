"""OpenTelemetry for Dask."""
