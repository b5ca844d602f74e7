"""What the recipes of deploy/ say that a run does not show."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import dask
import pytest

from tests.environment import REPOSITORY

from .test_kubernetes import EVERY
from .test_packaging import PROJECT, PYPROJECT

DEPLOY = REPOSITORY / "deploy"


def test_the_variables_for_coiled_load_the_bridge() -> None:
    script = (DEPLOY / "coiled" / "coiled_cluster.py").read_text(encoding="utf-8")
    # The strings of the dictionaries in it.
    variables = {
        key.value: value.value
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
    }
    with dask.config.set(dask.config.collect_env(variables)):
        assert dask.config.get("distributed.scheduler.preload") == ["dask_otel"]


def test_the_readme_knows_every_folder_and_file_that_it_names() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((?!https:)([^)#]+)\)", text))
    applied = set(re.findall(r"(kubernetes/[\w.-]+\.(?:yaml|py))", text))
    assert {name for name in linked | applied if not (DEPLOY / name).exists()} == set()
    # The compose stack of the repository; it needs the sources.
    folders = {path.name for path in DEPLOY.iterdir() if path.is_dir()} - {"docker"}
    assert folders - {name.partition("/")[0] for name in linked} == set()
    # Every manifest is applied somewhere: a second way to run a Collector is named in its file.
    manifests = {f"kubernetes/{path.name}" for path in (DEPLOY / "kubernetes").iterdir()}
    assert manifests - applied <= {"kubernetes/daskcluster-sidecar.yaml", "kubernetes/__pycache__"}


def test_what_is_applied_needs_nothing_that_comes_later() -> None:
    """ConfigMap before DaemonSet, and the network policy last."""
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    order = re.findall(r"kubectl apply -f kubernetes/([\w-]+)\.yaml", text)
    assert order.index("collector-config") < order.index("collector-daemonset")
    assert order[-1] == "networkpolicy"
    assert text.index("create namespace monitoring") < text.index("kubectl apply")
    applied = [one["metadata"] for file, one in EVERY if file.removesuffix(".yaml") in order]
    assert {one.get("namespace", "monitoring") for one in applied} == {"monitoring"}


@pytest.mark.parametrize("file", ["collector-daemonset.yaml", "daskcluster-sidecar.yaml"])
def test_a_collector_on_kubernetes_knows_every_backend(file: str) -> None:
    """The defaults are names of a compose stack: in a namespace of clusters they lead nowhere."""
    config = (DEPLOY / "collector" / "config.yaml").read_text(encoding="utf-8")
    asked = set(re.findall(r"\$\{env:(\w+_OTLP_ENDPOINT):", config))
    text = (DEPLOY / "kubernetes" / file).read_text(encoding="utf-8")
    assert len(asked) == 4
    assert asked - set(re.findall(r"name: (\w+), value: \S+\.monitoring\.svc", text)) == set()


@pytest.mark.parametrize("file", ["image/Dockerfile", "kubernetes/helm-values.yaml"])
def test_images_get_a_release(file: str) -> None:
    text = (DEPLOY / file).read_text(encoding="utf-8")
    pinned = set(re.findall(r"dask-otel(?:\[\w+\])?==(\S+?)[\"'\s]", text))
    # Between two releases it is the last one.
    assert pinned == {PROJECT["version"].partition(".dev")[0]} or ".dev" in PROJECT["version"]


def test_the_demo_image_has_what_the_package_is_built_from() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    before, _, _ = text.partition("RUN pip install")
    copied = {
        name.removeprefix("./")
        for line in before.splitlines()
        if line.startswith("COPY")
        for name in line.split()[1:-1]
    }
    hatch = PYPROJECT["tool"]["hatch"]
    wheel = hatch["build"]["targets"]["wheel"]
    fragments = hatch["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"]
    needed = [
        "pyproject.toml", *PROJECT["license-files"], *wheel["packages"], *wheel["force-include"],
        *(one["path"] for one in fragments),
    ]  # fmt: skip
    assert [name for name in needed if name.partition("/")[0] not in copied] == []


def test_the_image_holds_dask_to_the_release_that_conda_installed(tmp_path: Path) -> None:
    for name in ("dask", "distributed"):
        folder = tmp_path / f"{name}-1.2.3.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
        (folder / "direct_url.json").write_text(
            '{"url": "file:///home/conda/work", "dir_info": {}}'
        )
    text = (DEPLOY / "image" / "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^RUN pip (.+) > /tmp/dask\.txt", text, re.MULTILINE)
    done = subprocess.run(
        f"{sys.executable} -m pip {command}",
        shell=True, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["dask==1.2.3", "distributed==1.2.3"], done.stderr
