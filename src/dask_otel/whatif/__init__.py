"""A recorded run, replayed on Dask's own scheduler in simulated time, with other workers."""
