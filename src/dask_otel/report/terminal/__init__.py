"""The demo's tables, and those of `dask-otel report --text`: rich renderables."""
