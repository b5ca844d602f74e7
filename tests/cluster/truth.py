"""What Dask itself says of its spans, to compare exports with."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from distributed import Client

from tests.receiver import Receiver, Span

#: Units of the fine performance metrics, and the end of the metric's name.
UNITS = {"seconds": "time", "bytes": "io", "count": "operations"}


#: The two sides of the closed sum.
CLOSED = {
    "dask.cluster.time",
    "dask.cluster.inflight.time",
    "dask.cluster.capacity.time",
    "dask.cluster.excess.time",
}


def own_values(dask_scheduler: Any) -> dict[tuple[Any, ...], float]:
    """Return every span's own metrics, summed by name: {(tags, context, …): value}.

    Runs on the scheduler (``Client.run_on_scheduler``).
    """
    values: dict[tuple[Any, ...], float] = {}
    for span in dask_scheduler.extensions["spans"].spans.values():
        for key, value in span._cumulative_worker_metrics.items():
            named = (span.name, *key)
            values[named] = values.get(named, 0) + value
    return values


def described_spans(dask_scheduler: Any) -> dict[str, dict[str, Any]]:
    """Return what Dask says of each span, by its id."""
    return {
        span.id: {
            "name": span.name,
            "parent": span.parent.id if span.parent else None,
            "enqueued": span.enqueued,
            "stop": span.stop,
            "done": span.done,
            "tasks": sum(span.states.values()),
            "nbytes": span.nbytes_total,
            "active_cpu": span.active_cpu_seconds,
            "durations": span.all_durations,
        }
        for span in dask_scheduler.extensions["spans"].spans.values()
    }


def exported_values(received: Receiver) -> dict[tuple[Any, ...], float]:
    """Return the last value of every exported fine metric, with the keys of `own_values`.

    A span name stands as its text; see `text_keys`.
    """
    values: dict[tuple[Any, ...], float] = {}
    contexts = {"execute": "dask.task.prefix", "p2p": "dask.p2p.stage"}
    for metric, context, unit in [
        *((f"dask.span.{of}.{UNITS[unit]}", of, unit) for of in contexts for unit in UNITS),
        ("dask.span.custom", "execute", None),
    ]:
        names = ("dask.span.name", contexts[context], "dask.activity")
        for labels, value in received.last(metric).items():
            of = dict(labels)
            name, second, activity = (of[label] for label in names)
            values[name, context, second, activity, unit or of["dask.unit"]] = value
    return values


def text_keys(values: dict[tuple[Any, ...], float]) -> dict[tuple[Any, ...], float]:
    """Return Dask's own values under the texts that are exported."""
    texts: dict[tuple[Any, ...], float] = defaultdict(float)
    for (tags, context, *rest), value in values.items():
        key = ("/".join(map(str, tags)), context, *map(str, rest))
        texts[key] += value
    return dict(texts)


def assert_same(exported: dict[Any, float], known: dict[Any, float]) -> None:
    """Compare numbers key by key, but for the order in which they were added up."""
    wrong = exported.keys() ^ known.keys()
    assert not wrong, f"{len(wrong)} keys of one side alone, such as {sorted(wrong, key=repr)[:3]}"
    for key, value in known.items():
        assert abs(exported[key] - value) <= 1e-9 * max(1.0, abs(value)), (
            key,
            exported[key],
            value,
        )


def assert_reconciled(received: Receiver, truth: dict[tuple[Any, ...], float]) -> None:
    """Check every exported fine metric against Dask's own, key by key."""
    assert_same(exported_values(received), text_keys(truth))


def is_settled(received: Receiver, client: Client) -> bool:
    """Assert that everything that Dask knows has been exported."""
    assert_reconciled(received, client.run_on_scheduler(own_values))
    generations = [(s.attributes.get("dask.span.generation"), s) for s in received.spans]
    exported = {s.attributes["dask.span.id"] for generation, s in generations if generation == 1}
    assert exported == set(client.run_on_scheduler(described_spans))
    return True


def assert_closed(received: Receiver, cut: bool = False) -> None:
    """Check at every export: where the time went, and what is in flight, is what there was.

    If the collector had faults that can have `cut` exports in two, only the newest one is compared.
    """
    sums: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for point in received.points:
        at = sums[point.time_ns]
        at[point.metric] += point.value if point.metric in CLOSED else 0.0
        if point.metric == "dask.cluster.time" and point.attributes["dask.activity"] == "idle":
            at["idle"] = point.value
        if point.metric == "dask.span.idle.time":
            at["span idle"] += point.value
    exports = [at for _, at in sorted(sums.items()) if "dask.cluster.inflight.time" in at]
    assert exports, "no export had the thread-seconds of the cluster"
    for at in exports[-1:] if cut else exports:
        went = at["dask.cluster.time"] + at["dask.cluster.inflight.time"]
        there = at["dask.cluster.capacity.time"] + at["dask.cluster.excess.time"]
        assert abs(went - there) <= 1e-6 * max(1.0, there), at
        assert at["dask.cluster.inflight.time"] >= 0
        assert abs(at["span idle"] - at["idle"]) <= 1e-6 * max(1.0, at["idle"]), at


def assert_monotone(received: Receiver) -> None:
    """Check that no counter went back, and that no two points of a series share a time."""
    last: dict[Any, Any] = {}
    for point in received.points:
        before = last.get(point.series)
        if before is not None:
            assert point.time_ns > before.time_ns, ("not later", point, before)
            if point.monotonic:
                assert point.value >= before.value, ("less", point, before)
        last[point.series] = point


def tree(spans: list[Span], types: tuple[str, ...] = ("span",)) -> str:
    """Return received spans as an indented tree of names and results, as a person sees them."""
    shown = [span for span in spans if span.type in types]
    ids = {span.span_id for span in shown}
    children = defaultdict(list)
    for span in sorted(shown, key=lambda s: (s.start_ns, s.name)):
        children[span.parent_id if span.parent_id in ids else None].append(span)
    lines: list[str] = []

    def visit(parent: int | None, depth: int) -> None:
        for span in children[parent]:
            result = span.attributes.get("dask.span.result", "")
            generation = span.attributes.get("dask.span.generation", 1)
            mark = f" #{generation}" if generation != 1 else ""
            lines.append(f"{'  ' * depth}{span.name}{mark} {result}".rstrip())
            visit(span.span_id, depth + 1)

    visit(None, 0)
    return "\n".join(lines)
