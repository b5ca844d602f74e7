"""The scheduler's process: the plugin, its bridge, and the assembly of both.

Only this room imports all the others: Dask's side, the core, OpenTelemetry's side and the pump.
"""
