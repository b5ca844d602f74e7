"""The rules of the bridge in plain Python: no Dask, no OpenTelemetry, no clocks, no threads.

Times come in with the calls. Everything here can be tested, and is, without a cluster.
"""
