"""Metrics: from Dask's raw keys to bounded, monotone series."""
