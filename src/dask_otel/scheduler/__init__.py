"""What runs in the scheduler's process: the plugin, its bridge, and how it is put together.

Only this room knows all the others: Dask's side, the core, OpenTelemetry's side and the pump.
"""
