"""The section ``otel`` of Dask's configuration: defaults, ways to set it, errors."""

from __future__ import annotations

import copy
import os
import pickle
from dataclasses import asdict
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
    ConfigurationError,
    Settings,
)
from dask_otel.settings.reading import differences, flat, read_settings, setting
from tests.environment import LOADER, python
from tests.unit.garbage import Pretender

PACKAGE = Path(module.__file__).parent
#: Addresses that `otel.trace-url` takes.
TEMPLATES = ["http://x/{trace_id}", "https://x/{span_id}?t={trace_id}&{}"]
DEFAULTS = yaml.load((PACKAGE / "otel.yaml").read_text(encoding="utf-8"), LOADER)
SCHEMA = yaml.load((PACKAGE / "otel-schema.yaml").read_text(encoding="utf-8"), LOADER)
# `jsonschema.validate` would check the schema itself each time.
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture(autouse=True)
def shipped_defaults():
    """Run each test on the shipped defaults, whatever the machine is configured to."""
    with dask.config.set({"otel": copy.deepcopy(DEFAULTS["otel"])}):
        yield


def problems(overrides: Any = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(overrides, own=True)
    return list(caught.value.problems)


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return ``{"spans": {"linger": value}}`` for ``otel.spans.linger``."""
    for name in reversed(key.split(".")[1:]):
        value = {name: value}
    return value


def by_key(settings: Settings) -> dict[str, Any]:
    """Return full key: parsed value as YAML has it, with ``otel.environment`` as one key."""
    values = flat(settings) | {"otel.environment": settings.environment}
    return {
        key: [asdict(part) if isinstance(part, NameRule) else part for part in values[key]]
        if isinstance(values[key], tuple)
        else values[key]
        for key in LEAVES
    }


# ---------------------------- what `tools/build_settings.py` makes, and how it is read again


def leaves(section: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, part in section.items():
        inner = leaves(part["properties"]) if "properties" in part else {"": part}
        found |= {f"{name}.{key}".rstrip("."): leaf for key, leaf in inner.items()}
    return found


LEAVES = leaves(SCHEMA["properties"])


def test_schema_is_valid_accepts_the_shipped_defaults_and_describes_every_key():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALIDATOR.validate(DEFAULTS)
    assert [key for key, leaf in LEAVES.items() if not leaf["description"].strip()] == []
    assert not VALIDATOR.is_valid({"otel": {"spans": {"lingre": 1}}})


@pytest.mark.parametrize("key", [k for k, v in LEAVES.items() if "minimum" in v])
def test_schema_and_parser_draw_the_same_limits(key):
    for limit, step in ((LEAVES[key]["minimum"], -1), (LEAVES[key]["maximum"], 1)):
        assert by_key(read_settings(nested(key, limit)))[key] == limit
        [line] = problems(nested(key, limit + step))
        assert line.startswith(f"{key} = {limit + step}, ")


@pytest.mark.parametrize("key", [k for k, v in LEAVES.items() if "enum" in v])
def test_schema_and_parser_allow_the_same_words(key):
    words = LEAVES[key]["enum"]
    for spelled in (str, str.lower, str.upper, str.title):
        said = [nested(key, spelled(word)) for word in words]
        assert [by_key(read_settings(one))[key] for one in said] == words
    [line] = problems(nested(key, "all"))
    assert line.endswith(f"Allowed: {' or '.join(words)}.")


# ---------------------------------------------------------------------- ways to set it


#: What is set in the environment, the program, and what it prints.
PROGRAMS = {
    "the user's file and variables, and imports": (
        {"SPANS__SETTLE_TIMEOUT": "10s", "ENABLED": "false", "ENVIRONMENT__OTEL_SERVICE_NAME": "b"},
        """
import sys, dask.config
from dask_otel.settings.reading import read_settings
read = read_settings()
print(read.spans.settle_timeout, read.spans.max_groups, read.enabled, read.metrics.max_names)
print(dict(read.environment))
print(dask.config.get("otel.spans.linger"), dask.config.get("otel.spans.settle-timeout"))
heavy = {"distributed", "opentelemetry", "tornado", "asyncio", "numpy", "pandas", "jsonschema"}
print(sorted(heavy & set(sys.modules)))
""",
        [
            "10.0 7 False 200",
            "{'OTEL_SERVICE_NAME': 'b', 'OTEL_TRACES_EXPORTER': 'otlp'}",
            "2s 10s",
            "[]",
        ],
    ),
    "the package before Dask": (
        {},
        """
import sys
import dask_otel, dask
get = dask.config.get
print(get("otel.spans.linger"), get("otel.enabled"), get("otel.spans.max-groups"))
print([name for name in sys.modules if name.startswith("dask_otel.core")])
print([one for one in sys.meta_path if type(one).__name__ == "ImportHook"])
""",
        ["2s True 7", "[]", "[]"],
    ),
    # Reported, and not overwritten by the defaults.
    "a value in the place of all": (
        {"": "false"},
        """
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.reading import read_settings
try: read_settings()
except ConfigurationError as error: print(*error.problems)
""",
        [
            "otel = False, in Dask's configuration, is not valid. Allowed: a section with keys"
            " below it."
        ],
    ),
    # As in an archive that leaves data out: Dask can be imported, and settings say why.
    "no shipped file": (
        {},
        """
import pathlib
there = pathlib.Path.with_name
pathlib.Path.with_name = lambda path, name: pathlib.Path("/nowhere")
import dask_otel, dask
print(dask.config.get('otel', {}).get("enabled"))
try: import dask_otel.settings.keys
except FileNotFoundError: print('said')
pathlib.Path.with_name = there
import dask_otel.settings.keys
print(dask.config.get('otel.spans.linger'))
""",
        ["None", "said", "2s"],
    ),
}


@pytest.mark.parametrize(("variables", "code", "printed"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_process_has_the_defaults_below_what_the_user_set(tmp_path, variables, code, printed):
    path = os.devnull if "" in variables else str(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "otel:\n  spans:\n    max-groups: 7\n  metrics:\n  environment:\n    OTEL_SERVICE_NAME: a\n"
        "    OTEL_TRACES_EXPORTER: otlp\n"
    )
    names = {f"DASK_OTEL__{name}".rstrip("_"): value for name, value in variables.items()}
    assert python(code, DASK_CONFIG=path, **names).splitlines() == printed


#: Dask's configuration, overrides, and what differs from the defaults.
LAYERS: list[tuple[dict[str, Any], Any, dict[str, Any]]] = [
    # What YAML spells as 2s the dataclass has as 2.0.
    ({}, None, {}),
    *(
        ({section: None}, None, {})
        for section in (
            *("otel", "otel.client", "otel.spans", "otel.metrics", "otel.metrics.span-names"),
            "otel.environment",
        )
    ),
    # A section that replaces the defaults still has defaults.
    ({"otel": {"spans": {"linger": 1}}}, None, {"otel.spans.linger": 1.0}),
    (
        {"otel.spans.linger": "3s", "otel.spans.max_groups": 8},
        {"spans": {"linger": 4}},
        {"otel.spans.linger": 4.0, "otel.spans.max-groups": 8},
    ),
    ({"otel.spans.linger": "3s"}, None, {"otel.spans.linger": 3.0}),
    # A bad value that a good one overrides is harmless.
    ({"otel.spans.linger": "soon"}, {"spans": {"linger": 1}}, {"otel.spans.linger": 1.0}),
    *(
        ({}, overrides, {"otel.spans.settle-timeout": 9.0})
        for overrides in (
            {"spans": {"settle_timeout": "9s"}},
            {"spans": {"settle-timeout": "9s"}},
            {"spans.settle_timeout": "9s"},
        )
    ),
]


@pytest.mark.parametrize(("config", "overrides", "expected"), LAYERS)
def test_the_value_that_wins(config, overrides, expected):
    with dask.config.set(config):
        found = read_settings(overrides)
    assert {key: flat(found)[key] for key in differences(found, Settings())} == expected


NAME_RULE_PATTERNS = [
    r"\d{4}-\d{2}-\d{2}",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"(run|job)-(\d+)",
    r"([ab]c){1,8}$",
    r"\(a\)+",
    r"(?i:x)y*?",
]
#: Key: what may be given, and what it is to the bridge.
GOOD: dict[str, list[tuple[Any, Any]]] = {
    "otel.spans.linger": [
        *((0, 0.0), (1.5, 1.5), ("1.5", 1.5), ("500ms", 0.5), ("2 minutes", 120.0)),
        *(("15m", 900.0), ("1H", 3600.0), (timedelta(minutes=1), 60.0), (Fraction(1, 2), 0.5)),
    ],
    "otel.files.max-size": [
        *(("100 MB", 100_000_000), ("1MiB", 2**20), (200_000, 200_000), (2e5, 200_000)),
        ("1e6", 10**6),
    ],
    "otel.spool.max-size": [("1 GiB", 2**30)],
    "otel.spool.path": [("/var/lib/spool", "/var/lib/spool"), (None, None)],
    "otel.metrics.retire-after": [("15m", 900.0)],
    "otel.spans.max-groups": [(1e3, 1000)],
    "otel.metrics.tag-attributes": [(["team", "cost-centre"], ("team", "cost-centre"))],
    "otel.metrics.span-names.deny": [("etl/*", ("etl/*",)), (["a", "b"], ("a", "b"))],
    "otel.spans.baggage": [(["tenant", "user.id"], ("tenant", "user.id"))],
    "otel.metrics.name-rules": [
        ([{"pattern": p, "replace": "-"}, {"pattern": "b"}], (NameRule(p, "-"), NameRule("b", "")))
        for p in NAME_RULE_PATTERNS
    ],
    "otel.cluster-name": [("nightly", "nightly")],
    # As YAML has an unquoted off.
    "otel.propagation": [(False, "off")],
    "otel.trace-url": [(template, template) for template in (None, *TEMPLATES)],
}
BAD_PATHS = [
    "",
    "s3://bucket/runs",
    "file:///tmp/runs",
    " ",
    "a\0b",
    "a\nb",
    "a\x1b[31mb",
    "a\x9b31mb",
    "x" * 4097,
    "\ud800",
    7,
    True,
    ["x"],
]
NAN, INFINITY = float("nan"), float("inf")
#: Key: the begin of the allowed values in the message, and refused values.
BAD: dict[str, tuple[str, list[Any]]] = {
    "otel.spans.linger": (
        "a duration from 0s to 1d: a number of seconds, or a number and a unit, such as 500ms, "
        "2s or 1h.",
        [
            *(-1, "-1s", NAN, "nan", INFINITY, 10**400, "1e400s", timedelta(seconds=-1), "2d", 1j),
            *("", " ", "s", ".5s", "5 parsecs", "1h30m", "0x1", b"2s", True, None, [], {}),
        ],
    ),
    "otel.files.max-size": (
        "a size from 100,000 to 1,000,000,000,000 bytes",
        [
            *(1, "1 kB", "2 TB", "", "MB", ".5 GB", "5 parsecs", True, None, [], {}, b"1MB", -1),
            *(NAN, INFINITY, "nan", 10**400),
        ],
    ),
    "otel.spool.max-size": ("a size from 1,000,000 to 1,000,000,000,000 bytes", ["999 kB"]),
    "otel.files.path": ("null, or a path", BAD_PATHS),
    "otel.spool.path": ("null, or a path", BAD_PATHS),
    "otel.metrics.retire-after": ("a duration from 15 minutes to 365d", ["14m"]),
    "otel.spans.max-groups": (
        "a whole number from 0 to 10000.",
        [True, 1.5, "7", None, -1, INFINITY, NAN],
    ),
    "otel.spans.tasks.ratio": ("a number from 0 to 1.", [True, -0.1, 2, NAN, "0.5", None, 10**400]),
    "otel.enabled": ("true or false.", [0, 1, "yes", None]),
    "otel.metrics.tag-attributes": (
        "a list of at most 8 different keys",
        ["a b", ["ä"], ["a", "a"], ["a-b", "a_b"], ["a.b"], [*"abcdefghi"], [1]],
    ),
    "otel.metrics.span-names.allow": (
        "a list of at most 100 glob patterns",
        [7, None, "", [""], ["x" * 201], ["\ud800"], [1], ["a"] * 101, {"a": "b"}],
    ),
    "otel.spans.baggage": (
        "a list of at most 16 keys",
        ["a b", ["ä"], ["a,b"], ["a=b"], ["x" * 129], ["dask.x"], ["otel.x"], ["a"] * 17, [1]],
    ),
    "otel.metrics.name-rules": (
        "a list of at most 100 mappings",
        [
            *("abc", {"pattern": "a"}, [{"replace": "a"}], [{"pattern": "a", "with": "b"}]),
            *([{"pattern": ""}], [{"pattern": "("}], [{"pattern": "a", "replace": r"\1"}]),
            *([{"pattern": "a", "replace": 1}], [{"pattern": "(?P<x>a)", "replace": r"\g<y>"}]),
            *([{"pattern": "a" * 201}], [{"pattern": "(a+)+$"}], [{"pattern": "(a|a)*$"}]),
            *([{"pattern": r"\\(a+){2,}"}], [{"pattern": "(?x)(a+) +"}]),
            *([{"pattern": "(?:x(?:a?b)){9}"}], [{"pattern": "((?:ab{1,3})c){0,99}$"}]),
            *([{"pattern": "(?=(a*)*)b"}], [{"pattern": "a{99999999999}"}]),
        ],
    ),
    "otel.redact": (
        "null, or module:function",
        ["module", "module:", ":function", "a b:c", "a:b:c", "ä:b", 7, True, ""],
    ),
    "otel.cluster-name": (
        "null, or a text of 1 to 1024 characters",
        ["", "  ", 7, "x" * 1025, "\ud800", ["a"]],
    ),
    "otel.trace-url": (
        "null (no links), or an http or https address",
        [
            *("", "x", "http://x/", "ftp://x/{trace_id}", "http://x/ {trace_id}"),
            'http://x/"{trace_id}',
        ],
    ),
}
#: Where the schema says all that the parser checks.
EXACT = (
    *("otel.trace-url", "otel.redact", "otel.spans.baggage", "otel.spans.tasks.ratio"),
    "otel.enabled",
)


@pytest.mark.parametrize(("key", "values"), GOOD.items())
def test_good_values(key, values):
    for raw, parsed in values:
        found = flat(read_settings(nested(key, raw)))[key]
        assert (found, type(found)) == (parsed, type(parsed))
        assert key not in EXACT or VALIDATOR.is_valid({"otel": nested(key, raw)})


@pytest.mark.parametrize("key", BAD)
def test_bad_values(key):
    allowed, values = BAD[key]
    for bad in values:
        [line] = problems(nested(key, bad))
        assert line.encode().startswith(f"{key} = ".encode())
        assert f" Allowed: {allowed}" in line
        # NaN is a number to a schema.
        assert key not in EXACT or bad != bad or not VALIDATOR.is_valid({"otel": nested(key, bad)})


# --------------------------------------------------------------------- otel.environment


def test_environment_is_text_in_upper_case_and_dask_s_lower_case_spelling_wins():
    given = {
        "OTEL_TRACES_SAMPLER_ARG": 0.25,
        "OTEL_BSP_SCHEDULE_DELAY": 1e3,
        "OTEL_SDK_DISABLED": False,
        "otel_service_name": "env",
        "OTEL_SERVICE_NAME": "yaml",
    }
    assert read_settings({"environment": given}).environment == {
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
        "OTEL_SDK_DISABLED": "false",
        "OTEL_SERVICE_NAME": "env",
    }


# --------------------------------------------------------------------------------- errors


def test_one_error_lists_every_problem():
    with dask.config.set({"otel.spans.lingre": "4s", "otel.metrics.max-names": 0}):
        error = parse({"spans": {"detail": "tasks"}, "metric": {}})
    assert isinstance(error, ValueError)
    assert str(error) == (
        "4 problems: "
        "(1) otel.spans.lingre = '4s', in Dask's configuration: there is no such key. Did you mean "
        "otel.spans.linger? Allowed in otel.spans: default, detail, path, graph, memory, linger, "
        "settle-timeout, max-groups, trace-gap, max-per-trace, max-exceptions, exception-message, "
        "exception-stacktrace, code, task-keys, progress-after, progress-interval, "
        "remember, baggage, tasks. "
        "(2) otel.metric = (a mapping), in the arguments of dask_otel.register: there is no such "
        "key. Did you mean otel.metrics? Allowed in otel: enabled, cluster-name, close-timeout, "
        "propagation, baggage, provider, trace-url, environment, redact, client, spans, metrics, "
        "workers, "
        "logs, files, spool, report, profiles. "
        "(3) otel.spans.detail = 'tasks', in the arguments of dask_otel.register, is not valid. "
        "Allowed: span or group. "
        "(4) otel.metrics.max-names = 0, in Dask's configuration, is not valid. Allowed: a whole "
        "number from 1 to 100000. "
        "All keys and variables: https://dask-otel.readthedocs.io/en/stable/configuration.html"
    )
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.problems, str(copied)) == (error.problems, str(error))


SECRET = {"OTEL_EXPORTER_OTLP_HEADERS": "s3cret"}
BEGINS = "a name here must begin with OTEL_."
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"spans": {"max_group": 1}}, "Did you mean otel.spans.max-groups?"),
        ({"linger": 1}, "Did you mean otel.spans.linger?"),
        ({"spans": {"max-series": 1}}, "Did you mean otel.metrics.max-series?"),
        ({"enviroment": SECRET}, "Did you mean otel.environment?"),
        ({"endpoint": "http://x"}, "Use the standard variable OTEL_EXPORTER_OTLP_ENDPOINT, or"),
        ({"endpoint": "https://me:s3cret@collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"exporter": {"endpoint": "x"}}, "Use the standard variable OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"exporter.Linger": 1}, "Did you mean otel.spans.linger?"),
        # Not otel.report.
        ({"exporter": "otlp"}, "there is no such key. Allowed in otel: enabled, "),
        ({"exporter": {"zzz": 1, 5: 1}}, "there is no such key. Allowed in otel: enabled, "),
        ({"service_name": "x"}, "Use the standard variable OTEL_SERVICE_NAME, or"),
        ({"headers": "authorization=s3cret"}, "OTEL_EXPORTER_OTLP_HEADERS"),
        ({"api_token": "s3cret"}, "not shown: it may be secret"),
        ({"spans": {"task-keys": "never"}}, "otel.spans.task-keys = 'never', in"),
        ({"spans": {"baggage": 5}}, "and none below dask.* or otel.*."),
        ({"url": "x" * 80 + "https://me:s3cret" + "y" * 80 + "@collector"}, "no such key"),
        ({"zzz": 1}, "there is no such key. Allowed in otel: enabled, "),
        (
            {"cluster-name": "a", "cluster_name": "b"},
            "otel.cluster-name is given twice in the arguments of dask_otel.register, once with _ "
            "and once with -. Keep one of them.",
        ),
        ({"environment": "s3cret"}, "Allowed: a section with keys below it."),
        # Reported, and not overwritten by the defaults.
        # A list in itself, and a key that lies about being text.
        ({"cluster-name": CIRCLE}, "cluster-name = [[...]]"),
        ({"spans": {"linger": CIRCLE}}, "linger = [[...]]"),
        ({"metrics": {"name-rules": CIRCLE}}, "name-rules = [[...]]"),
        ({Pretender("linger"): 1}, "no such key"),
        ({"spans": False}, "otel.spans = False, in the arguments of dask_otel.register, is not"),
        *(
            ({"environment": {name: "s3cret"}}, BEGINS)
            for name in ("PATH", "OTEL", "OTEL_", "XOTEL_A", "OTEL_A B", "OTEL_Ä", "", 5)
        ),
        # Not even in part, nor as what it is not.
        *(
            ({"environment": {"OTEL_EXPORTER_OTLP_HEADERS": bad}}, "_HEADERS = (")
            for bad in (None, "a\0b", "\ud800", NAN, ["s3cret"], {"a": "b"})
        ),
    ],
)
def test_an_error_says_what_to_do_and_no_secret(overrides, said):
    [line] = problems(overrides)
    assert said in line
    assert "s3cret" not in line


# ----------------------------------------------------------------------- settings objects


def test_settings_are_picklable_and_hide_the_environment():
    settings = read_settings({"environment": SECRET})
    assert pickle.loads(pickle.dumps(settings)) == settings
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
    names = ["cluster-name", "spans.linger", "metrics.max-names", "environment.OTEL_B"]
    names += ["environment.OTEL_C", "environment.OTEL_D"]
    assert [differences(a, a), differences(a, b)] == [[], [f"otel.{name}" for name in names]]
    assert sorted(differences(b, a)) == sorted(differences(a, b))


# ----------------------------------------------------------------------------- properties

NAMES = st.sampled_from(
    [key.rpartition(".")[2] for key in LEAVES]
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
        return
    assert result.problems
    assert [x for x in result.problems if not (x.startswith("otel") and x in str(result))] == []
    # One line, and nothing that a log's encoder refuses.
    assert len(str(result).encode().splitlines()) == 1


def parse(overrides: Any) -> Settings | ConfigurationError:
    try:
        return read_settings(overrides)
    except ConfigurationError as error:
        return error


# ------------------------------------------------------------------------------ every key

#: What no rule of the schema leads to.
SPECIAL = {
    "otel.environment": {"OTEL_A": "b"},
    "otel.trace-url": TEMPLATES[1],
    "otel.redact": "a_p.module:Owner.method",
    "otel.metrics.name-rules": [{"pattern": "[0-9]+", "replace": "x"}],
}
CHOICES = {"boolean": [True, False], "array": [["a", "b"]]}


def changed(leaf: dict[str, Any]) -> Any:
    """Return a value of a key that is not its default."""
    allowed = leaf.get("enum") or CHOICES.get(str(leaf["type"])) or [leaf.get("maximum", "a")]
    return next(one for one in allowed if one != leaf["default"])


def test_every_key_can_be_changed_and_round_trips():
    values = {key: SPECIAL.get(key) or changed(leaf) for key, leaf in LEAVES.items()}
    raw: dict[str, Any] = {}
    for key, value in values.items():
        dask.config.set({key.removeprefix("otel."): value}, config=raw)
    VALIDATOR.validate({"otel": raw})
    with dask.config.set({"otel": raw}):
        settings = read_settings()
    assert (by_key(settings), read_settings(asdict(settings), own=True)) == (values, settings)


# ------------------------------------------------------------------ beside the user's code


def test_single_settings_are_those_of_the_whole():
    found = {key: setting(key) for key in LEAVES if "environment" not in key}
    assert found == flat(Settings())


def test_a_single_setting_is_not_hurt_by_others_and_falls_back_with_one_warning(caplog):
    with dask.config.set({"otel.spans.linger": "x", "otel.client.span_per_caller": True}):
        assert setting("otel.client.span-per-caller") is True
    for section in (None, 1, {"span-per-caller": "maybe"}, {"span-per-caller": "maybe"}):
        with dask.config.set({"otel.client": section}):
            assert setting("otel.client.span-per-caller") is False
    (record,) = caplog.records
    assert "otel.client.span-per-caller = 'maybe'" in record.getMessage()
