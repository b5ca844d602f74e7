"""Profiles: nothing is lost or counted twice between a worker's samples and the files."""

from __future__ import annotations

import _thread
import asyncio.runners
import gzip
import json
import selectors
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from time import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from distributed import compatibility
from distributed import worker as dask_worker
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import ParseDict
from hypothesis import example, given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel._dask.profiles import WorkerProfiles
from dask_otel.core.profiles import stacks
from dask_otel.core.profiles.frames import DEEPER, Stacks
from dask_otel.core.profiles.pprof import Profile, decoded, encoded
from dask_otel.core.profiles.stacks import Frame, Sampled, packed, short_file, unpacked
from dask_otel.core.profiles.store import GRACE, Batch, CutOff, Ended, Profiles
from dask_otel.core.traces.translate import translate
from dask_otel.pump.profile_files import ProfileFiles
from dask_otel.pump.tally import Tally
from dask_otel.scheduler import loops
from dask_otel.scheduler.hand_over import HandOver
from dask_otel.worker import sampling
from dask_otel.worker.sampling import Sampler
from tests.unit.finished import T, make_identity, make_span

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
STACKS = st.builds(
    Sampled,
    st.sampled_from(["a", "b", "c"]),
    st.lists(
        st.builds(Frame, TEXT, TEXT, st.integers(0, 10**6), st.integers(0, 10**6)),
        min_size=1,
        max_size=6,
    ).map(tuple),
    st.integers(1, 10**6),
    st.integers(0, 10**12),
)


def stack(prefix: str, names: str, line: int = 1) -> stacks.Stack:
    """Return a stack of a prefix and functions with names of one letter."""
    frames = [*map(Frame, names)]
    if frames:
        frames[-1] = frames[-1]._replace(at=line)
    return (Frame(prefix), *frames)


#: A few frames, so that stacks share some.
SHARING = st.lists(
    st.builds(
        Sampled,
        st.sampled_from(["root", "b"]),
        st.builds(
            stack, st.sampled_from(["é", "fit"]), st.text("fgh", max_size=5), st.integers(1, 4)
        ),
        st.integers(1, 100),
        st.integers(0, 10**9),
    ),
    max_size=40,
)
ONE = Sampled("b", stack("fit", "f"), 2, 40_000)
ROOT = make_identity()
CHILD = replace(ROOT, dask_id="b", tags=("workflow", "fit"), span_id=7, parent_span_id=ROOT.span_id)
SPANS = {"root": (ROOT, ROOT), "b": (CHILD, ROOT)}


def batch(found: Iterable[Sampled], left_out: int = 0, worker: str = "w") -> Batch:
    (message,) = packed(found, 9)
    ids = tuple(message[stacks.SPANS])
    return Batch(
        worker, message[stacks.BLOB], ids, tuple(SPANS.get(one) for one in ids),
        message[stacks.SAMPLES], left_out,
    )  # fmt: skip


def take(profiles: Profiles, *items: Any, now: float = T) -> None:
    for item in items:
        for _ in profiles.take(item, now):
            pass


# --------------------------------------------------------------------------- messages


def assert_complete(messages: list[Any], found: list[Sampled]) -> None:
    """All is in messages of bounded size."""
    read = []
    for message in messages:
        assert len(message[stacks.BLOB]) <= stacks.MOST_BYTES
        own = unpacked(message[stacks.BLOB], message[stacks.SPANS])
        assert message[stacks.SAMPLES] == sum(one.samples for one in own)
        read += own
    assert read == sorted(found, key=lambda one: -one.micros)


@given(st.lists(STACKS, max_size=20))
def test_messages_have_all_stacks(found: list[Sampled]) -> None:
    assert_complete(packed(found, 99), found)


def test_many_stacks_are_several_messages_of_bounded_size() -> None:
    # Incompressible, as hashes are.
    names = [sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(3000)]
    found = [Sampled("a", (Frame(name, name),), 1, 4000 - n) for n, name in enumerate(names)]
    messages = packed(found, 99)
    assert len(messages) > 2
    assert_complete(messages, found)
    # The shortest are left out.
    first, second, last = packed([*found, Sampled("b", (Frame("b"),), 1, 0)], 2)
    assert [first, second] == messages[:2]
    assert first[stacks.SAMPLES] + second[stacks.SAMPLES] + last[stacks.LEFT_OUT] == 3001
    assert (last[stacks.SPANS], last[stacks.SAMPLES]) == (["a", "b"], 0)


def test_what_is_too_long_for_a_message_is_left_out_of_its_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacks, "MOST_BYTES", 200)
    long = Sampled("a", tuple([Frame(sha256(bytes([n])).hexdigest()) for n in range(9)]), 3, 90_000)
    said = (stacks.SPANS, stacks.SAMPLES, stacks.LEFT_OUT)
    found = [[one[key] for key in said] for one in packed([ONE, long], 9)]
    assert found == [[["a"], 0, 3], [["b"], 2, 0]]


