"""The rules of the bridge in plain Python: no Dask, no OpenTelemetry, no clocks, no threads.

Callers pass the times. Everything here is tested without a cluster.
"""
