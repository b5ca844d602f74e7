"""For dask-gateway: put this into ``gateway.extraConfig`` of the Helm chart, or the config file.

Every cluster of the gateway then exports. Its name is the one that the gateway gives it
(DASK_GATEWAY_CLUSTER_NAME). The variables go to workers, too, where they do nothing.
"""

c = get_config()  # noqa: F821 (defined by traitlets, where this is run)

c.KubeClusterConfig.image = "registry.example.com/dask-with-dask-otel:2026.8.0"
c.KubeClusterConfig.environment = {
    "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": '["dask_otel"]',
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://dask-otel-collector.monitoring.svc:4317",
    "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=production",
}
# Longer than otel.close-timeout (5 s): the last spans and metrics are exported at the end.
c.KubeClusterConfig.scheduler_extra_pod_config = {"terminationGracePeriodSeconds": 30}