def test_messages_have_no_more_spans_than_are_read() -> None:
    profiles, taken = reader()
    # As of clients that submit task by task, without a span: each has its own.
    for one in packed([ONE._replace(span=f"default-{n}") for n in range(1500)], 9):
        profiles.read({**one, "worker": "w"})
    assert sum(one.samples for one in taken) == 3000


@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.one_of(st.none(), st.integers(), TEXT), lambda one: st.lists(one, max_size=4)
        ).map(lambda value: zlib.compress(json.dumps(value).encode())),
    )
)
def test_whatever_a_client_sends_is_counted(blob: bytes) -> None:
    profiles = Profiles(0.02)
    take(profiles, Batch("w", blob, ("root",), (SPANS["root"],), 3, 2))
    written = sum(root.unwritten for root in profiles.roots.values())
    wrong = profiles.dropped["untranslatable"]
    assert wrong == 0 or (wrong, written) == (3, 0)


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="too long"):
        unpacked(zlib.compress(b" " * 2**24), ["a"])


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/ann/venv/lib/python3.11/site-packages/pandas/io/csv.py", "pandas/io/csv.py"),
        ("/usr/lib/python3.12/json/decoder.py", "json/decoder.py"),
        ("/usr/lib64/python3.12/json/decoder.py", "json/decoder.py"),
        ("/usr/lib/python3/dist-packages/six.py", "six.py"),
        ("/home/ann/secret/project/jobs/etl.py", "jobs/etl.py"),
        ("C:\\Users\\ann\\project\\etl.py", "project/etl.py"),
        ("<string>", "<string>"),
    ],
)  # fmt: skip
def test_paths_are_cut_to_the_package(path: str, short: str) -> None:
    assert short_file(path) == short


@pytest.mark.parametrize("module", [selectors, asyncio.runners, compatibility])
def test_an_event_loop_in_c_is_idle_where_it_was_begun(module: ModuleType) -> None:
    lock = threading.Lock()
    waits = compile("lock.acquire()", str(module.__file__), "exec")
    with lock:
        thread = threading.Thread(target=exec, args=(waits, {"lock": lock}))
        thread.start()
        blobs = loops._sampled(thread.ident or 0, 0.1) or []
    thread.join()
    found = [one.stack[0].function for blob in blobs for one in unpacked(blob, [""])]
    assert {*found} == {"idle"}


#: https://github.com/google/pprof/blob/main/proto/profile.proto, as far as it is used: the fields
#: of each message by number; those with a * are repeated.
FORMAT = {
    "ValueType": {1: "type int64", 2: "unit int64"},
    "Label": {1: "key int64", 2: "str int64"},
    "Sample": {1: "location_id* uint64", 2: "value* int64", 3: "label* Label"},
    "Line": {1: "function_id uint64", 2: "line int64"},
    "Location": {1: "id uint64", 4: "line* Line"},
    "Function": {1: "id uint64", 2: "name int64", 4: "filename int64", 5: "start_line int64"},
    "Profile": {
        1: "sample_type* ValueType", 2: "sample* Sample", 4: "location* Location",
        5: "function* Function", 6: "string_table* string", 9: "time_nanos int64",
        10: "duration_nanos int64", 11: "period_type ValueType", 12: "period int64",
        13: "comment* int64",
    },
}  # fmt: skip


@cache
def other_reader() -> Any:
    """Return another implementation of the format."""

    def field(number: int, text: str) -> dict[str, Any]:
        name, kind = text.split()
        label = "LABEL_REPEATED" if "*" in name else "LABEL_OPTIONAL"
        about = {"number": number, "name": name.rstrip("*"), "label": label}
        its = ("typeName", f".p.{kind}") if kind in FORMAT else ("type", f"TYPE_{kind.upper()}")
        return dict([*about.items(), its])

    messages = [
        {"name": name, "field": [field(*one) for one in fields.items()]}
        for name, fields in FORMAT.items()
    ]
    file = {"name": "p.proto", "package": "p", "syntax": "proto3", "messageType": messages}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(ParseDict(file, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))


def assert_others_read(data: bytes, profile: Profile) -> None:
    """Other readers of the format find the same."""
    read = other_reader().FromString(gzip.decompress(data))
    texts = read.string_table
    functions = {
        one.id: Frame(texts[one.name], texts[one.filename], one.start_line) for one in read.function
    }
    frames = {
        one.id: functions[line.function_id]._replace(at=line.line)
        for one in read.location
        for line in one.line
    }
    types = [(texts[one.type], texts[one.unit]) for one in read.sample_type]
    assert (texts[0], types, read.period) == ("", [("wall", "nanoseconds")], 20_000_000)
    times = profile.start_ns, int(profile.seconds * 1e9)
    assert (read.time_nanos, read.duration_nanos) == times
    assert json.loads(texts[read.comment[0]]) == profile.about
    seen = Counter[Any]()
    for sample in read.sample:
        labels = {texts[one.key]: texts[one.str] for one in sample.label}
        # The innermost one first.
        stack = [frames[number] for number in sample.location_id][::-1]
        seen[(tuple(labels.items()), *stack)] += sample.value[0]
    names = ("trace_id", "span_id", "dask.span.id", "dask.span.name", "dask.task.prefix")
    assert seen == {
        (
            tuple(zip(names, (*[*vars(span).values()][:4], prefix.function), strict=True)),
            *[one._replace(at=one.at or one.line) for one in frames],
        ): 1000 * micros
        for span in profile.spans
        for (prefix, *frames), micros in (+span.stacks).items()
    }


