"""Charts: the request for a snapshot's chart, and the process that draws it (`paint.py`)."""

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
from sqlext.page.snapshot import FlushView, JobDetail, RefreshView

WIDTHS: Mapping[str, int] = {"wide": 720, "narrow": 330}
"""In pixels; phones get narrow charts, since the text of wide ones would shrink."""
_PAINT = Path(__file__).with_name("paint.py")
_SECONDS = 60.0
"""The time, in seconds, to draw one chart; the first one takes 5 seconds on an idle machine."""
_KEPT = 64


def flushes_chart(flow: str, flushes: Sequence[FlushView]) -> dict[str, Any]:
    """Return the request for a chart of a flow's last flushes."""
    rows = [
        {
            "version": flush.version,
            "buffered": flush.buffered,
            "changed": flush.changed,
            "seconds": flush.seconds,
            "micro_batches": flush.micro_batches,
            "violations": flush.all_violations,
        }
        for flush in flushes
    ]
    return {"kind": "flushes", "title": f"Rows, seconds and micro-batches of the last flushes of {flow}", "rows": rows}


def refreshes_chart(view: str, refreshes: Sequence[RefreshView]) -> dict[str, Any]:
    """Return the request for a chart of a materialized view's last refreshes. Times are those of this machine's zone."""
    rows = [
        {"at": f"{refresh.at.astimezone():%Y-%m-%dT%H:%M:%S}", "seconds": refresh.seconds, "is_full": refresh.is_full}
        for refresh in refreshes
    ]
    return {"kind": "refreshes", "title": f"Seconds of the last refreshes of {view}", "rows": rows}


def timeline_chart(job: JobDetail) -> dict[str, Any]:
    """Return the request for a chart of a job's vertices over time."""
    rows = [
        {"vertex": span.vertex, "start": span.start, "end": span.end, "parts": span.parts, "is_skipped": span.is_skipped}
        for span in job.spans
    ]
    return {"kind": "timeline", "title": f"When the vertices of job {job.summary.id} ran", "rows": rows}


class Painter:
    """A process that draws charts, started at the first one, and a cache of charts.

    Any thread may call any method; the lock serialises drawing and guards the cache.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helper = HelperProcess(["-P", str(_PAINT)], _SECONDS, "The chart cannot be drawn")
        self._drawn: OrderedDict[str, str] = OrderedDict()

    def svg(self, request: Mapping[str, Any], width: int) -> str:
        """Draw a chart, or return the one drawn for the same request before.

        Raises:
            SetupError: the chart cannot be drawn; the message says why.
            WaitTimeoutError: drawing takes too long.
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
        """End the process, even while it draws."""
        self._helper.stop()
        with self._lock:
            self._helper.close()

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
