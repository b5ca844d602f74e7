"""What runs on workers: the Dask span of a task as the current span of the code in it.

It needs OpenTelemetry's API alone. Nothing is recorded, exported or sent from here.
"""