# ------------------------------------------------------------------------------ store


@given(SHARING, SHARING, st.integers(0, 30))
@example([ONE], [ONE._replace(span="root")], 1)
def test_each_sample_is_written_or_counted(
    first: list[Sampled], second: list[Sampled], room: int
) -> None:
    profiles = Profiles(0.02, room=room)
    take(
        profiles,
        batch(first),
        batch(second, left_out=5),
        Ended(ROOT, T - 9.0, T - 2.0, frozenset()),
    )
    sent = [*first, *second]
    written = sum(root.unwritten for root in profiles.roots.values())
    assert written + profiles.dropped.total() == sum(one.samples for one in sent) + 5
    root = profiles.roots.get(ROOT.span_id)
    if root is not None:
        # Without a span, a message says nothing of a root.
        assert root.profile.about["left_out"] == profiles.dropped.total() - 5 * (not second)
    if root is not None and profiles.dropped.total() == 5:
        # The file has all of it but the stacks without time.
        data, spans = encoded(root.profile), root.profile.spans
        assert_others_read(data, root.profile)
        read = decoded(data)
        whole = [replace(one, stacks=+one.stacks) for one in spans]
        assert read == replace(root.profile, spans=[one for one in whole if one.stacks])
        assert (read.start_ns, read.seconds) == (int((T - 9.0) * 1e9), 7.0)
        # Microseconds by span and stack.
        found, wanted = Counter[Any](), Counter[Any]()
        for one in read.spans:
            found.update({(one.dask_id, its): micros for its, micros in one.stacks.items()})
        for sample in sent:
            wanted[sample.span, sample.stack] += sample.micros
        # All time is there: at its stack, or at its prefix and said.
        assert found.total() == wanted.total()
        folded = sum((wanted - found).values())
        assert read.about["folded_seconds"] == pytest.approx(folded / 1e6)
        places = {*wanted} | {(span, its[:1]) for span, its in wanted}
        assert {place for place in found if place[1] != (Frame("_OTHER"),)} <= places
        assert folded or +found == +wanted
        assert sum(len(one.stacks) + 1 for one in spans) <= room + 1 + len(spans)
    # Room comes back when a root was written long ago.
    for one in profiles.roots.values():
        one.changed = False
    profiles.forget(T + GRACE)
    assert len(profiles.roots) == (root is not None)
    profiles.forget(T + GRACE + 1)
    assert (profiles.roots, profiles._room) == ({}, room)


def test_late_samples_join_their_root_and_unknown_ones_are_counted() -> None:
    profiles = Profiles(0.02)
    late = batch([ONE])._replace(spans=(None,))
    unknown = batch([ONE._replace(span="gone")])
    take(profiles, batch([ONE]), Ended(ROOT, T - 9.0, T - 2.0, frozenset()), late, unknown)
    assert profiles.seconds(CHILD) == (ROOT, 0.08)
    assert profiles.dropped == {"late": 2}
    assert profiles.seconds(replace(CHILD, span_id=8)) is None


def test_a_lost_worker_is_named_in_the_profiles_that_it_served() -> None:
    other = replace(ROOT, dask_id="c", root_id="c", span_id=99)
    profiles = Profiles(0.02)
    theirs = batch([ONE._replace(span="c")], worker="v")._replace(spans=((other, other),))
    take(profiles, CutOff("early"), now=T - 10.0)
    take(profiles, batch([ONE]), theirs, CutOff("w"))
    roots = [root.profile.about for root in profiles.roots.values()]
    assert [one["cut_off"] for one in roots] == [["w"], []]
    # One that ran tasks of it, and had sent nothing; the end says which workers these were.
    take(profiles, CutOff("u"), CutOff("runs", frozenset({99})))
    ran_on = frozenset(("w", "u", "v", "early"))
    take(profiles, Ended(ROOT, T - 9.0, T, ran_on), Ended(other, T - 9.0, T, frozenset("v")))
    assert [one["cut_off"] for one in roots] == [["w", "u"], ["runs"]]


# ------------------------------------------------------------------------------ files


@given(st.binary(max_size=300))
def test_a_broken_file_is_an_error_in_words(data: bytes) -> None:
    for wrong in (data, gzip.compress(data)):
        with pytest.raises(ValueError):
            decoded(wrong)
    with pytest.raises(ValueError, match="cut off"):
        decoded(encoded(Profile({"root": "s"}))[:-12])


