"""The Grafana dashboards of dask-otel, as code.

One module per dashboard (`overview`, `span`, `workers`, `exporter`), and what they share: panels
and pages (`parts`), expressions (`queries`), links (`links`), one colour per meaning
(`meanings`), and the limits of the alerts (`limits`).
"""
