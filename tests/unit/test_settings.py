"""The section ``otel`` of Dask's configuration: defaults, ways to set it, errors."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict, fields, is_dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import dask.config
import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import dask_otel.settings.keys as module
from dask_otel.core.metrics.labels import NameRule
from dask_otel.settings.keys import (
    ClientSettings,
    ConfigurationError,
    MetricSettings,
    PatternSettings,
    Settings,
    SpanSettings,
)
from dask_otel.settings.reading import differences, read_settings, setting

PACKAGE = Path(module.__file__).parent
DOCS = PACKAGE.parents[2] / "docs" / "configuration.md"
#: Addresses that `otel.trace-url` takes.
TEMPLATES = ["http://x/{trace_id}", "https://x/{span_id}?t={trace_id}&{}"]
DEFAULTS = yaml.safe_load((PACKAGE / "otel.yaml").read_text(encoding="utf-8"))
SCHEMA = yaml.safe_load((PACKAGE / "otel-schema.yaml").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def shipped_defaults():
    """Run each test on the shipped defaults, whatever the machine is configured to."""
    with dask.config.set({"otel": copy.deepcopy(DEFAULTS["otel"])}):
        yield


def problems(overrides: Any = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(overrides)
    return list(caught.value.problems)


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return ``{"spans": {"linger": value}}`` for ``otel.spans.linger``."""
    for name in reversed(key.split(".")[1:]):
        value = {name: value}
    return value


def by_key(settings: Settings) -> dict[str, Any]:
    """Return full key: parsed value, with ``otel.environment`` as one key."""
    return _by_key(settings, "otel")


