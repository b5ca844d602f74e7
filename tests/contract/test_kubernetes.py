"""The files of deploy/kubernetes are valid by the schemas of those who read them.

The Dask operator's own definitions come with its package, those of Kubernetes with
kubernetes-validate; both are in the dependency group `deploy`. The chart `dask/dask` has no schema.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import dask.config
import jsonschema
import pytest
import yaml

from tests.environment import LOADER, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tools"))
import build_kubernetes

#: One process reads the large definition, once.
pytestmark = pytest.mark.xdist_group("kubernetes")

KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
#: Of Kubernetes: the newest one that kubernetes-validate knows for certain here.
VERSION = "1.33"
NEEDS = "needs the dependency group `deploy`"
EVERY = [
    (file.name, document)
    for file in sorted(KUBERNETES.glob("*.yaml"))
    for document in yaml.load_all(file.read_text(encoding="utf-8"), LOADER)
]


def documents(*kinds: str) -> dict[str, dict[str, Any]]:
    """Every document of these kinds, by file, kind and name."""
    found = {
        f"{file}: {one['kind']} {one['metadata']['name']}": one
        for file, one in EVERY
        if one.get("kind") in kinds
    }
    assert {one["kind"] for one in found.values()} == set(kinds)
    return found


BUILT_IN = documents("ConfigMap", "DaemonSet", "NetworkPolicy", "Service", "ServiceAccount")
CLUSTERS = documents("DaskCluster")


def strict(schema: Any) -> Any:
    """The schema, with every field refused that it does not know: a server would drop those."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    keeps = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and "type" in schema and not keeps:
        made["additionalProperties"] = False
    return made


@cache
def dask_cluster() -> jsonschema.Draft202012Validator:
    try:
        listed = files("dask-kubernetes") or []
    except PackageNotFoundError:
        pytest.skip(f"{NEEDS} (dask-kubernetes)")
    (path,) = [one for one in listed if one.match("helm/*/crds/daskcluster.yaml")]
    definition = yaml.load(Path(path.locate()).read_text(encoding="utf-8"), LOADER)
    (version,) = definition["spec"]["versions"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {
        name: {"type": kind}
        for name, kind in (("apiVersion", "string"), ("kind", "string"), ("metadata", "object"))
    }
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_dask_cluster_is_valid(name: str) -> None:
    dask_cluster().validate(CLUSTERS[name])


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_manifest_is_valid(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=NEEDS).validate
    validate(BUILT_IN[name], VERSION, strict=True)


def test_what_kubectl_would_not_apply_is_not_made() -> None:
    made = build_kubernetes._config_map("large", "a.json", "<" * 43_000)
    assert build_kubernetes._dump([made], "here")
    made["data"]["a.json"] += "<" * 1_000
    # 6 bytes for each sign.
    with pytest.raises(SystemExit, match=r"ConfigMap large has 264,\d+ bytes .* at most 262,144"):
        build_kubernetes._dump([made], "here")


def collector() -> dict[str, Any]:
    """Return the pods of the Collector."""
    (daemon_set,) = documents("DaemonSet").values()
    found: dict[str, Any] = daemon_set["spec"]["template"]["spec"]
    return found


def test_senders_find_the_collector_of_their_node() -> None:
    """The Service reaches that one alone, so there is one on each node, whatever taints it has."""
    (daemon_set,) = documents("DaemonSet").values()
    labels = daemon_set["spec"]["template"]["metadata"]["labels"].items()
    (service,) = documents("Service").values()
    policy = documents("NetworkPolicy")["networkpolicy.yaml: NetworkPolicy dask-otel-collector"]
    for selector in (daemon_set["spec"]["selector"], policy["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels
    ports = {port["name"] for port in collector()["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    # Neither key nor effect: all taints.
    assert collector()["tolerations"] == [{"operator": "Exists"}]
    assert not {"nodeSelector", "affinity"} & set(collector())


def _preload(variables: dict[str, str]) -> Any:
    value = ast.literal_eval(variables["DASK_DISTRIBUTED__SCHEDULER__PRELOAD"])
    with dask.config.set(dask.config.collect_env(variables)):
        assert dask.config.get("distributed.scheduler.preload") == value
    return value


def test_the_values_of_the_chart_load_the_bridge() -> None:
    """Also in the commented way, with packages for the images of Dask."""
    plain = (KUBERNETES / "helm-values.yaml").read_text(encoding="utf-8")
    packages = re.sub(r"# (- name: EXTRA_PIP_PACKAGES\n +)# ", r"\1", plain)
    for text in (plain, packages):
        values = yaml.safe_load(text)
        variables = {one["name"]: one["value"] for one in values["scheduler"]["env"]}
        assert _preload(variables) == ["dask_otel"]
    assert variables["EXTRA_PIP_PACKAGES"].startswith("dask-otel[prometheus]==")


def test_the_configuration_of_the_gateway_loads_the_bridge() -> None:
    backend = pytest.importorskip("dask_gateway_server.backends.kubernetes.backend", reason=NEEDS)
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("dask_gateway_config.py", path=str(KUBERNETES)).load_config()
    assert set(config.KubeClusterConfig) <= set(backend.KubeClusterConfig.class_trait_names())
    made = backend.KubeClusterConfig(config=config)
    assert (_preload(made.environment), made.scheduler_extra_pod_config) == (
        ["dask_otel"],
        {"terminationGracePeriodSeconds": 30},
    )
