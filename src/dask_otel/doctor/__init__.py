"""``dask-otel doctor``: examines a scheduler and its export, and reports findings."""