def test_the_operator_decides_about_names() -> None:
    asked = []

    def redact(name: str, text: str) -> str | None:
        asked.append((name, text))
        return None if name == semconv.CODE_FILE_PATH else text.upper()

    profiles = Profiles(0.02, redact)
    secret = (Frame("fit"), Frame("main", "a.py", 1), Frame("train", "jobs/secret.py", 3, 7))
    take(profiles, batch([Sampled("b", secret, 2, 40_000)]), batch([Sampled("b", secret, 1, 1)]))
    (root,) = profiles.roots.values()
    data = encoded(root.profile)
    assert b"secret" not in gzip.decompress(data)
    read = decoded(data)
    (span,) = read.spans
    assert (read.about["root"], span.name) == ("WORKFLOW", "WORKFLOW/FIT")
    shown = (Frame("FIT"), Frame("MAIN", semconv.EMPTY, 1), Frame("TRAIN", semconv.EMPTY, 3, 7))
    assert span.stacks == {shown: 40_001}
    # Once for each frame; the tags of a span one by one, as everywhere.
    assert sorted(asked) == [
        (semconv.CODE_FILE_PATH, "a.py"),
        (semconv.CODE_FILE_PATH, "jobs/secret.py"),
        (semconv.CODE_FUNCTION_NAME, "main"),
        (semconv.CODE_FUNCTION_NAME, "train"),
        *[(semconv.SPAN_TAGS, one) for one in ("fit", "workflow", "workflow")],
        (semconv.TASK_PREFIX, "fit"),
    ]


def files(folder: Path, most: int = 10**9, samples: bool = True) -> tuple[ProfileFiles, Tally]:
    made, tally = ProfileFiles(folder, "run", most, Profiles(0.02), lambda _: samples), Tally()
    made.counted_by(tally)
    return made, tally


def of_root(number: int, samples: int = 2) -> tuple[Batch, Ended]:
    root = replace(ROOT, dask_id=f"r{number}", root_id=f"r{number}", span_id=number)
    one = Sampled(root.dask_id, stack("fit", "f"), samples, 20_000 * samples)
    return batch([one])._replace(spans=((root, root),)), Ended(root, T, T, frozenset())


def test_the_file_of_an_open_root_is_replaced_and_says_so(tmp_path: Path) -> None:
    made, tally = files(tmp_path / "new")
    begun, ended = of_root(1)
    path = tmp_path / "new" / "run-0000000000000001-profile.pb.gz"
    made.offer(begun)
    assert made.of(ended.root) == (path.name, 0.04)
    made.work()
    # Not due.
    assert not path.exists()
    made._due = 0.0
    made.work()
    first = decoded(path.read_bytes())
    assert (first.about["complete"], first.spans[0].stacks.total()) == (False, 40_000)
    assert path.stat().st_mode & 0o777 == 0o600
    made.offer(begun)
    made.offer(ended)
    made.work()
    second = decoded(path.read_bytes())
    assert (second.about["complete"], second.spans[0].stacks.total()) == (True, 80_000)
    assert [*path.parent.iterdir()] == [path]
    made.release()
    assert tally.since(Counter()) == {}


@pytest.mark.parametrize("samples", [True, False])
def test_the_oldest_file_goes_and_an_unsampled_trace_has_none(
    tmp_path: Path, samples: bool
) -> None:
    made, tally = files(tmp_path, most=800, samples=samples)
    # The first one is written again after the second.
    for number in (1, 2, 1, 3):
        begun, ended = of_root(number)
        made.offer(begun)
        made.offer(ended)
        assert (made.of(ended.root) is None) is not samples
        made.work()
    made.finish()
    made.release()
    names = {f"run-{number:016x}-profile.pb.gz" for number in (1, 3) if samples}
    assert ({one.name for one in tmp_path.iterdir()}, tally.since(Counter())) == (names, {})


def test_what_can_not_be_written_is_retried_and_counted_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.write_text("a file")
    made, tally = files(folder)
    for item in of_root(1, samples=7):
        made.offer(item)
    made.work()
    made.work()
    (said,) = caplog.messages
    assert "otel.files.path" in said
    folder.unlink()
    made.work()
    assert len([*folder.iterdir()]) == 1
    for item in of_root(2, samples=5):
        made.offer(item)
    made._folder = folder / "run-0000000000000001-profile.pb.gz"
    made.finish()
    made.release()
    made.abandon()
    assert tally.since(Counter()) == {(semconv.OTEL_DROPPED.name, "profiles", "shutdown"): 5}


def test_samples_that_come_while_a_file_is_written_are_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tally = files(tmp_path)
    begun, ended = of_root(1, samples=7)

    def slow(path: Path, data: bytes) -> None:
        made.offer(begun)
        made.of(ended.root)

    monkeypatch.setattr("dask_otel.pump.profile_files.replace", slow)
    made.offer(begun)
    made.finish()
    made.release()
    assert tally.since(Counter()) == {(semconv.OTEL_DROPPED.name, "profiles", "shutdown"): 7}


