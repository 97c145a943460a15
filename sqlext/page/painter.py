"""Asks for charts: what is drawn, of a snapshot, and the process that draws it (`paint.py`)."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from sqlext.errors import SetupError, SqlextError, WaitTimeoutError
from sqlext.page.snapshot import FlushView, JobDetail

logger = logging.getLogger(__name__)

WIDTHS: Mapping[str, int] = {"wide": 720, "narrow": 330}
"""In pixels: a phone gets charts of its own, or their text would shrink."""
_PAINT = Path(__file__).with_name("paint.py")
_SECONDS = 60.0
"""To draw one chart; the first one takes five, on a machine with little else to do."""
_KEPT = 64
_MOST_BYTES = 16 * 1024**2


def flushes_chart(flow: str, flushes: Sequence[FlushView]) -> dict[str, Any]:
    """The request for a flow's last flushes."""
    rows = [
        {
            "version": flush.version,
            "buffered": flush.buffered,
            "changed": flush.changed,
            "seconds": flush.seconds,
            "micro_batches": flush.micro_batches,
        }
        for flush in flushes
    ]
    return {"kind": "flushes", "title": f"Rows, seconds and micro-batches of the last flushes of {flow}", "rows": rows}


def timeline_chart(job: JobDetail) -> dict[str, Any]:
    """The request for a job's vertices over time."""
    rows = [
        {"vertex": span.vertex, "start": span.start, "end": span.end, "parts": span.parts, "is_skipped": span.is_skipped}
        for span in job.spans
    ]
    return {"kind": "timeline", "title": f"When the vertices of job {job.summary.id} ran", "rows": rows}


class Painter:
    """A process that draws, started when something is to be drawn. Any thread may call any method; the lock makes those who draw
    take turns, and guards what was drawn before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._drawn: OrderedDict[str, str] = OrderedDict()
        self._is_closed = False

    def svg(self, request: Mapping[str, Any], width: int) -> str:
        """Draw a chart, or give the one that was drawn of the same before.

        Raises:
            SetupError: it cannot be drawn; the message says why.
            WaitTimeoutError: it takes too long.
        """
        line = json.dumps({**request, "width": width}, sort_keys=True)
        key = hashlib.sha256(line.encode()).hexdigest()
        with self._lock:
            if key in self._drawn:
                self._drawn.move_to_end(key)
                return self._drawn[key]
            answer = self._ask(line)
            if "svg" not in answer:
                raise SetupError(f"The chart cannot be drawn: {answer.get('error')}.")
            self._drawn[key] = str(answer["svg"])
            if len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
            return self._drawn[key]

    def close(self) -> None:
        """End the process, also while it draws."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, line: str) -> Mapping[str, Any]:
        """The answer to a request; asked once more where the process ended meanwhile, as it does when it has long been idle."""
        try:
            return self._answer(line)
        except SqlextError:  # which may be an OSError too
            raise
        except (OSError, ValueError):
            self._end()
        try:
            return self._answer(line)
        except SqlextError:
            raise
        except (OSError, ValueError) as error:
            self._end()
            raise SetupError(f"The chart cannot be drawn: the process that draws ended ({type(error).__name__}).") from None

    def _answer(self, line: str) -> Mapping[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            return dict(json.loads(_read_line(process.stdout, time.monotonic() + _SECONDS)))
        except WaitTimeoutError:
            self._end()
            raise

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise SetupError("The chart cannot be drawn: the page is closing.")
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(  # noqa: S603  # this Python, and a file of this package
                [sys.executable, "-P", str(_PAINT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what goes wrong is in the answer
                start_new_session=True,  # no Ctrl-C of the terminal reaches it; it ends when its stdin does
            )
            _let_others_first(self._process.pid)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it holds nothing that could be lost
            with suppress(OSError), process:  # a request may be left in its pipe
                pass


def _let_others_first(pid: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, pid, 10)
    except OSError as error:  # it has ended; or this machine has no such thing
        logger.debug("the process that draws keeps its priority: %s", error)


def _read_line(stream: IO[bytes], deadline: float) -> bytes:
    """One line of a pipe.

    Raises:
        WaitTimeoutError: at the deadline.
        ValueError: the line is too long, or ends in its middle.
    """
    found = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not found.endswith(b"\n"):
            if not selector.select(max(deadline - time.monotonic(), 0)):
                raise WaitTimeoutError(f"The chart was not drawn within {_SECONDS:.0f} s.")
            piece = os.read(stream.fileno(), 65536)
            if not piece or len(found) > _MOST_BYTES:
                raise ValueError("no whole line")
            found += piece
    return bytes(found)
