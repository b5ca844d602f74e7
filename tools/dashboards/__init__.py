"""The Grafana dashboards of dask-otel, as code: one module per dashboard."""
