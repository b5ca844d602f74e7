"""What an operator keeps out of the traces: by switches, and by a function of their own."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest

from dask_otel.core.records import FinishedSpan, Progress, Retry, SpanMemory
from dask_otel.core.text import ATTRIBUTE_LIMIT, Sanitizer
from dask_otel.core.traces.translate import translate
from dask_otel.core.traces.values import SpanLimits
from dask_otel.scheduler.redaction import load_redaction
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.reading import read_settings
from tests.unit.finished import (
    T,
    make_failure,
    make_group,
    make_identity,
    make_span,
    make_task,
)

#: Stands in every text that a user can write.
SECRET = "hunter2"
NAMES = {
    "dask.span.tags",
    "dask.task.key",
    "dask.task.prefix",
    "dask.task_group.name",
    "exception.message",
    "exception.stacktrace",
    "code.file.path",
    "code.function.name",
    "user.name",
    "user.list",
    "user.number",
}


#: What replaces it.
STARRED = SpanLimits(redact=lambda name, text: text.replace(SECRET, "***"))


def full_span(**changes) -> FinishedSpan:
    """Return a span with the secret in all that users write."""
    failure = replace(
        make_failure(f"ValueError('no {SECRET}')"),
        key=f"load-{SECRET}",
        prefix=f"load-{SECRET}",
        traceback=f'  File "a.py", line 1, in load\n    login("{SECRET}")\n',
    )
    span = make_span(
        identity=make_identity(tags=(f"workflow {SECRET}", f"step {SECRET}")),
        result="failure",
        failures=(failure,),
        tree_failure=failure,
        groups=(make_group(name=f"load-{SECRET}", prefix=f"load-{SECRET}"),),
        tasks=(
            make_task(
                key=f"load-{SECRET}",
                group=f"load-{SECRET}",
                prefix=f"load-{SECRET}",
                failure=failure,
            ),
        ),
        retries=(Retry(T + 1, f"load-{SECRET}", "error", failure),),
        code=(f"/home/{SECRET}/a.py", 17, f"run_{SECRET}"),
        requested=(f"other {SECRET}",),
        memory=SpanMemory(10, 1.0, ((f"load-{SECRET}", 7), ("load-***", 3))),
        attributes={
            "user.name": SECRET,
            "user.list": (SECRET, "b"),
            "user.number": 17,
        },
    )
    return replace(span, **changes)


def test_the_function_is_asked_about_every_text_that_users_write():
    asked = []
    plain = translate(full_span(), SpanLimits(redact=lambda *of: asked.append(of[0]) or of[1]))
    assert {*asked} == NAMES
    # One that changes nothing changes nothing.
    assert plain == translate(full_span())
    # No text gets past one that replaces.
    starred = translate(full_span(), STARRED)
    sign = translate(Progress(make_identity(tags=(SECRET,)), 1, T, T + 1), STARRED)
    assert [SECRET in repr(some) for some in (plain, starred, sign)] == [True, False, False]
    span = starred[0]
    # Two prefixes have the same name now.
    assert span.attributes["dask.span.memory.largest.size"] == 7
    assert span.attributes["dask.span.memory.at_peak.load-___"] == 10.0
    user = [span.attributes[name] for name in ("user.list", "user.number")]
    assert (span.name, span.error, user) == (
        "step ***",
        "Task load-*** failed: ValueError: no ***",
        [("***", "b"), 17],
    )


@pytest.mark.parametrize("answer", [None, 7, b"bytes", ValueError, SystemExit, RecursionError])
def test_no_answer_and_an_error_drop_the_text_and_not_the_span(answer, monkeypatch):
    def redact(name, text):
        if isinstance(answer, type):
            raise answer(text)
        return answer

    module_with(monkeypatch, redact=redact)
    sanitizer, guarded = Sanitizer(), load_redaction("operators_module:redact")
    records = translate(full_span(), SpanLimits(redact=guarded), sanitizer)
    assert [record.span_id for record in records] == [one.span_id for one in translate(full_span())]
    assert SECRET not in repr(records)
    span, _, task = records
    assert [record.name for record in records] == ["_EMPTY", "_EMPTY tasks", "_EMPTY task"]
    assert span.error == "A task failed: ValueError"
    kept = {"dask.span.tags": ("_EMPTY", "_EMPTY"), "error.type": "ValueError"}
    left_out = dict.fromkeys(("user.name", "user.number", "code.file.path"))
    assert {key: span.attributes.get(key) for key in kept | left_out} == kept | left_out
    assert "dask.task.key" not in task.attributes
    # None is a wish; the rest is a mistake, counted for each text.
    assert (sanitizer.counts.get("redact", 0) > 10) == (answer is not None)


def test_a_text_is_asked_about_before_it_is_cut():
    """Half a credential is not recognised, and is half a credential."""
    text = "x" * (ATTRIBUTE_LIMIT - 4) + SECRET
    failure = make_failure(f"ValueError('{text}')")
    records = translate(full_span(failures=(failure,), attributes={"user.name": text}), STARRED)
    assert SECRET[:3] not in repr(records)
    assert records[0].attributes["user.name"] == text.replace(SECRET, "***")


def test_keys_and_code_can_be_left_out():
    hidden = SpanLimits(task_keys=False, code=False)
    record, *rest = translate(full_span(groups=(make_group(),)), hidden)
    assert record.error == f"A task failed: ValueError: no {SECRET}"
    found = [
        *record.attributes,
        *rest[-1].attributes,
        *(k for e in record.events for k in e.attributes),
    ]
    assert [name for name in found if name.startswith("code.") or name == "dask.task.key"] == []


# ---------------------------------------------------------------------------- where it is named


def module_with(monkeypatch, **names) -> None:
    module = types.ModuleType("operators_module")
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_its_first_error_is_told_of_without_the_text(monkeypatch, caplog):
    # Python's own error has the text in it.
    module_with(monkeypatch, redact=lambda name, text: int(text))
    records = translate(full_span(), SpanLimits(redact=load_redaction("operators_module:redact")))
    assert SECRET not in repr(records) + caplog.text
    (line,) = caplog.messages
    assert line.startswith(
        "dask-otel: operators_module:redact (otel.redact) raised ValueError, for "
    )


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("no_such_module_at_all:redact", "ModuleNotFoundError"),
        ("operators_module:missing", "AttributeError"),
        ("operators_module:number", "is no function, but of type int"),
    ],
)
def test_what_cannot_be_loaded_is_said(monkeypatch, name, wrong):
    module_with(monkeypatch, number=7)
    with pytest.raises(ConfigurationError, match=wrong):
        load_redaction(name)


@pytest.mark.parametrize("value", ["os:system", None])
def test_a_client_may_neither_set_nor_unset_it(value):
    import dask.config

    with (
        dask.config.set({"otel.redact": "mine:redact"}),
        pytest.raises(ConfigurationError, match="so only the scheduler's own configuration"),
    ):
        read_settings({"redact": value})
