"""The run of a flow with INSERT INTO ONCE: its query is read once, and its rows come in one commit.

The commit is the record that it ran: it has the flow's transaction, so a run that is repeated after a crash adds nothing. A crash
before the commit leaves data files that no version names, and the next start runs the query again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark.sql import SparkSession

from sqlext.logs import carried
from sqlext.spark.cancellation import end_jobs_of


class OnceRun:
    """See the module's docstring. The thread is its own; statements call `start` and `stop`.

    Args:
        flow: the flow's name.
        tag: marks its Spark jobs.
        session: the session that it runs in, of nobody else.
        append: appends the rows, unless they are there.
        finished: called at the end.
        failed: called when it fails.
    """

    def __init__(
        self,
        flow: str,
        tag: str,
        session: SparkSession,
        append: Callable[[], None],
        finished: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._flow = flow
        self._tag = tag
        self._session = session
        self._append = append
        self._on_finished = finished
        self._on_failed = failed
        self._stopping = False
        self._thread = threading.Thread(target=carried(self._run), name=f"sqlext-once-{flow}", daemon=True)

    def start(self) -> None:
        """Run it, on a thread of its own."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Cancel what runs, and return whether it ended within `timeout` seconds."""
        self._stopping = True
        return end_jobs_of(self._session, self._tag, [self._thread], timeout)

    def _run(self) -> None:
        self._session.sparkContext.addJobTag(self._tag)
        try:
            self._append()
            self._on_finished()
        except Exception as error:  # noqa: BLE001  # the flow reports it, even a bug of ours; or it would wait for ever
            if not self._stopping:
                self._on_failed(error)
        finally:
            self._session.sparkContext.removeJobTag(self._tag)