def test_two_exporters_that_give_up_on_it_at_once_count_each_sample_once(tmp_path: Path) -> None:
    made, tally = files(tmp_path)
    other = threading.Thread(target=made.abandon)

    class Root:
        left = 5

        @property
        def unwritten(self) -> int:
            found = self.left
            if other.ident is None:
                other.start()
                # It waits for its turn.
                other.join(0.1)
            return found

        @unwritten.setter
        def unwritten(self, value: int) -> None:
            self.left = value

    made._store.roots = {1: Root()}  # type: ignore[dict-item]
    made.abandon()
    other.join()
    assert tally.since(Counter()) == {(semconv.OTEL_DROPPED.name, "profiles", "shutdown"): 5}


def test_a_full_queue_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_otel.pump.profile_files._MOST_WAITING", 1000)
    made, _ = files(tmp_path)
    taken = [made.offer(of_root(1)[0]) for _ in range(10)].count(True)
    made.finish()
    (path,) = tmp_path.iterdir()
    assert decoded(path.read_bytes()).spans[0].stacks.total() == 40_000 * taken
    assert 0 < taken < 10


def test_a_span_says_how_much_of_it_was_sampled() -> None:
    activities = {"thread-cpu": 3.0, "thread-noncpu": 0.5, "mine": 0.25, "executor": 0.25}
    keys = (semconv.SPAN_PROFILE, semconv.SPAN_PROFILE_TIME, semconv.SPAN_PROFILE_COVERAGE)
    for of, computed, shown in (
        (lambda span: ("x.pb.gz", 3.0), 3.5, ["x.pb.gz", 3.0, 0.75]),
        # Some worker has closed before it reported all seconds to Dask.
        (lambda span: ("x.pb.gz", 7.5), 7.5, ["x.pb.gz", 7.5, 1.0]),
        # Nobody knows the seconds of others.
        (lambda span: ("x.pb.gz", 7.5), 6.5, ["x.pb.gz", 7.5, None]),
        (lambda span: ("x.pb.gz", 3.0), None, ["x.pb.gz", 3.0, None]),
        (lambda span: None, 3.5, [None] * 3),
        (None, 3.5, [None] * 3),
    ):
        finished = make_span(activities={**activities, "other": 9.0}, computed=computed)
        record, *_ = translate(finished, profile_of=of)
        assert [record.attributes.get(key) for key in keys] == shown


# ----------------------------------------------------------------------- the event loop


@pytest.mark.parametrize(
    ("pump", "reason"),
    [
        (None, "not_ready"),
        (SimpleNamespace(profiles=SimpleNamespace(offer=lambda item: False)), "queue_full"),
        (SimpleNamespace(profiles=SimpleNamespace(offer=lambda item: True)), None),
    ],
)
def test_samples_are_counted_that_can_not_be_handed_over(pump: Any, reason: str | None) -> None:
    dropped: list[Any] = []
    adapter = SimpleNamespace(batches=SimpleNamespace(open=SimpleNamespace(
        add=lambda name, signal, reason, value: dropped.append((signal, reason, value))
    )))  # fmt: skip
    made: Any = SimpleNamespace(_pump=pump, _adapter=adapter)
    assert HandOver.profile(made, batch([ONE], left_out=3)) == (reason is None)
    assert dropped == ([] if reason is None else [("profiles", reason, 5)])


def reader(missed: int = 0) -> tuple[WorkerProfiles, list[Any]]:
    root = SimpleNamespace(identity=ROOT)
    root.root = root
    found: list[Any] = []
    broker = SimpleNamespace(truncate={stacks.TOPIC: None}.__getitem__)
    scheduler: Any = SimpleNamespace(_broker=broker, workers={"w": None})
    child = SimpleNamespace(identity=CHILD, root=root)
    lifecycle: Any = SimpleNamespace(open={"root": root, "b": child})

    def take(item: Any) -> bool:
        # The first ones have no room.
        found.append(item)
        return len(found) > missed

    return WorkerProfiles(scheduler, lifecycle, take), found


def message(**changes: Any) -> dict[str, Any]:
    (sent,) = packed([ONE, ONE._replace(span="root"), ONE._replace(span="gone")], 1)
    return {**sent, stacks.LEFT_OUT: 1, stacks.LAST: False, "worker": "w", **changes}


def test_messages_pass_with_their_open_spans_and_a_good_bye_is_no_cut() -> None:
    profiles, found = reader()
    profiles.read(message())
    profiles.read(message(**{stacks.LAST: True, stacks.SAMPLES: 0, stacks.LEFT_OUT: 0}))
    # The next one with this address has not said it.
    for _ in range(2):
        profiles.worker_removed("w")
    one, cut_off = found
    assert one.spans == ((CHILD, ROOT), (ROOT, ROOT), None)
    assert (one.ids, one.samples, one.left_out) == (("b", "root", "gone"), 6, 1)
    assert cut_off == CutOff("w")


