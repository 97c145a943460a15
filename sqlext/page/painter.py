"""Asks for charts: what is drawn, of a snapshot, and the process that draws it (`paint.py`)."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlext.errors import SetupError
from sqlext.page.helper import HelperProcess
from sqlext.page.snapshot import FlushView, JobDetail

WIDTHS: Mapping[str, int] = {"wide": 720, "narrow": 330}
"""In pixels: a phone gets charts of its own, or their text would shrink."""
_PAINT = Path(__file__).with_name("paint.py")
_SECONDS = 60.0
"""To draw one chart; the first one takes five, on a machine with little else to do."""
_KEPT = 64


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
        self._helper = HelperProcess(["-P", str(_PAINT)], _SECONDS, "The chart cannot be drawn")
        self._drawn: OrderedDict[str, str] = OrderedDict()

    def svg(self, request: Mapping[str, Any], width: int) -> str:
        """Draw a chart, or give the one that was drawn of the same before.

        Raises:
            SetupError: it cannot be drawn; the message says why.
            WaitTimeoutError: it takes too long.
        """
        line = json.dumps({**request, "width": width}, sort_keys=True).encode()
        key = hashlib.sha256(line).hexdigest()
        with self._lock:
            if key in self._drawn:
                self._drawn.move_to_end(key)
                return self._drawn[key]
            answer = json.loads(self._helper.ask(line))
            if "svg" not in answer:
                raise SetupError(f"The chart cannot be drawn: {answer.get('error')}.")
            self._drawn[key] = str(answer["svg"])
            if len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
            return self._drawn[key]

    def close(self) -> None:
        """End the process, also while it draws."""
        self._helper.stop()
        with self._lock:
            self._helper.close()

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
