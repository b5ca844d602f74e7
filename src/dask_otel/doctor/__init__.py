"""``dask-otel doctor``: what is known of a scheduler and its export, as findings for a person."""