def test_samples_of_a_span_that_has_ended_have_their_place_while_its_root_is_open() -> None:
    profiles, found = reader()
    open_spans: Any = profiles._open
    for gone, place in (("b", (CHILD, ROOT)), ("root", None)):
        profiles.span_exported(open_spans.pop(gone))
        profiles.read(message())
        assert found.pop().spans[0] == place
    # A continuation of the root has another identity.
    open_spans["root"] = SimpleNamespace(identity=CHILD)
    open_spans["root"].root = open_spans["root"]
    profiles.read(message())
    assert found.pop().spans[0] is None
    for number in range(stacks.MOST_SPANS):
        span: Any = SimpleNamespace(identity=replace(CHILD, dask_id=f"{number}"))
        span.root = span
        profiles.span_exported(span)
    assert (len(profiles._ended), "b" in profiles._ended) == (stacks.MOST_SPANS, False)


def test_samples_without_room_in_the_queue_are_missing_in_the_profile_of_their_root() -> None:
    profiles, found = reader(missed=2)
    for _ in range(4):
        profiles.read(message())
    store = Profiles(0.02)
    take(store, *found[2:])
    # Two are of the messages that came.
    assert store.roots[ROOT.span_id].profile.about["left_out"] == 14 + 2


def test_a_close_names_the_workers_that_run_tasks_and_have_not_said_good_bye() -> None:
    profiles, found = reader()
    of_span = SimpleNamespace(group=SimpleNamespace(span_id="b"))
    for name, tasks in {"w": [of_span], "runs": [of_span] * 2, "idle": []}.items():
        profiles._scheduler.workers[name] = SimpleNamespace(processing=tasks)  # type: ignore[assignment]
    profiles.read(message(**{stacks.LAST: True, stacks.SAMPLES: 0, stacks.LEFT_OUT: 0}))
    assert profiles.silent == {"runs", "idle"}
    profiles.close()
    assert found == [CutOff("runs", frozenset({ROOT.span_id}))]


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": "nobody"}, {stacks.BLOB: "text"}, {stacks.BLOB: b"x" * 40_000},
        {stacks.SPANS: [3]}, {stacks.SPANS: "ab"}, {stacks.SPANS: ["a"] * 1001},
        {stacks.SAMPLES: -1}, {stacks.LEFT_OUT: -1}, {stacks.LEFT_OUT: None},
    ],
)  # fmt: skip
def test_messages_of_others_are_ignored(wrong: dict[str, Any]) -> None:
    profiles, found = reader()
    for one in (message(**wrong), [message()], None, "text"):
        profiles.read(one)
    assert found == []


# ------------------------------------------------------------------------------ workers


class Worker:
    """A worker with threads that wait, and the messages that it sends."""

    def __init__(self) -> None:
        self.active_threads: dict[int, str] = {}
        self.active_keys = set[str]()
        self.thread_id = threading.get_ident()
        self._async_instructions = set[asyncio.Task[Any]]()
        self.state = SimpleNamespace(tasks={})
        self.sent: list[Sampled] = []
        self.last: list[tuple[bool, int]] = []

    def log_event(self, topic: str, sent: dict[str, Any]) -> None:
        assert topic == stacks.TOPIC
        self.sent += unpacked(sent[stacks.BLOB], sent[stacks.SPANS])
        self.last.append((sent[stacks.LAST], sent[stacks.LEFT_OUT]))


def runs(
    worker: Worker, key: str, span: str | None, depth: int, ended: threading.Event, ago: float = 0.0
) -> None:
    """Run a task that calls itself, in a thread, until an event."""
    deep = threading.Event()

    def recurse(left: int) -> None:
        if left:
            recurse(left - 1)
        else:
            deep.set()
            ended.wait()

    thread: Any = threading.Thread(target=recurse, args=(depth,), daemon=True)
    thread.start()
    deep.wait()
    worker.active_threads[thread.ident] = key
    worker.state.tasks[key] = SimpleNamespace(
        span_id=span, prefix=key.partition("-")[0], start_time=time() - ago
    )


