"""deploy/kubernetes lets through what telemetry needs, however the cluster was made, and no more.

The labels of pods are those that the operator and the gateway themselves put on. The Helm chart is
in no package: its labels are written down here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from .test_kubernetes import KUBERNETES, NEEDS, collector, documents

# One process imports the libraries of these and of `test_kubernetes.py`.
pytestmark = pytest.mark.xdist_group("kubernetes")

POLICIES = list(documents("NetworkPolicy").values())
Labels = dict[str, str]

COLLECTOR = {"app.kubernetes.io/name": "dask-otel-collector"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
DNS = {"k8s-app": "kube-dns"}


def _operator() -> dict[str, Labels]:
    controller = pytest.importorskip("dask_kubernetes.operator.controller.controller", reason=NEEDS)
    scheduler = controller.build_scheduler_deployment_spec("one", {}, {}, {})
    pod: dict[str, Any] = {"containers": []}
    worker = controller.build_worker_deployment_spec("one-g", "n", "one", "id", pod, {}, {})
    made = {"scheduler": scheduler, "worker": worker}
    return {name: one["spec"]["template"]["metadata"]["labels"] for name, one in made.items()}


def _controller() -> Any:
    gateway = pytest.importorskip(
        "dask_gateway_server.backends.kubernetes.controller", reason=NEEDS
    )
    return gateway.KubeController(gateway_instance="gateway", api_url="http://gateway")


def _gateway() -> dict[str, Labels]:
    return {one: _controller().get_labels("one", f"dask-{one}") for one in ("scheduler", "worker")}


def _chart() -> dict[str, Labels]:
    # templates/dask-scheduler-deployment.yaml and dask-worker-deployment.yaml of `dask/dask`
    both = {"app": "dask", "release": "mine"}
    return {component: {**both, "component": component} for component in ("scheduler", "worker")}


def _fits(selector: dict[str, Any], labels: Labels) -> bool:
    """Kubernetes' rule: every label and every expression."""
    expressions = all(
        {"Exists": one["key"] in labels, "In": labels.get(one["key"]) in one.get("values", ())}[
            one["operator"]
        ]
        for one in selector.get("matchExpressions", ())
    )
    return expressions and selector.get("matchLabels", {}).items() <= labels.items()


def _peer_fits(peer: dict[str, Any], labels: Labels, namespace: str, own: str) -> bool:
    selector, name = peer.get("namespaceSelector"), {"kubernetes.io/metadata.name": namespace}
    here = namespace == own if selector is None else _fits(selector, name)
    return here and _fits(peer.get("podSelector", {}), labels)


def _allowed(
    direction: str,
    own: str,
    of: Labels,
    peer: Labels,
    namespace: str,
    port: int,
    proto: str = "TCP",
) -> bool:
    """Whether a pod may talk to (or hear from) a peer, as Kubernetes decides."""
    rules = [
        policy["spec"]
        for policy in POLICIES
        if _fits(policy["spec"]["podSelector"], of)
        and direction.capitalize() in policy["spec"]["policyTypes"]
        and policy["metadata"].get("namespace", own) == own
    ]
    way = {"egress": "to", "ingress": "from"}[direction]
    return not rules or any(
        any(_peer_fits(one, peer, namespace, own) for one in rule[way])
        and (
            "ports" not in rule
            or any((one["port"], one["protocol"]) == (port, proto) for one in rule["ports"])
        )
        for spec in rules
        for rule in spec.get(direction, ())
    )


#: Whether a Dask pod in ``default`` may connect, and whether the Collector lets a pod in.
may_send = partial(_allowed, "egress", "default")
may_reach_collector = partial(_allowed, "ingress", "monitoring", COLLECTOR)


@pytest.mark.parametrize("labels", [_operator, _gateway, _chart])
def test_telemetry_and_dask_get_through_and_nothing_else(
    labels: Callable[[], dict[str, Labels]],
) -> None:
    pods, other = labels(), {"app": "other"}
    for pod in pods.values():
        assert all(may_send(pod, peer, "default", 8786) for peer in pods.values())
        assert may_send(pod, DNS, "kube-system", 53, "UDP")
        # Each is selected: a pod that no policy selects may do everything.
        assert not may_send(pod, other, "default", 80)
        assert not may_send(pod, COLLECTOR, "default", 4317)
        ports = (4317, 4318, 8888, 13133)
        assert (
            [one for one in ports if may_send(pod, COLLECTOR, "monitoring", one)],
            [one for one in ports if may_reach_collector(pod, "default", one)],
        ) == ([4317, 4318], [4317, 4318])
    assert not may_reach_collector(other, "default", 4317)


def test_prometheus_sees_the_collector_and_the_gateway_its_clusters() -> None:
    assert may_reach_collector(PROMETHEUS, "monitoring", 8888)
    assert not may_reach_collector(PROMETHEUS, "default", 8888)
    # A cluster of the gateway reports to it.
    gateway = {"app.kubernetes.io/name": "dask-gateway", "app.kubernetes.io/component": "gateway"}
    assert may_send(_gateway()["scheduler"], gateway, "default", 8000)


def test_monitors_find_the_collectors_and_the_services_of_schedulers() -> None:
    config = (KUBERNETES / "collector-config.yaml").read_text(encoding="utf-8")
    assert "OTELCOL_METRICS_PORT:-8888" in config
    ports = {one["containerPort"]: one["name"] for one in collector()["containers"][0]["ports"]}
    (monitor,) = documents("PodMonitor").values()
    assert _fits(monitor["spec"]["selector"], COLLECTOR)
    assert [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] == [ports[8888]]

    operator = pytest.importorskip("dask_kubernetes.operator.controller.controller", reason=NEEDS)
    (cluster,) = [
        one for name, one in documents("DaskCluster").items() if name.startswith("daskcluster.yaml")
    ]
    spec = cluster["spec"]["scheduler"]["service"]
    services = [
        operator.build_scheduler_service_spec("example", spec, {}, {}),
        _controller().make_service("one"),
    ]
    monitors = [one["spec"] for one in documents("ServiceMonitor").values()]
    for service in services:
        labels = service["metadata"]["labels"]
        (found,) = [one["endpoints"] for one in monitors if _fits(one["selector"], labels)]
        names = [port["name"] for port in service["spec"]["ports"] if port["port"] == 8787]
        assert [(one["port"], one["path"]) for one in found] == [(*names, "/metrics/otel")]
