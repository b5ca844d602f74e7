"""Prometheus' side: the only room that imports ``prometheus_client`` (the extra ``prometheus``)."""