def test_a_sample_stands_for_the_time_since_the_one_before() -> None:
    worker, ended = Worker(), threading.Event()
    sampler = Sampler(worker, 0.02)  # type: ignore[arg-type]
    at = sampler._at
    runs(worker, "fit-1", "a", 3, ended, ago=99.0)
    runs(worker, "other-1", None, 3, ended, ago=99.0)
    sampler._sample(at + 5.0)
    runs(worker, "load-1", "b", 200, ended)
    # For no more than it has run, but for an interval of samples.
    sampler._sample(at + 7.0)
    sampler._sample(at + 7.01)
    assert not worker.sent
    sampler.stop()
    ended.set()
    fit, load = sorted(worker.sent, key=lambda one: one.span)
    assert (fit.span, fit.stack[0].function, fit.samples) == ("a", "fit", 3)
    assert (load.span, load.stack[0].function, load.samples) == ("b", "load", 2)
    assert fit.micros == pytest.approx(7_010_000)
    assert 30_000 - 1 <= load.micros < 2_010_000
    assert worker.last == [(True, 0)]
    names = [frame.function.rpartition(".")[2] for frame in fit.stack]
    assert [one for one in names if one != "wait"][-4:] == ["recurse"] * 4
    assert "recurse" not in names[names.index("wait") :]
    assert load.stack[1] == DEEPER
    assert len(load.stack) == stacks.DEEPEST + 1


async def _awaits(inner: Awaitable[None]) -> None:
    await inner


async def _spins(sampler: Sampler, now: float) -> None:
    sampler._sample(now)


def test_asynchronous_tasks_are_sampled_where_they_run_or_wait() -> None:
    worker = Worker()
    sampler = Sampler(worker, 0.02)  # type: ignore[arg-type]
    at = sampler._at

    def begins(key: str, coroutine: Any) -> asyncio.Task[Any]:
        worker.active_keys.add(key)
        worker.state.tasks[key] = SimpleNamespace(
            span_id=f"span-{key}", prefix=key, start_time=time() - 99.0
        )
        begun = asyncio.create_task(coroutine, name=f"execute({key!r})")
        worker._async_instructions.add(begun)
        return begun

    def run(coroutine: Any) -> Any:
        return dask_worker._run_task_async(lambda _: coroutine, {}, 0.0)  # type: ignore[arg-type]

    async def main() -> None:
        ended = asyncio.Event()
        others = [
            begins("thread", _awaits(ended.wait())),
            begins("waits", run(_awaits(ended.wait()))),
        ]
        await asyncio.sleep(0)
        # Nothing has a thread, and the first has not begun its code.
        sampler._sample(at + 1.0)
        await begins("spins", run(_awaits(_spins(sampler, at + 3.0))))
        # That has ended, though Dask does not know yet.
        sampler._sample(at + 3.5)
        ended.set()
        await asyncio.gather(*others)

    asyncio.run(main())
    sampler.stop()
    ours = Counter[Any]()
    for one in worker.sent:
        code = [
            frame
            for frame in one.stack
            if frame.file in ("unit/test_profiles.py", "asyncio/locks.py")
        ]
        names = [frame.function.rpartition(".")[2] for frame in code]
        ours[(one.span, *names)] += one.micros
    assert ours == {
        ("span-waits", "_awaits", "wait"): 3_500_000,
        ("span-spins", "_awaits", "_spins"): 2_000_000,
    }


#: Garbage that waits for the interpreter's list of threads, and is found after some new frames.
COLLECTS_GARBAGE = """
import gc, sys, threading
from dask_otel._frames import reading_frames

class Local(threading.local):
    pass

begun, ended = threading.Barrier(41), threading.Event()
def run():
    begun.wait()
    ended.wait()
for _ in range(40):
    threading.Thread(target=run, daemon=True).start()
begun.wait()
gc.collect()
gc.disable()
local = Local()
local.itself = local
gc.collect(0)
del local
gc.set_threshold(1, 2, 1000)
gc.enable()
with reading_frames:
    assert len(sys._current_frames()) == 41
assert gc.isenabled()
gc.disable()
with reading_frames:
    assert len(sys._current_frames()) == 41
assert not gc.isenabled()
"""

#: A collection of garbage that lets the other thread go on, while a new frame of it is made.
RETURNS_MEANWHILE = """
import gc, sys, threading
from dask_otel._frames import reading_frames

deep, ended, gone = threading.Event(), threading.Event(), threading.Event()
def run(left):
    if left:
        return run(left - 1)
    deep.set()
    ended.wait()
def other(left):
    a = b = c = d = {"left": left}
    if left:
        return other(left - 1)
    gone.set()
    threading.Event().wait()
def runs():
    run(60)
    other(60)
thread = threading.Thread(target=runs, daemon=True)
thread.start()
deep.wait()
def collects(phase, about):
    ended.set()
    gone.wait()
gc.collect()
gc.callbacks.append(collects)
gc.set_threshold(20)
names = []
with reading_frames:
    frame = sys._current_frames()[thread.ident]
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
# At the end of the process, which collects garbage, the other thread does not go on.
gc.callbacks.remove(collects)
assert names.count("run") == 62
"""


