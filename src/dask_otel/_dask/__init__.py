"""Dask's side: the only room that looks inside Scheduler, Worker, Span and TaskState.

It turns what Dask does into calls of the core. What it relies on and Dask does not document is
listed in `dask_otel._dask.undocumented`; a contract test checks each entry on a live cluster
against the oldest and the newest supported release.
"""
