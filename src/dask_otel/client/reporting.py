"""In the client: a report of a block of the program, from what its scheduler kept in memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

from dask_otel import _wire
from dask_otel._log import logger
from dask_otel.client.asking import ask, check_open, pending
from dask_otel.client.blocks import span
from dask_otel.core.text import Sanitizer, attribute_text
from dask_otel.report.words import one_line

if TYPE_CHECKING:
    from distributed import Client

    from dask_otel.report.document import Report

#: Seconds for the block's span to settle at its end; and if the program was interrupted.
_TIMEOUT, _HURRY = 10.0, 1.0
#: Bytes of one answer; most characters of an exception's message.
_CHUNK, _LONGEST = 2**21, 500


class performance_report:
    """Write a page that says where the time of the block went; a drop-in for Dask's.

    It only needs ``dask-otel`` where the scheduler runs. If the scheduler has no bridge, one is
    started for the block, sends nothing anywhere, and is removed after it. The block is a span of
    its own, named after the file. If others work on the same cluster, the page shows that, too, and
    marks the block's own spans. At its end, the block waits until its work is done and measured, 10
    seconds at most; work that goes on is shown as still open.

    Use it with ``with``, or with ``async with`` for an asynchronous client. An exception in the
    block is the headline of the report, and is raised as usual. If the report can't be made, a
    warning is logged, and the block is not affected.

    Parameters
    ----------
    filename
        The page's path, or an address that fsspec opens; None for `report` alone.
    stacklevel, mode
        As in Dask, but without effect: the report names the lines that submitted each span, and the
        page is always a single file.
    storage_options
        As in Dask: options of ``fsspec.open``.
    client
        By default, the current one.

    Attributes
    ----------
    report
        The `Report` after the block; None if it could not be made.

    Examples
    --------
    >>> with dask_otel.performance_report(None) as block:
    ...     client.submit(sum, [1, 2]).result()
    3
    >>> block.report.accounts()[0].failures
    []
    """

    def __init__(
        self,
        filename: str | Path | None = "dask-report.html",
        stacklevel: int = 1,  # noqa: ARG002
        mode: str | None = None,  # noqa: ARG002
        storage_options: dict[str, Any] | None = None,
        *,
        client: Client | None = None,
    ) -> None:
        self.filename = None if filename is None else str(filename)
        self.report: Report | None = None
        self._options = storage_options or {}
        self._client: Any = client
        self._request = uuid4().hex
        self._name = Path(self.filename or "performance_report").stem
        self._span = ExitStack()
        #: Why its work is not done at its end, and the next step; None if it is done.
        self._waits: tuple[str, str] | None = None
        #: The headline in lines of text, and the page's place once it is there.
        self._said, self._place = ["no report"], ""

    def __enter__(self) -> performance_report:
        with self._guarded():
            self._enter(self._begin(asynchronous=False))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._guarded():
            if self._leave():
                check_open(self._client)
                error = _failure(error)
                self._make(self._client.sync(self._read, error), error)
                self._show()

    async def __aenter__(self) -> performance_report:
        with self._guarded():
            self._enter(await self._begin(asynchronous=True))
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._guarded():
            if self._leave():
                error = _failure(error)
                await asyncio.to_thread(self._make, await self._read(error), error)
                self._show()

    def _begin(self, asynchronous: bool) -> Any:
        """Begin to record; return the answer, or with an asynchronous client an awaitable of it."""
        from distributed import Client

        # Nothing is left of an earlier block. Without the span's id, nothing has begun.
        self.report, self._span_id, self._waits = None, "", None
        self._said, self._place = ["no report"], ""
        client = self._client = self._client or Client.current()
        if client.asynchronous != asynchronous:
            raise RuntimeError("use `async with` with an asynchronous client, else `with`")
        return client.sync(ask, client, _wire.record, name=self._request, owner=client.id)

    def _enter(self, answer: _wire.Recorded) -> None:
        # The number of the last row before the block, and its time.
        self._begun = answer
        # It notifies the scheduler of the client that is current now.
        with self._client.as_current():
            self._span_id = str(self._span.enter_context(span(self._name)))

    def _leave(self) -> bool:
        """Leave the span; return whether there was one."""
        # In a generator, the block can end in another context, which Dask's span does not expect.
        with suppress(ValueError):
            self._span.close()
        return bool(self._span_id)

    async def _read(self, error: BaseException | None) -> _wire.Recorded:
        """Return all rows of the block."""
        client, read = self._client, replace(self._begun, more=True)
        seconds = _TIMEOUT if error is None or isinstance(error, Exception) else _HURRY
        asked: dict[str, Any] = {
            "since": read.number,
            "most": _CHUNK,
            "settle": (self._span_id, seconds, pending(client)),
        }
        while read.more:
            answer = await ask(client, _wire.read_record, after=read.number, **asked)
            asked["until"] = answer.until
            read = replace(answer, rows=read.rows + answer.rows)
        with suppress(Exception):
            # The span, then tasks that hold it up.
            own, task, *_ = (await ask(client, _wire.why, asked=(self._span_id,))).reasons
            if own.kind == "unfinished":
                self._waits = f"{task.name}: {task.what}", task.next_step
        await self._end()
        return read

    async def _end(self) -> None:
        with suppress(Exception):
            await ask(self._client, _wire.end_record, name=self._request)

    def _make(self, read: _wire.Recorded, error: BaseException | None) -> None:
        from dask_otel.report.document import report_of
        from dask_otel.report.telemetry.model import Block

        message = " ".join(attribute_text(error, Sanitizer(), _LONGEST).split())
        ended = None if error is None else (type(error).__name__, message)
        self.report = report_of(
            read.rows,
            read.lost,
            Block(self._name, self._span_id, ended, self._begun.time, self._waits),
        )
        for account in self.report.accounts():
            first = account.diagnoses[0]
            self._said = [one_line(one) for one in (first.title, first.evidence, first.next) if one]
        if self.filename is not None:
            import fsspec

            page = self.report.html()
            try:
                with fsspec.open(self.filename, "w", compression="infer", **self._options) as file:
                    file.write(page)
            except NotImplementedError as error:
                raise OSError(f"fsspec can't write to {self.filename}") from error
            self._place = self.filename

    # ------------------------------------------------------------------------ its headline

    def __repr__(self) -> str:
        return "\n  ".join([*self._said, *filter(None, [self._place])])

    def _repr_html_(self) -> str:
        path = self._place
        name = escape(path)
        if path and "://" not in path and path[0] != "~" and not Path(path).is_absolute():
            # Relative to the notebook; its server knows no other files.
            name = f'<a href="{quote(path)}" target="_blank">{name}</a>'
        headline, *others = map(escape, self._said)
        return "<br>".join([f"<b>{headline}</b>", *others, name])

    def _show(self) -> None:
        """Show it in the notebook or the terminal, with the page's place."""
        if self.filename is None:
            return
        ipython = sys.modules.get("IPython")
        if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
            ipython.display.display(self)
        else:
            print(self, file=sys.stderr)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Log an error of ours: nothing of it may reach the block, or hide its exception.

        Interrupted or not, the scheduler records no longer.
        """
        try:
            yield
        except BaseException as error:
            with suppress(Exception):
                self._client.loop.add_callback(self._end)
            if not isinstance(error, Exception):
                raise
            logger.warning(
                "dask_otel.performance_report can't %s this block, which is not affected: %s",
                "report" if self.report is None else "make the page of",
                " ".join(str(error).split()) or repr(error),
            )
            if self.report is not None:
                self._show()


def _failure(error: BaseException | None) -> BaseException | None:
    """Return what ended a block; None for the plain end of a program, or of a generator."""
    if isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and not error.code):
        return None
    return error