#: A task may fork meanwhile.
FORKS = """
import gc, os, threading
from dask_otel._frames import reading_frames

holds, forked = threading.Event(), threading.Event()

def read():
    with reading_frames:
        holds.set()
        forked.wait()

threading.Thread(target=read).start()
holds.wait()
child = os.fork()
if child == 0:
    os._exit(not gc.isenabled())
forked.set()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("program", [COLLECTS_GARBAGE, RETURNS_MEANWHILE, FORKS])
def test_frames_of_threads_while_garbage_is_to_be_collected(program: str) -> None:
    # Python before 3.11.9 hangs forever, and any 3.11 crashes.
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_loop_is_sampled_after_a_moment_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        with pytest.raises(RuntimeError, match="new thread"):
            asyncio.run(loops.loop_stacks(0.0))
    assert asyncio.run(loops.loop_stacks(0.0)) is not None


#: A function with two lines that call the next one; the innermost one counts a sample.
CALLS = """
def call(line, first, *rest):
    if line:
        first(line, *rest)
    else:
        first(line, *rest)
"""


@given(
    st.lists(
        st.tuples(
            st.tuples(st.sampled_from("ab"), st.sampled_from(["fit", "load"])),
            st.booleans(),
            st.text("xyz", min_size=1, max_size=4),
            st.text("xyz", max_size=2),
        ),
        max_size=30,
    ),
    st.booleans(),
    st.sampled_from([1, 10, 4096]),
)
def test_stacks_that_resemble_the_one_before_are_not_mixed_up(
    samples: list[tuple[tuple[str, str], bool, str, str]], is_based: bool, at_once: int
) -> None:
    functions = dict[str, Any]()
    for name in "bxyz":
        names = dict[str, Any]()
        exec(compile(CALLS, f"/a/site-packages/{name}.py", "exec"), names)
        functions[name] = names["call"]
    base = functions["b"].__code__
    # Equal code of several files, which only its address tells apart.
    assert base == functions["x"].__code__ is not base
    counted, done = Stacks([base] if is_based else [], at_once), threading.Lock()
    done.acquire()
    half = len(samples) // 2
    for some in (samples[:half], samples[half:]):
        wanted, found = Counter[Any](), Counter[Any]()
        for task, line, path, outside in some:

            def counts(_: bool, task: tuple[str, str] = task) -> None:
                try:
                    counted.add(task, sys._getframe(1), 0.25)
                finally:
                    done.release()

            whole = f"{outside}b{path}" if is_based else path
            first, *rest = map(functions.__getitem__, whole)
            # Without the frames of `threading`, which would tell all stacks apart.
            _thread.start_new_thread(first, (line, *rest, counts))
            done.acquire()
            wanted[(*task, path, 4 if line else 6)] += 1
        for span, (prefix, *frames), number, micros in counted.take():
            ours = "".join(one.file[0] for one in frames)
            found[span, prefix.function, ours, frames[-1].at] += number
            assert micros == 250_000 * number
        assert found == wanted


def pauses_after(monkeypatch: pytest.MonkeyPatch, costs: Sequence[float]) -> list[float]:
    """Return the pauses of a sampler whose samples take these seconds of CPU."""
    pauses, clock = list[float](), [*accumulate(costs, initial=7.0)]
    monkeypatch.setattr(sampling, "monotonic", lambda: sum(pauses))
    monkeypatch.setattr(sampling, "thread_time", lambda: clock[len(pauses)])
    sampler = Sampler(Worker(), 0.02)  # type: ignore[arg-type]

    def sleeps(seconds: float) -> None:
        pauses.append(seconds)
        sampler._stopped = len(pauses) == len(costs)

    monkeypatch.setattr(sampling, "sleep", sleeps)
    sampler._run()
    return pauses


def test_samples_that_take_long_are_taken_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    # At 50 Hz: cheap ones, and the limit of five a second.
    assert pauses_after(monkeypatch, [0.0001] * 50) == [0.02] * 50
    assert pauses_after(monkeypatch, [0.01] * 200)[-100:] == pytest.approx([0.2] * 100)
    for cost in (0.0002, 0.0005):
        costs = [cost] * 400
        # Each 8 s samples are sent, which takes some milliseconds.
        costs[50::100] = [0.005] * len(costs[50::100])
        pauses = pauses_after(monkeypatch, costs)
        assert max(pauses) < 0.2
        # The first samples come before their cost is known.
        assert sum(costs[100:]) / sum(pauses[100:]) == pytest.approx(0.005, rel=0.01)
    assert pauses_after(monkeypatch, [0.01, *[0.00001] * 200])[-1] == 0.02


def test_samples_are_sent_at_the_end_of_a_span_but_not_often() -> None:
    worker, ended = Worker(), threading.Event()
    sampler = Sampler(worker, 0.02)  # type: ignore[arg-type]
    at = sampler._at
    sent = []
    for number in range(100):
        runs(worker, f"fit-{number}", f"span-{number}", 1, ended)
        for now in (0.0, 0.3, 0.6):
            sampler._sample(at + 0.7 * number + now)
            worker.active_threads.clear()
        sent.append(len(worker.last))
    ended.set()
    # Some at once, then one a second.
    assert sent[:4] == [1, 2, 3, 4]
    assert 69 <= sent[-1] <= 73
    sampler.stop()
    assert sum(one.samples for one in worker.sent) == 100
