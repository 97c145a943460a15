"""The run of a flow with INSERT INTO ONCE: its query is read once, and its rows come in one commit.

The commit is the record that it ran: it has the flow's transaction, so a run that is repeated after a crash adds nothing. A crash
before the commit leaves data files that no version names, and the next start runs the query again.

Where rows may be quarantined there is a commit on another table before it, and the tables that are read may have changed when a
run is repeated. So what belongs into either table is written into the flow's folder first, as of a micro-batch of a stream; a run
that is repeated takes it from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from sqlext.execution.delta import commit, target
from sqlext.execution.flows.appends import append_batches
from sqlext.execution.state.buffer import StagedBuffer
from sqlext.execution.state.row_checks import FlowChecks, Violations
from sqlext.logs import carried
from sqlext.moments import Moment, announce
from sqlext.plan.constraints import OF_ERRORS, quarantines
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import jvm
from sqlext.spark.cancellation import end_jobs_of
from sqlext.spark.micro_batch_rules import sound_rules
from sqlext.spark.settings import ALL_FILES, session_settings
from sqlext.spark.storage import HadoopPath


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


def append_once(
    session: SparkSession, spec: FlowSpec, place: HadoopPath, epoch: int, info: commit.CommitInfo, check: Callable[[], None]
) -> tuple[int, Violations]:
    """Append the rows of a flow that runs once.

    Args:
        session: nobody else commits in it.
        spec: the flow.
        place: the folder for what is to be brought into the tables.
        epoch: of the driver.
        info: of the commit.
        check: called before each commit; raises when another driver has the flow.

    Returns:
        The number of rows that came into the table, 0 if an earlier driver wrote them; and the violations of constraints.
    """
    (stream,) = spec.streams
    checks = FlowChecks(spec)
    rows = target.in_target_columns(checks.caught(session.sql(stream.sql), stream.columns), stream.columns)
    if not spec.constraints:
        return commit.append(spec.target, rows, info), Violations()
    if quarantines(spec.constraints):
        return _append_by_files(rows, spec, StagedBuffer(place, epoch, spec.target_location, checks), info, check)
    with session_settings(session, sound_rules(rows)), checks.marked(rows) as (marked, _):
        kept, counts = checks.watched(marked)
        with jvm.held(kept) as held:
            violations = counts()
            checks.quarantined(marked, violations, 0)  # none is; FAIL UPDATE refuses
            return commit.append(spec.target, held, replace(info, violations=violations)), violations


def _append_by_files(
    rows: DataFrame, spec: FlowSpec, buffer: StagedBuffer, info: commit.CommitInfo, check: Callable[[], None]
) -> tuple[int, Violations]:
    session = rows.sparkSession
    batches = buffer.find(0.0)
    if not batches:
        with session_settings(session, sound_rules(rows)), jvm.held(rows) as held:  # it is read for each table
            batches = [buffer.write(held, 0, 0.0, ())]
    (batch,) = batches
    violations = Violations() if batch.checked is None else batch.checked.violations
    with session_settings(session, ALL_FILES):  # the files are not the user's any more
        commit.again_after_conflicts(partial(buffer.quarantine, session, spec, batches), check)
        announce(Moment.ROWS_QUARANTINED, spec.name)
        buffered = partial(buffer.rows, session, schema=rows.drop(*OF_ERRORS).schema)
        append = partial(append_batches, session, spec, buffered, batches, replace(info, violations=violations))
        commit.again_after_conflicts(append, check)
    buffer.drop(batches)
    return max(batch.rows, 0), violations
