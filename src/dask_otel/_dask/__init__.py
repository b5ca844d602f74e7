"""Dask's side: the only room that reads Scheduler, Worker, Span and TaskState.

It turns Dask's events into calls of the core. `dask_otel._dask.undocumented` lists the undocumented
parts of Dask that it uses; a contract test checks each entry on a live cluster, with the oldest
and the newest supported release.
"""
