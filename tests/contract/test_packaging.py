"""What is released agrees with pyproject.toml: recipe, versions, workflows.

`make dist` builds and tries the packages themselves.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest
import yaml

from tests.environment import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
#: Between two releases the version ends in `.dev0`, and the recipe is that of the last one.
RELEASED = re.fullmatch(r"\d+\.\d+\.\d+", PROJECT["version"]) is not None


def test_the_recipe_is_the_package_s() -> None:
    """That for conda-forge, with its context filled in as its build tool does."""
    text = (REPOSITORY / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
    for key, value in yaml.safe_load(text)["context"].items():
        text = text.replace(f"${{{{ {key} }}}}", str(value))
    recipe = yaml.safe_load(text)

    def spaced(requirement: str) -> str:
        return re.sub(r"(?<=[\w-])(?=[><=!~])", " ", requirement, count=1)

    python = f"python {PROJECT['requires-python']}"
    wanted = {python, *map(spaced, PROJECT["dependencies"])}
    assert set(recipe["requirements"]["run"]) == wanted
    assert set(recipe["requirements"]["host"]) == {
        f"python {PROJECT['requires-python'].removeprefix('>=')}.*",
        "pip",
        *map(spaced, PYPROJECT["build-system"]["requires"]),
    }
    version = PROJECT["version"] if RELEASED else recipe["package"]["version"]
    assert recipe["package"] == {"name": PROJECT["name"], "version": version}
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert (
        recipe["about"].items()
        >= {
            "summary": PROJECT["description"],
            "license": PROJECT["license"],
            "license_file": PROJECT["license-files"][0],
            "documentation": PROJECT["urls"]["Documentation"],
            "repository": PROJECT["urls"]["Source"],
        }.items()
    )


@pytest.mark.parametrize("made", ["dashboards", "kubernetes", "settings"])
def test_files_are_what_their_tool_makes(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if made == "dashboards":
        pytest.importorskip("grafana_foundation_sdk", reason="needs the dependency group `deploy`")
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    texts = import_module(f"build_{made}").texts()
    assert [path.name for path, text in texts.items() if path.read_text("utf-8") != text] == []


@pytest.mark.parametrize("version", [PROJECT["version"], "99.0.0"])
def test_a_release_has_one_version_everywhere_and_nothing_else_is_released(version: str) -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / "check_release.py"), f"v{version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    good = RELEASED and version == PROJECT["version"]
    assert (done.returncode, done.stdout.startswith("### ")) == (int(not good), good), done.stderr
    files = ("pyproject.toml", "CITATION.cff", "recipe/recipe.yaml", "CHANGELOG.md")
    assert version != "99.0.0" or [one for one in files if one not in done.stderr] == []


@pytest.mark.parametrize(("workflow", "job"), [("ci", "pythons"), ("release", "build")])
def test_workflows_try_each_python_that_is_promised(workflow: str, job: str) -> None:
    path = REPOSITORY / ".github" / "workflows" / f"{workflow}.yml"
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    prefix = "Programming Language :: Python :: 3."
    promised = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if one.startswith(prefix)]
    assert jobs[job]["strategy"]["matrix"]["python"] == promised
    assert any("make dist" in step.get("run", "") for step in jobs[job]["steps"])


def test_only_the_last_steps_of_a_release_may_do_anything() -> None:
    path = REPOSITORY / ".github" / "workflows" / "release.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    allowed = {name: job.get("permissions", {}) for name, job in workflow["jobs"].items()}
    reads = {"contents": "read"}
    assert [name for name, rights in allowed.items() if rights == reads] == ["build", "audit"]
    assert allowed["publish"] == {"id-token": "write"}, "trusted publishing, and nothing else"
    assert workflow["jobs"]["publish"]["environment"]["name"] == "pypi"
    # No password: not in any step, not in any variable.
    assert "secrets." not in path.read_text(encoding="utf-8")
    for name in ("attest", "publish", "announce"):
        assert "refs/tags/" in workflow["jobs"][name]["if"], name
