"""OTLP/JSON: export requests as lines of text, as the Collector's otlpjsonfile receiver reads them.

Protobuf's own JSON mapping with the two deviations of OTLP/JSON
(https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): trace and span ids are
hexadecimal and not base64, enums are integers and not names.

Each line is a whole request of one resource and one scope, of at most a megabyte if its items
allow that, because readers have limits: the Collector's is 1 MiB. It begins with the items: the
Collector identifies a file by its first thousand bytes, and the resource is the same in all files.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from dask_otel._otel.sdk.transport import REQUESTS, words_of
from dask_otel.core.records import Answer
from dask_otel.pump.breath import Breath
from dask_otel.pump.parts import parts
from dask_otel.pump.recorder import Recorder

#: Characters (ASCII, so bytes) of a line, unless a single item is longer.
LONGEST_LINE: Final = 1_000_000
#: Characters of a metric's data points in one piece.
_LONGEST_PIECE: Final = 250_000

#: The bytes fields that OTLP/JSON writes in hexadecimal; all others stay base64.
_ID_FIELDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})


def lines(request: Any, breathe: Callable[[], None]) -> Iterator[str]:
    """Yield a request as OTLP/JSON, in lines without line ends.

    Parameters
    ----------
    request
        An ``ExportTraceServiceRequest``, or that of another signal.
    breathe
        Called before each item.
    """
    (resources,) = request.DESCRIPTOR.fields
    for resource in getattr(request, resources.name):
        scopes = resource.DESCRIPTOR.fields_by_number[2]
        for scope in getattr(resource, scopes.name):
            items = scope.DESCRIPTOR.fields_by_number[2]
            written = _metrics if items.name == "metrics" else _items
            outer, middle, inner = (field.json_name for field in (resources, scopes, items))
            head = f'{{"{outer}":[{{"{middle}":[{{"{inner}":['
            tail = (
                f'],"scope":{_json(scope.scope)},"schemaUrl":{_text(scope.schema_url)}}}],'
                f'"resource":{_json(resource.resource)},'
                f'"schemaUrl":{_text(resource.schema_url)}}}]}}'
            )
            items = written(getattr(scope, items.name), breathe)
            for part in _parts(items, LONGEST_LINE - len(head) - len(tail)):
                yield head + part + tail


def _metrics(metrics: Iterable[Any], breathe: Callable[[], None]) -> Iterator[str]:
    """Yield metrics; split one with many data points."""
    for metric in metrics:
        kind = metric.WhichOneof("data")
        data = getattr(metric, kind)
        fields = {"name": metric.name, "description": metric.description, "unit": metric.unit}
        known = data.DESCRIPTOR.fields_by_name
        about = {
            known[name].json_name: getattr(data, name)
            for name in ("aggregation_temporality", "is_monotonic")
            if name in known
        }
        head = f'{_open(fields)}"{kind}":{_open(about)}"dataPoints":['
        for part in _parts(_items(data.data_points, breathe), _LONGEST_PIECE):
            yield f"{head}{part}]}}}}"


def _items(messages: Iterable[Any], breathe: Callable[[], None]) -> Iterator[str]:
    for message in messages:
        breathe()
        yield _json(message)


def _parts(items: Iterable[str], longest: int) -> Iterator[str]:
    """Return items, separated by commas, in parts of at most `longest` characters."""
    return map(",".join, parts(items, longest, lambda item: len(item) + 1))


def _open(fields: dict[str, Any]) -> str:
    """Return an object as JSON, still open for one more field."""
    text = _text(fields)[:-1]
    return f"{text}," if fields else text


def _json(message: Any) -> str:
    """Return a message as JSON, with all ids in hexadecimal, also in links and exemplars."""
    fields = MessageToDict(message, use_integers_for_enums=True)
    for holder in (fields, *fields.get("links", ()), *fields.get("exemplars", ())):
        for name in _ID_FIELDS & holder.keys():
            holder[name] = base64.b64decode(holder[name]).hex()
    return _text(fields)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# ------------------------------------------------------------------------------ transport


class FileTransport:
    """Writes the requests of one signal into files. Used by one thread.

    Parameters
    ----------
    signal
        ``"traces"``, ``"metrics"`` or ``"logs"``.
    write, close
        Take some lines, all or none of them, and end the file.
    """

    def __init__(
        self,
        signal: str,
        write: Callable[[Sequence[bytes]], None],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._message = REQUESTS[signal]
        self._write, self.close = write, close
        self._breathe = Breath()

    def send(self, request: bytes, _longest: float) -> Answer:
        """Write the whole request or nothing."""
        written = lines(self._message.FromString(request), self._breathe)
        try:
            self._write([line.encode() for line in written])
        except OSError as error:
            return Answer(False, words_of(error))
        return Answer(True)


class RecorderTransport:
    """Keeps the requests of one signal in memory, the spans of each trace apart. For one thread."""

    def __init__(self, signal: str, recorder: Recorder) -> None:
        self._signal, self._recorder = signal, recorder
        self._breathe = Breath()

    def send(self, request: bytes, _longest: float) -> Answer:
        """Keep the whole request."""
        whole, part = (REQUESTS[self._signal].FromString(request) for _ in range(2))
        for unit in _traces(whole, part) if self._signal == "traces" else [("", 0)]:
            written = "".join(f"{line}\n" for line in lines(part, self._breathe))
            self._recorder.add(self._signal, gzip.compress(written.encode(), 1), *unit)
        return Answer(True)

    def close(self) -> None:
        """Leave the rows to their readers."""


def _traces(whole: Any, part: Any) -> Iterator[tuple[str, int]]:
    """Yield the ids of the traces in a request of ours, while its copy has that one alone.

    And the start of the first span of each.
    """
    spans, place = (one.resource_spans[0].scope_spans[0].spans for one in (whole, part))
    trace_of = attrgetter("trace_id")
    for trace, own in groupby(sorted(spans, key=trace_of), trace_of):
        del place[:]
        place.extend(own)
        yield trace.hex(), min(span.start_time_unix_nano for span in place)


def print_lines(lines: Sequence[bytes]) -> None:
    """Print some lines, in place of a file."""
    for line in lines:
        print(line.decode(), flush=True)