def _by_key(owner: Any, section: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for knob in fields(owner):
        key = f"{section}.{knob.name.replace('_', '-')}"
        value = getattr(owner, knob.name)
        if is_dataclass(value):
            found |= _by_key(value, key)
        else:
            found[key] = as_yaml(value)
    return found


def as_yaml(value: Any) -> Any:
    """Return a parsed value as YAML has it: lists, and mappings for rules."""
    if isinstance(value, tuple):
        return [asdict(part) if isinstance(part, NameRule) else part for part in value]
    return value


def run_python(code: str, **env: str) -> str:
    """Run code in a new process, away from any configuration of this machine."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DASK_", "OTEL_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, "DASK_CONFIG": os.devnull, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ------------------------------------------------------- four places, one list of keys


def schema_leaves(schema: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    found = {}
    for name, part in schema["properties"].items():
        key = f"{prefix}.{name}".lstrip(".")
        found |= schema_leaves(part, key) if "properties" in part else {key: part}
    return found


def yaml_leaves() -> dict[str, Any]:
    found = {}
    for name, value in DEFAULTS["otel"].items():
        if isinstance(value, dict) and name != "environment":
            for leaf, v in value.items():
                key = f"otel.{name}.{leaf}"
                found |= (
                    {f"{key}.{k}": x for k, x in v.items()} if isinstance(v, dict) else {key: v}
                )
        else:
            found[f"otel.{name}"] = value
    return found


def docs_rows() -> dict[str, tuple[str, Any, str]]:
    """Return key: (environment variable, default, meaning) of the table in the docs."""
    row = re.compile(r"^\| `(otel\.[^`]+)` \| `([^`]+)` \| `([^`]+)` \| (.+) \|$", re.MULTILINE)
    rows = row.findall(DOCS.read_text(encoding="utf-8"))
    assert len(rows) == len({key for key, *_ in rows})
    return {key: (name, yaml.safe_load(default), text) for key, name, default, text in rows}


def test_what_is_made_of_the_settings_is_up_to_date():
    script = DOCS.parents[1] / "tools" / "build_settings.py"
    made = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


def test_yaml_schema_dataclasses_and_docs_list_the_same_keys_and_defaults():
    shipped = yaml_leaves()
    leaves = schema_leaves(SCHEMA)
    rows = docs_rows()
    assert len(shipped) == 48
    assert list(shipped) == list(leaves) == list(rows)
    assert set(shipped) == set(by_key(Settings()))
    assert shipped == {key: leaf["default"] for key, leaf in leaves.items()}
    assert shipped == {key: default for key, (_, default, _) in rows.items()}
    # What YAML spells as 2s the dataclass has as 2.0: compare it parsed.
    assert read_settings() == Settings()


def test_docs_name_the_right_environment_variables():
    for key, (name, _, _) in docs_rows().items():
        assert name == "DASK_" + key.upper().replace(".", "__").replace("-", "_")


def test_schema_is_valid_accepts_the_shipped_defaults_and_describes_every_key():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(DEFAULTS, SCHEMA)
    assert all(leaf["description"].strip() for leaf in schema_leaves(SCHEMA).values())
    with pytest.raises(jsonschema.ValidationError, match="lingre"):
        jsonschema.validate({"otel": {"spans": {"lingre": 1}}}, SCHEMA)


@pytest.mark.parametrize(
    ("key", "limit", "step"),
    [
        (key, leaf[limit], step)
        for key, leaf in schema_leaves(SCHEMA).items()
        for limit, step in (("minimum", -1), ("maximum", 1))
        if limit in leaf
    ],
)
def test_schema_and_parser_draw_the_same_limits(key, limit, step):
    assert by_key(read_settings(nested(key, limit)))[key] == limit
    [line] = problems(nested(key, limit + step))
    assert line.startswith(f"{key} = {limit + step}, ")


@pytest.mark.parametrize("key", [k for k, v in schema_leaves(SCHEMA).items() if "enum" in v])
def test_schema_and_parser_allow_the_same_words(key):
    words = schema_leaves(SCHEMA)[key]["enum"]
    assert [by_key(read_settings(nested(key, word)))[key] for word in words] == words
    [line] = problems(nested(key, "all"))
    assert line.endswith(f"Allowed: {' or '.join(words)}.")


# ---------------------------------------------------------------------- ways to set it


def test_defaults_are_the_contract_s():
    assert Settings() == Settings(
        enabled=True,
        cluster_name=None,
        close_timeout=5.0,
        propagation="adopt",
        baggage=False,
        provider="global",
        trace_url=None,
        environment={},
        client=ClientSettings(span_per_caller=False),
        spans=SpanSettings(
            default="export",
            detail="group",
            linger=2.0,
            settle_timeout=30.0,
            max_groups=64,
            trace_gap=3600.0,
            max_per_trace=5000,
            max_exceptions=16,
            exception_message=True,
            exception_stacktrace=True,
            code=True,
            task_keys=True,
            redact=None,
            progress_after=60.0,
            progress_interval=300.0,
            remember=10_000,
            baggage=(),
        ),
        metrics=MetricSettings(
            max_names=200,
            max_series=2000,
            retire_after=3600.0,
            span_label="full",
            name_rules=(),
            tag_attributes=(),
            max_workers=100,
            span_names=PatternSettings(allow=(), deny=()),
            prefixes=PatternSettings(allow=(), deny=()),
        ),
    )


def test_import_puts_defaults_below_what_the_user_set_and_imports_nothing_heavy():
    out = run_python(
        "import sys, dask.config\n"
        "from dask_otel.settings.reading import read_settings\n"
        "settings = read_settings()\n"
        "print(settings.spans.settle_timeout, settings.spans.max_groups, settings.enabled)\n"
        "get = dask.config.get\n"
        "print(get('otel.spans.linger'), get('otel.spans.settle-timeout'))\n"
        "heavy = {'distributed', 'opentelemetry', 'tornado', 'asyncio', 'numpy', 'pandas',"
        " 'jsonschema'}\n"
        "print(sorted(heavy & set(sys.modules)))",
        DASK_OTEL__SPANS__SETTLE_TIMEOUT="10s",
        DASK_OTEL__SPANS__MAX_GROUPS="7",
        DASK_OTEL__ENABLED="false",
    )
    assert out.splitlines() == ["10.0 7 False", "2s 10s", "[]"]


@pytest.mark.parametrize(
    "imports",
    [
        "import dask_otel\nimport dask\n",
        "import dask\nimport dask_otel\n",
        "import dask_otel\nimport distributed\nimport dask\n",
    ],
)
def test_the_section_is_there_with_the_package_and_dask_in_any_order(imports):
    out = run_python(
        "import sys\n"
        f"{imports}"
        "get = dask.config.get\n"
        "print(get('otel.spans.linger'), get('otel.enabled'), get('otel.spans.max-groups'))\n"
        "print([name for name in sys.modules if name.startswith('dask_otel.core')])\n"
        "print([one for one in sys.meta_path if type(one).__name__ == 'ImportHook'])",
        DASK_OTEL__SPANS__MAX_GROUPS="7",
    )
    assert out.splitlines() == ["2s True 7", "[]", "[]"]


@pytest.mark.parametrize(
    "imports", ["import dask_otel, dask, distributed\n", "import dask, dask_otel, distributed\n"]
)
def test_without_the_shipped_file_dask_can_be_imported_and_settings_say_why(tmp_path, imports):
    # As in an archive that leaves data out.
    out = run_python(
        "import pathlib\n"
        "there = pathlib.Path.with_name\n"
        f"pathlib.Path.with_name = lambda p, n: pathlib.Path({str(tmp_path / 'none')!r})\n"
        f"{imports}"
        "print(dask.config.get('otel', None), distributed.__name__)\n"
        "try: import dask_otel.settings.keys\n"
        "except FileNotFoundError: print('said')\n"
        "pathlib.Path.with_name = there\n"
        "import dask_otel.settings.keys\n"
        "print(dask.config.get('otel.spans.linger'))"
    )
    assert out.splitlines() == ["None distributed", "said", "2s"]


def test_yaml_file_in_the_configuration_directory(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "otel:\n  spans:\n    trace-gap: 2h\n  metrics:\n  environment:\n    OTEL_SERVICE_NAME: a\n"
        "    OTEL_TRACES_EXPORTER: otlp\n"
    )
    out = run_python(
        "from dask_otel.settings.reading import read_settings\n"
        "s = read_settings()\n"
        "print(s.spans.trace_gap, s.metrics.max_names, dict(s.environment))",
        DASK_CONFIG=str(tmp_path),
        DASK_OTEL__ENVIRONMENT__OTEL_SERVICE_NAME="b",
    )
    assert out == "7200.0 200 {'OTEL_SERVICE_NAME': 'b', 'OTEL_TRACES_EXPORTER': 'otlp'}"


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("DASK_OTEL", "otel = False, in Dask's configuration, is not valid."),
        ("DASK_OTEL__SPANS", "otel.spans = False, in Dask's configuration, is not valid."),
    ],
)
def test_a_value_in_the_place_of_a_section_is_reported_and_not_overwritten(variable, line):
    out = run_python(
        "from dask_otel.settings.keys import ConfigurationError\n"
        "from dask_otel.settings.reading import read_settings\n"
        "try: read_settings()\n"
        "except ConfigurationError as e: print(*e.problems)\n"
        "else: print('no error')",
        **{variable: "false"},
    )
    assert out == f"{line} Allowed: a section with keys below it."


def test_dask_config_set_then_overrides_win():
    with dask.config.set({"otel.spans.linger": "3s", "otel.spans.max_groups": 8}):
        assert read_settings().spans.linger == 3.0
        settings = read_settings({"spans": {"linger": 4}})
        assert (settings.spans.linger, settings.spans.max_groups) == (4.0, 8)
        assert read_settings().spans.linger == 3.0  # for that bridge only


def test_a_section_that_replaces_the_defaults_still_has_defaults():
    with dask.config.set({"otel": {"spans": {"linger": 1}}}):
        assert differences(read_settings(), Settings()) == ["otel.spans.linger"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"spans": {"settle_timeout": "9s"}},
        {"spans": {"settle-timeout": "9s"}},
        {"spans.settle_timeout": "9s"},
    ],
)
def test_dashes_underscores_and_dots_in_overrides(overrides):
    assert read_settings(overrides).spans.settle_timeout == 9.0


@pytest.mark.parametrize(
    "section",
    [
        "otel",
        "otel.client",
        "otel.spans",
        "otel.metrics",
        "otel.metrics.span-names",
        "otel.environment",
    ],
)
def test_an_empty_section_means_the_defaults(section):
    with dask.config.set({section: None}):
        assert read_settings() == Settings()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (1.5, 1.5),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("2 minutes", 120.0),
        ("15m", 900.0),
        ("1H", 3600.0),
        (timedelta(minutes=1), 60.0),
        (Fraction(1, 2), 0.5),
    ],
)
def test_durations(value, seconds):
    linger = read_settings({"spans": {"linger": value}}).spans.linger
    assert (linger, type(linger)) == (seconds, float)


@pytest.mark.parametrize(
    "value",
    [
        *(-1, "-1s", float("nan"), "nan", float("inf"), 10**400, "1e400s", timedelta(seconds=-1)),
        *("", " ", "s", ".5s", "5 parsecs", "1h30m", "0x1", b"2s", True, None, [], {}, "2d", 1j),
    ],
)
def test_bad_durations(value):
    [line] = problems({"spans": {"linger": value}})
    assert line.startswith("otel.spans.linger = ")
    assert line.endswith(
        "Allowed: a duration from 0s to 1d: a number of seconds, or a number and a unit, "
        "such as 500ms, 2s or 1h."
    )


@pytest.mark.parametrize(
    ("value", "size"),
    [("100 MB", 100_000_000), ("1MiB", 2**20), (200_000, 200_000), (2e5, 200_000), ("1e6", 10**6)],
)
def test_sizes(value, size):
    found = read_settings({"files": {"max-size": value}}).files.max_size
    assert (found, type(found)) == (size, int)


@pytest.mark.parametrize(
    "value",
    [
        *(1, "1 kB", "2 TB", "", "MB", ".5 GB", "5 parsecs", True, None, [], {}, b"1MB", -1),
        *(float("nan"), float("inf"), "nan", 10**400),
    ],
)
def test_bad_sizes(value):
    [line] = problems({"files": {"max-size": value}})
    assert line.startswith("otel.files.max-size = ")
    assert "a size from 100,000 to 1,000,000,000,000 bytes" in line


@pytest.mark.parametrize("value", ["", " ", "a\0b", "x" * 4097, "\ud800", 7, True, ["x"]])
def test_bad_paths(value):
    for section in ("files", "spool"):
        [line] = problems({section: {"path": value}})
        assert line.startswith(f"otel.{section}.path = ")


def test_the_spool():
    found = read_settings({"spool": {"path": "/var/lib/spool", "max-size": "1 GiB"}}).spool
    assert (found.path, found.max_size) == ("/var/lib/spool", 2**30)
    assert read_settings().spool.path is None
    [line] = problems({"spool": {"max-size": "999 kB"}})
    assert "a size from 1,000,000 to 1,000,000,000,000 bytes" in line


def test_retire_after_is_never_below_15_minutes():
    assert read_settings({"metrics": {"retire-after": "15m"}}).metrics.retire_after == 900.0
    [line] = problems({"metrics": {"retire-after": "14m"}})
    assert line.startswith("otel.metrics.retire-after = '14m', ")
    assert "from 15 minutes to 365d" in line


def test_whole_numbers():
    assert read_settings({"spans": {"max-groups": 1e3}}).spans.max_groups == 1000
    for bad in (True, 1.5, "7", None, -1, float("inf"), float("nan")):
        [line] = problems({"spans": {"max-groups": bad}})
        assert line.endswith("Allowed: a whole number from 0 to 10000.")


@pytest.mark.parametrize("bad", [0, 1, "yes", None])
def test_flags_are_true_or_false_only(bad):
    [line] = problems({"enabled": bad})
    assert line.endswith("Allowed: true or false.")


# ------------------------------------------------------------------- names and patterns


def metrics(**given: Any) -> MetricSettings:
    return read_settings({"metrics": given}).metrics


def test_patterns_come_as_a_list_or_one_alone():
    assert metrics(span_names={"allow": ["a*", "b"]}).span_names.allow == ("a*", "b")
    assert metrics(prefixes={"deny": "tmp-*"}).prefixes.deny == ("tmp-*",)
    overrides = {"metrics.span-names.allow": ["a"], "metrics.span-names.deny": ["b"]}
    assert read_settings(overrides).metrics.span_names == PatternSettings(("a",), ("b",))
    assert differences(read_settings(overrides), Settings()) == [
        "otel.metrics.span-names.allow",
        "otel.metrics.span-names.deny",
    ]


@pytest.mark.parametrize("bad", [None, 7, [7], [""], ["x" * 201], ["a"] * 101, {"a": 1}, "\ud800"])
def test_bad_patterns(bad):
    [line] = problems({"metrics": {"span-names": {"deny": bad}}})
    assert line.startswith("otel.metrics.span-names.deny = ")
    assert "Allowed: a list of at most 100 glob patterns" in line


@pytest.mark.parametrize(
    "bad", ["a b", ["ä"], ["a", "a"], ["a-b", "a_b"], ["a.b"], [*"abcdefghi"], [1]]
)
def test_bad_tag_keys(bad):
    assert metrics(tag_attributes=["team", "cost-centre"]).tag_attributes == ("team", "cost-centre")
    [line] = problems({"metrics": {"tag-attributes": bad}})
    assert "Allowed: a list of at most 8 different keys" in line


@pytest.mark.parametrize(
    "bad",
    ["a b", ["ä"], ["a,b"], ["a=b"], ["x" * 129], ["dask.x"], ["otel.x"], ["a"] * 17, [1]],
)
def test_bad_baggage_keys(bad):
    settings = read_settings({"spans": {"baggage": ["tenant", "user.id"]}})
    assert settings.spans.baggage == ("tenant", "user.id")
    [line] = problems({"spans": {"baggage": bad}})
    assert "Allowed: a list of at most 16 keys" in line
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"otel": {"spans": {"baggage": [*bad]}}}, SCHEMA)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d{4}-\d{2}-\d{2}",
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        r"(run|job)-(\d+)",
        r"([ab]c)+$",
        r"(?i:x)y*?",
    ],
)
def test_name_rules(pattern):
    rules = metrics(name_rules=[{"pattern": pattern, "replace": "-"}, {"pattern": "b"}]).name_rules
    assert rules == (NameRule(pattern, "-"), NameRule("b", ""))


@pytest.mark.parametrize(
    "bad",
    [
        "abc",
        {"pattern": "a"},
        [{"replace": "a"}],
        [{"pattern": "a", "with": "b"}],
        [{"pattern": ""}],
        [{"pattern": "("}],
        [{"pattern": "a", "replace": r"\1"}],
        [{"pattern": "a", "replace": 1}],
        [{"pattern": "(?P<x>a)", "replace": r"\g<y>"}],
        [{"pattern": "a" * 201}],
        [{"pattern": "(a+)+$"}],
        [{"pattern": "(a|a)*$"}],
        [{"pattern": "(?:x(?:a?b)){9}"}],
        [{"pattern": "((?:ab{1,3})c){0,99}$"}],
        [{"pattern": "(?=(a*)*)b"}],
        [{"pattern": "a{99999999999}"}],
    ],
)
def test_bad_name_rules(bad):
    [line] = problems({"metrics": {"name-rules": bad}})
    assert line.startswith("otel.metrics.name-rules = ")
    assert "Allowed: a list of at most 100 mappings" in line


@pytest.mark.parametrize("bad", ["", "  ", 7, "x" * 1025, "\ud800", ["a"]])
def test_bad_cluster_names(bad):
    assert read_settings({"cluster-name": "nightly"}).cluster_name == "nightly"
    [line] = problems({"cluster-name": bad})
    line.encode()
    assert line.startswith("otel.cluster-name = ")


# --------------------------------------------------------------------- otel.environment


def test_environment_is_text_in_upper_case_and_dask_s_lower_case_spelling_wins():
    settings = read_settings(
        {
            "environment": {
                "OTEL_TRACES_SAMPLER_ARG": 0.25,
                "OTEL_BSP_SCHEDULE_DELAY": 1e3,
                "OTEL_SDK_DISABLED": False,
                "otel_service_name": "env",
                "OTEL_SERVICE_NAME": "yaml",
            }
        }
    )
    assert settings.environment == {
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
        "OTEL_SDK_DISABLED": "false",
        "OTEL_SERVICE_NAME": "env",
    }


@pytest.mark.parametrize("bad", [None, "a\0b", "\ud800", float("nan"), ["x"], {"a": "b"}])
def test_bad_values_in_the_environment_are_not_shown(bad):
    [line] = problems({"environment": {"OTEL_EXPORTER_OTLP_HEADERS": bad}})
    assert line.startswith("otel.environment.OTEL_EXPORTER_OTLP_HEADERS = (")
    assert "'none'" in line


@pytest.mark.parametrize("name", ["PATH", "OTEL", "OTEL_", "XOTEL_A", "OTEL_A B", "OTEL_Ä", "", 5])
def test_names_in_the_environment_begin_with_otel(name):
    [line] = problems({"environment": {name: "s3cret"}})
    assert line.endswith("a name here must begin with OTEL_.")
    assert "s3cret" not in line


# --------------------------------------------------------------------------------- errors


def test_one_error_lists_every_problem():
    with (
        dask.config.set({"otel.spans.lingre": "4s", "otel.metrics.max-names": 0}),
        pytest.raises(ConfigurationError) as caught,
    ):
        read_settings({"spans": {"detail": "tasks"}, "metric": {}})
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == (
        "4 problems: "
        "(1) otel.spans.lingre = '4s', in Dask's configuration: there is no such key. Did you mean "
        "otel.spans.linger? Allowed in otel.spans: default, detail, linger, settle-timeout, "
        "max-groups, trace-gap, max-per-trace, max-exceptions, exception-message, "
        "exception-stacktrace, code, task-keys, redact, progress-after, progress-interval, "
        "remember, baggage, tasks. "
        "(2) otel.metric = (a mapping), in the arguments of dask_otel.register: there is no such "
        "key. Did you mean otel.metrics? Allowed in otel: enabled, cluster-name, close-timeout, "
        "propagation, baggage, provider, trace-url, environment, client, spans, metrics, workers, "
        "logs, files, spool. "
        "(3) otel.spans.detail = 'tasks', in the arguments of dask_otel.register, is not valid. "
        "Allowed: span or group. "
        "(4) otel.metrics.max-names = 0, in Dask's configuration, is not valid. Allowed: a whole "
        "number from 1 to 100000. "
        "All keys: https://github.com/dask-otel/dask-otel/blob/main/docs/configuration.md"
    )


def test_a_good_override_makes_a_bad_value_of_the_configuration_harmless():
    with dask.config.set({"otel.spans.linger": "soon"}):
        assert read_settings({"spans": {"linger": 1}}).spans.linger == 1.0
        assert len(problems()) == 1


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        ({"spans": {"max_group": 1}}, "Did you mean otel.spans.max-groups?"),
        ({"linger": 1}, "Did you mean otel.spans.linger?"),
        ({"spans": {"max-series": 1}}, "Did you mean otel.metrics.max-series?"),
        ({"enviroment": {}}, "Did you mean otel.environment?"),
        ({"endpoint": "http://x"}, "Use the standard variable OTEL_EXPORTER_OTLP_ENDPOINT, or"),
        ({"service_name": "x"}, "Use the standard variable OTEL_SERVICE_NAME, or"),
        ({"zzz": 1}, "there is no such key. Allowed in otel: enabled, "),
    ],
)
def test_advice_for_unknown_keys(overrides, advice):
    [line] = problems(overrides)
    assert advice in line


def test_a_key_given_in_two_spellings():
    assert problems({"cluster-name": "a", "cluster_name": "b"}) == [
        "otel.cluster-name is given twice in the arguments of dask_otel.register, once with _ "
        "and once with -. Keep one of them."
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        {"headers": "authorization=s3cret"},
        {"api_token": "s3cret"},
        {"enviroment": {"OTEL_EXPORTER_OTLP_HEADERS": "s3cret"}},
        {"endpoint": "https://me:s3cret@collector:4318"},
        {"url": "x" * 80 + "https://me:s3cret" + "y" * 80 + "@collector"},
        {"environment": "s3cret"},
    ],
)
def test_errors_show_no_credentials(overrides):
    with pytest.raises(ConfigurationError) as caught:
        read_settings(overrides)
    assert "s3cret" not in str(caught.value)


def test_error_survives_pickling():
    error = ConfigurationError(["otel.a = 1", "otel.b = 2"])
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.problems, str(copied)) == (error.problems, str(error))


# ----------------------------------------------------------------------- settings objects


def test_settings_are_frozen_hashable_picklable_and_hide_the_environment():
    settings = read_settings({"environment": {"OTEL_EXPORTER_OTLP_HEADERS": "s3cret"}})
    with pytest.raises(FrozenInstanceError):
        settings.enabled = False  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(copy.deepcopy(settings))
    assert "s3cret" not in repr(settings)


def test_differences_name_keys_and_no_values():
    a = read_settings({"environment": {"OTEL_A": "1", "OTEL_B": "1", "OTEL_C": "1"}})
    b = read_settings(
        {
            "cluster_name": "x",
            "spans": {"linger": 9},
            "metrics": {"max_names": 1},
            "environment": {"OTEL_A": "1", "OTEL_B": "2", "OTEL_D": "1"},
        }
    )
    assert differences(a, a) == []
    assert sorted(differences(a, b)) == sorted(differences(b, a))
    assert differences(a, b) == [
        "otel.cluster-name",
        "otel.spans.linger",
        "otel.metrics.max-names",
        "otel.environment.OTEL_B",
        "otel.environment.OTEL_C",
        "otel.environment.OTEL_D",
    ]


# ----------------------------------------------------------------------------- properties

NAMES = st.sampled_from(
    [leaf.rpartition(".")[2] for leaf in schema_leaves(SCHEMA)]
    + ["spans", "metrics", "environment", "OTEL_A", "otel_a", "settle_timeout", "spans.linger"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 3).map(lambda i: i * 10**5000)  # too long for Python to print
    | st.floats()
    | st.complex_numbers()
    | st.fractions()
    | st.decimals()
    | st.timedeltas()
    | st.binary(max_size=5)
    | st.text(st.characters(codec=None), max_size=8)
    | st.from_regex(r"\A-?[0-9.e]{0,9} ?[a-z]{0,3}\Z")
    | st.builds(object)
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            NAMES | st.text(st.characters(codec=None), max_size=6) | st.integers() | st.none(),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(JUNK, JUNK)
def test_junk_raises_nothing_but_a_configuration_error_that_can_be_printed(config, overrides):
    with dask.config.set({"otel": config}):
        result = parse(overrides)
    if isinstance(result, Settings):
        assert read_settings(asdict(result), own=True) == result
    else:
        assert result.problems
        assert all(line.startswith("otel") for line in result.problems)
        # One line, and nothing that a log's encoder refuses.
        assert len(str(result).encode().splitlines()) == 1
        assert all(line in str(result) for line in result.problems)


def parse(overrides: Any) -> Settings | ConfigurationError:
    try:
        return read_settings(overrides)
    except ConfigurationError as error:
        return error


def leaf_values(leaf: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return what the schema allows for a key."""
    if "enum" in leaf:
        return st.sampled_from(leaf["enum"])
    if leaf["type"] == "boolean":
        return st.booleans()
    if leaf["type"] == "integer":
        return st.integers(leaf["minimum"], leaf["maximum"])
    if "integer" in leaf["type"]:
        return st.integers(leaf["minimum"], leaf["maximum"])
    if "number" in leaf["type"]:
        durations = st.floats(leaf["minimum"], leaf["maximum"])
        return st.none() | durations if "null" in leaf["type"] else durations
    if leaf["type"] == "array":
        return list_values(leaf)
    if leaf["type"] == "object":
        text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
        return st.dictionaries(st.from_regex(r"\AOTEL_[A-Z0-9_]{1,9}\Z"), text, max_size=3)
    if "trace_id" in leaf.get("pattern", ""):
        return st.none() | st.sampled_from(TEMPLATES)
    if ":" in leaf.get("pattern", ""):
        return st.none() | st.sampled_from(["module:redact", "a_package.module:Owner.method"])
    excluded = "\0" if "pattern" in leaf else ""
    texts = st.text(st.characters(codec="utf-8", exclude_characters=excluded), min_size=1)
    return st.none() | texts.filter(str.strip)


def list_values(leaf: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return lists that the schema and the parser allow."""
    if leaf["items"]["type"] == "object":
        pattern = st.sampled_from(["[0-9]+", "^a", r"(\d{4})-\d\d"])
        item = st.fixed_dictionaries({"pattern": pattern, "replace": st.sampled_from(["", "x"])})
        return st.lists(item, max_size=3)
    if "pattern" in leaf["items"]:
        key = st.from_regex(leaf["items"]["pattern"]).filter(lambda key: "\n" not in key)
        return st.lists(key, max_size=leaf["maxItems"], unique=True)
    text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
    return st.lists(text, max_size=3)


@given(st.fixed_dictionaries({k: leaf_values(v) for k, v in schema_leaves(SCHEMA).items()}))
def test_every_valid_setting_round_trips(values):
    raw: dict[str, Any] = {"client": {}, "spans": {}, "metrics": {}}
    for key, value in values.items():
        _, *sections, name = key.split(".")
        where = raw
        for section in sections:
            where = where.setdefault(section, {})
        where[name] = value
    jsonschema.validate({"otel": raw}, SCHEMA)
    with dask.config.set({"otel": raw}):
        settings = read_settings()
    assert by_key(settings) == values
    assert read_settings(asdict(settings), own=True) == settings


@given(st.floats(0, 86_400_000).map(lambda x: round(x, 3)))
def test_durations_with_a_unit_are_the_number_times_the_unit(milliseconds):
    linger = read_settings({"spans": {"linger": f"{milliseconds}ms"}}).spans.linger
    assert linger == pytest.approx(milliseconds / 1000, rel=1e-12)


# ------------------------------------------------------------------ beside the user's code


def test_an_unquoted_off_in_yaml_is_off():
    assert read_settings(yaml.safe_load("propagation: off")).propagation == "off"


NO_TEMPLATES = [
    "",
    "x",
    "http://x/",
    "ftp://x/{trace_id}",
    "http://x/ {trace_id}",
    'http://x/"{trace_id}',
]


@pytest.mark.parametrize("template", [None, *TEMPLATES, *NO_TEMPLATES])
def test_schema_and_parser_allow_the_same_templates(template):
    allowed = template is None or template in TEMPLATES
    given = {"otel": {"trace-url": template}}
    if allowed:
        jsonschema.validate(given, SCHEMA)
        assert read_settings(given["otel"]).trace_url == template
    else:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(given, SCHEMA)
        [line] = problems(given["otel"])
        assert "http or https" in line


@pytest.mark.parametrize("key", [key for key in by_key(Settings()) if "environment" not in key])
def test_single_settings_are_those_of_the_whole(key):
    assert as_yaml(setting(key)) == by_key(Settings())[key]


def test_a_single_setting_is_not_hurt_by_others_and_falls_back_with_one_warning(caplog):
    with dask.config.set({"otel.spans.linger": "x", "otel.client.span_per_caller": True}):
        assert setting("otel.client.span-per-caller") is True
    for section in (None, 1, {"span-per-caller": "maybe"}, {"span-per-caller": "maybe"}):
        with dask.config.set({"otel.client": section}):
            assert setting("otel.client.span-per-caller") is False
    (record,) = caplog.records
    assert "otel.client.span-per-caller = 'maybe'" in record.getMessage()
