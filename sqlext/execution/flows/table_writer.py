"""From a flow's intakes into its tables: what a flush merges, appends, evaluates above and compacts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqlext.clock import Clock
from sqlext.execution.delta import commit, key_ranges, target
from sqlext.execution.delta.compaction import Compaction
from sqlext.execution.delta.delta_log import last_transaction, table_size
from sqlext.execution.delta.foreign_commits import refuse_rows_added_since, refuse_rows_of_others
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.execution.delta.own_table import OwnTable, qualified
from sqlext.execution.flows.appends import append_batches
from sqlext.execution.flows.flush import FlushReason
from sqlext.execution.flows.intake import Intake
from sqlext.execution.flows.missing_batches import append_missing
from sqlext.execution.flows.once import append_once
from sqlext.execution.flows.partition_keys import lossy, refuse_lost_values
from sqlext.execution.flows.query_above import QueryAbove
from sqlext.execution.flows.status import EndedGroups
from sqlext.execution.state.buffer import BATCH_COLUMN, BufferedBatch, rows_in
from sqlext.execution.state.delta_state import Advance, DeltaState, StateFlush, state_in
from sqlext.execution.state.distinct_values import DistinctValues, partials_among, values_in
from sqlext.execution.state.expiring_state import ExpiringState
from sqlext.execution.state.intake_buffer import FlushInput
from sqlext.execution.state.row_checks import FlowChecks, Violations, total
from sqlext.execution.state.session_state import SessionState
from sqlext.execution.state.state_beside import StateBeside
from sqlext.execution.state.state_in_table import StateInTable, reach_in_table
from sqlext.moments import Moment, announce
from sqlext.plan.cut import Cut, merged
from sqlext.plan.flow_spec import FlowSpec, StateBackend, StreamSpec
from sqlext.plan.job_graph import OutputMode
from sqlext.plan.lineage import place
from sqlext.plan.view_spec import SourceVersion
from sqlext.quoting import quote_parts
from sqlext.spark import delta_tables, jvm, state_size
from sqlext.spark.plans import analysed
from sqlext.spark.settings import read_all_files, session_settings
from sqlext.spark.state_size import StateSize
from sqlext.spark.storage import HadoopPath
from sqlext.spark.varying import has_moment

NoteFlush = Callable[[FlushReason, int, int, float, Violations, EndedGroups], None]
"""Takes a flush's reason, its rows, its micro-batches, when it started by the monotonic clock, violations of constraints, and the
groups that it has ended."""


class TableWriter:
    """Writes the tables of one flow. Only one thread at a time may call `flush`, `compact` and `recover`.

    Args:
        spec: the flow.
        epoch: of its driver, for the commits' metadata.
        home: the flow's folder.
        session: nobody else commits in it: a MERGE takes its transaction from its session's settings. It gets settings by which
            all files are read, whatever the user lets be left out: groups that were left out here would be gone for good.
        intakes: whose rows are written, one for each streaming query.
        clock: measures flushes.
        check: called before each commit; raises when another driver has the flow.
        note: called after each commit on the target.
    """

    def __init__(
        self,
        spec: FlowSpec,
        epoch: int,
        home: HadoopPath,
        session: SparkSession,
        intakes: Sequence[Intake],
        clock: Clock,
        check: Callable[[], None],
        note: NoteFlush,
    ) -> None:
        self._spec = spec
        self._epoch = epoch
        self._home = home
        self.session = session
        self._leaves_out = read_all_files(session)
        self._intakes = intakes
        self._clock = clock
        self._check = check
        self._note = note
        self._checks = FlowChecks(spec) if spec.constraints and not spec.appends else None  # rows that are appended are checked
        self._violations = Violations()  # of the flush in progress
        self._ended = EndedGroups()  # by the flush in progress
        self._writes = 0  # flushes and recoveries that have ended
        self._measured: tuple[int, Mapping[StateBackend, StateSize]] = (0, {})  # after how many of them
        self._values = {s.relation: self._values_of(s) for s in spec.streams if s.has_distinct_values}
        self._states = {s.relation: self._state_of(s) for s in spec.streams if s.state_backend is StateBackend.DELTA}
        # the files of somebody else's table are not ours to rewrite
        ours = [s for s in spec.streams if not s.writes_target or spec.owns_target]
        self._own_tables = {s.relation: OwnTable(session, self.location(s)) for s in ours}
        places = {s.relation: self.location(s) for s in spec.streams}
        self._above = QueryAbove(session, spec, places, self._columns, self._checks, check, self._leaves_out)
        self._compactions = [
            (Compaction(spec.name, spec.id, self.location(s), not s.writes_target), partial(self._table, s)) for s in ours
        ] + [
            (Compaction(spec.name, spec.id, state.location, is_hidden=True), state.table)
            for state in (*self._states.values(), *self._values.values())
            if not isinstance(state, StateInTable)
        ]

    def location(self, stream: StreamSpec) -> str:
        """Where the table of a streaming query lies."""
        if stream.writes_target:
            return self._spec.target_location
        return target.table_in(target.home_of(self._home, stream.relation)).location

    def _columns(self) -> dict[str, StructType]:
        return {intake.stream.relation: intake.columns for intake in self._intakes}

    def _state_of(self, stream: StreamSpec) -> DeltaState:
        if stream.state_columns:
            return StateInTable(self.session, stream, self.location(stream), self._spec, self._epoch)
        location = state_in(target.home_of(self._home, stream.relation), stream.revision).location
        if stream.ttl is not None:
            values = self._values.get(stream.relation)
            return ExpiringState(self.session, stream, location, self._spec, self._epoch, values)
        kind = SessionState if stream.has_sessions else StateBeside
        return kind(self.session, stream, location, self._spec, self._epoch)

    def _values_of(self, stream: StreamSpec) -> DistinctValues:
        location = values_in(target.home_of(self._home, stream.relation)).location
        return DistinctValues(self.session, location, self._spec, self._epoch)

    def committed(self, stream: StreamSpec) -> int | None:
        """Return the last micro-batch of a query that is in its table, and in a state that is written after the table."""
        state = self._states.get(stream.relation)
        if isinstance(state, SessionState):
            return state.committed()
        return last_transaction(self.session, self.location(stream), self._spec.application)

    def stored(self, stream: StreamSpec) -> int | None:
        """Return the last micro-batch of a query that is in a state which is written before its table."""
        state = self._states.get(stream.relation)
        return last_transaction(self.session, state.location, self._spec.application) if isinstance(state, StateBeside) else None

    def append_once(self) -> None:
        """Append the rows of a flow that runs once, unless an earlier driver has; see `once.append_once`."""
        self._check()
        target.check_identity(self.session, self._spec)
        place = self._home.child("buffer")
        if last_transaction(self.session, self._spec.target_location, self._spec.application) is not None:
            place.delete()
            return
        started, info = self._clock.monotonic(), self._commit_info(0, 0, -1, FlushReason.ONCE, None, None)
        with self._described("INSERT INTO ONCE"), session_settings(self.session, self._leaves_out):
            count, violations = append_once(self.session, self._spec, place, self._epoch, info, self._check)
        self._note(FlushReason.ONCE, count, 1, started, violations, EndedGroups())

    def flush(self, reason: FlushReason) -> None:
        """Bring all that is buffered into the tables.

        1. The buffers are closed: what arrives from now on waits for the next flush.
        2. This driver makes sure that it still has the flow, and that the target is the flow's.
        3. Each query's rows are merged into its table, as the transaction of their last micro-batch. After a crash here the
           tables that have them skip them: the buffers are flushed again by the next start. Before the rows of a query that
           appends, those of them that are quarantined are brought into their tables, in the same way.
        4. The query above, if there is one, replaces the target's rows, or those of the keys that have changed, as the
           transaction of all queries' micro-batches. After a crash before it, `recover` evaluates all of it.
        5. The buffers drop what was flushed. After a crash before that they are flushed again, into tables that have it.
        """
        found = [(intake, intake.buffer.take()) for intake in self._intakes]  # 1
        full = [(intake, taken) for intake, taken in found if taken.batches]
        if not full:
            return
        announce(Moment.FLUSH_BEGUN, self._spec.name)
        self._check()  # 2
        self._violations, self._ended = Violations(), EndedGroups()
        target.check_identity(self.session, self._spec)
        started = self._clock.monotonic()
        arrival = self._clock.now() - timedelta(seconds=started - min(taken.arrived for _, taken in full))
        before = self._version()
        for intake, taken in full:  # 3
            self._merge(intake, taken, reason, arrival)
        batches = [batch for _, taken in full for batch in taken.batches]
        rows = rows_in(batches)
        if self._spec.above:  # 4
            self._replace(before, rows, reason, arrival, full)
        announce(Moment.FLUSH_COMMITTED, self._spec.name)
        for intake, taken in full:  # 5
            intake.buffer.flushed(taken.batches)
            intake.note_flushed()
        number = sum(batch.last - batch.first + 1 for batch in batches)
        self._note(reason, max(rows, 0), number, started, self._violations, self._ended)

    def compact(self, is_stopping: Callable[[], bool]) -> None:
        """Compact the tables whose files have grown too many."""
        for compaction, table in self._compactions:
            if not is_stopping():
                with self._described("compaction"):
                    compaction.after_flush(self.session, table)
        self._writes += 1

    @property
    def state_size(self) -> Mapping[StateBackend, StateSize]:
        """The size of the state in Delta tables, as Delta knows it since the last flush; any thread may ask.

        It is measured once after each, when it is asked for first: that takes some calls to Java for each file.
        """
        written = self._writes
        if self._measured[0] != written:
            locations = {each.location for each in (*self._states.values(), *self._values.values())}
            sizes = [state_size.of_table(self.session, each) for each in locations]
            self._measured = (written, {StateBackend.DELTA: state_size.total(sizes)} if sizes else {})
        return self._measured[1]

    def recover(self) -> None:
        """Evaluate the query above, if a crash came between the flush of an aggregate and that."""
        if self._spec.above and self._version() >= 0:
            committed = last_transaction(self.session, self._spec.target_location, self._spec.application)
            if committed != self._version():
                self._replace(-1 if committed is None else committed, -1, FlushReason.RECOVERY, None)
        self._writes += 1

    def _merge(self, intake: Intake, taken: FlushInput, reason: FlushReason, arrival: datetime) -> None:
        batches = self._after_state(intake, taken, reason, arrival)
        if not batches:
            intake.committed = taken.batches[-1].last
            return
        rows = rows_in(batches)
        first = intake.committed + 1 if intake.rewinding_to is not None else batches[0].first
        info = self._commit_info(first, batches[-1].last, rows, reason, taken.watermark, arrival, [(intake, batches[-1].last)])
        if intake.stream.output_mode is OutputMode.APPEND and self._spec.constraints:
            self._violations = total(batch.checked.violations for batch in batches if batch.checked is not None)
            info = replace(info, violations=self._violations)
        reach = key_ranges.union(batch.bounds for batch in batches)
        with self._described(f"flush of micro-batches {first} to {batches[-1].last} ({reason.value})"):
            if intake.stream.writes_target and self._lossy_key:  # maintained aggregates are not partitioned
                refuse_lost_values(self._spec, intake.stream, self._lossy_key, self._changed_rows(intake, batches))
            if intake.stream.output_mode is OutputMode.APPEND:
                commit.again_after_conflicts(partial(intake.buffer.quarantine, self.session, self._spec, batches), self._check)
                announce(Moment.ROWS_QUARANTINED, self._spec.name)
                table, buffered = (self.session, self._spec.target_location), partial(intake.buffer.rows, self.session)
                add = partial(append_batches, self.session, self._spec, buffered)
                append = partial(append_missing, *table, batches, info, lambda batch: self._read([(intake, batch)]), add)
                while commit.again_after_conflicts(append, self._check):
                    pass  # what an earlier driver has left takes two commits
            elif intake.aggregate is None:
                self._merge_latest(intake, batches, reach, info)
            else:
                flushed = self._state_flush(intake, batches, info)
                commit.again_after_conflicts(partial(self._flush_state, intake.stream, flushed), self._check)
        intake.committed = batches[-1].last

    def _after_state(self, intake: Intake, taken: FlushInput, reason: FlushReason, arrival: datetime) -> Sequence[BufferedBatch]:
        """Return the micro-batches to merge into the query's table.

        If a crash left micro-batches in the table but not in the state, which is written after it, they are first merged into
        the state.
        """
        state = self._states.get(intake.stream.relation)
        if not isinstance(state, SessionState):
            return taken.batches
        shown = last_transaction(self.session, self.location(intake.stream), self._spec.application)
        behind = [batch for batch in taken.batches if shown is not None and batch.last <= shown]
        if behind:
            info = self._commit_info(behind[0].first, behind[-1].last, rows_in(behind), reason, taken.watermark, arrival)
            flushed = self._state_flush(intake, behind, info)
            commit.again_after_conflicts(partial(state.flush, flushed, lambda advance: None), self._check)  # the table has it
        return taken.batches[len(behind) :]

    @cached_property
    def _lossy_key(self) -> tuple[str, ...]:
        """The key columns of the target, if a query writes it row by row, in which Delta does not keep every value."""
        columns = [c for s in self._spec.streams if s.writes_target for c in s.columns if c.target in s.key]
        return lossy(self.session, self._spec.target_location, columns)

    def _changed_rows(self, intake: Intake, batches: Sequence[BufferedBatch]) -> DataFrame:
        """Rows of the table with the keys that micro-batches change."""
        rows = intake.buffer.rows(self.session, batches)
        if intake.aggregate is None:
            return rows
        partials = partials_among(intake.aggregate, rows)
        results = intake.aggregate.results(intake.aggregate.merged(partials, BATCH_COLUMN))
        return target.in_target_columns(results, intake.stream.columns)

    def _state_flush(self, intake: Intake, batches: Sequence[BufferedBatch], info: commit.CommitInfo) -> StateFlush:
        if intake.aggregate is None:
            raise AssertionError("there are no partial results")
        partials, reach = partial(intake.buffer.rows, self.session), key_ranges.union(batch.bounds for batch in batches)
        passed = 0 if intake.lateness is None else intake.lateness.watermark(batches[0].first)
        expiry = intake.expiry(batches[0].first, batches[-1].last)
        inspect = partial(self._inspect, intake.stream, info)
        return StateFlush(intake.aggregate, partials, batches, reach, info, self._check, inspect, passed, expiry)

    def _inspect(self, stream: StreamSpec, info: commit.CommitInfo, rows: DataFrame) -> None:
        """Refuse rows of the target that a constraint forbids, before anything is stored of the micro-batches that made them."""
        if self._checks is None or not stream.writes_target or not self._checks.may_fail:
            return
        self._checks.violations_in(qualified(rows), _batches_of(info))

    def _flush_state(self, stream: StreamSpec, flushed: StateFlush) -> None:
        """Merge partial results into a state; before it, distinct values that are new become rows."""
        state, values = self._states[stream.relation], self._values.get(stream.relation)
        whole = flushed if values is None or isinstance(state, ExpiringState) else values.stored(flushed)
        state.flush(whole, partial(self._show, stream, whole))

    def _show(self, stream: StreamSpec, flushed: StateFlush, advance: Advance) -> None:
        """Merge the changed groups of a state into the query's table; if others interfere, all of the flush is tried again."""
        reach = reach_in_table(stream, flushed.aggregate, flushed.reach if advance.reach is None else advance.reach)
        info = replace(advance.info or flushed.info, read_version=advance.read_version)
        self._merge_rows(stream, advance.rows, reach, info, 1, advance.additions, advance.all_rows)
        self._ended += EndedGroups(info.groups_ended or 0, info.rows_dropped or 0)

    def _merge_latest(self, intake: Intake, batches: Sequence[BufferedBatch], reach: Bounds, info: commit.CommitInfo) -> None:
        """Merge the newest row of each group into the query's table."""
        rows = intake.buffer.latest_rows(self.session, batches)
        if len(batches) == 1:
            self._merge_rows(intake.stream, rows, reach, info)
            return
        is_small = commit.are_few(info.rows, rows.schema, intake.stream.key)
        with session_settings(self.session, commit.FEW_ROWS if is_small else {}), jvm.held(rows) as latest:
            self._merge_rows(intake.stream, latest, reach, info)

    def _merge_rows(
        self,
        stream: StreamSpec,
        rows: DataFrame,
        reach: Bounds,
        info: commit.CommitInfo,
        attempts: int = commit.ATTEMPTS,
        additions: Mapping[str, str] | None = None,
        all_rows: DataFrame | None = None,
    ) -> None:
        """Merge rows into a query's table; constraints check those of the target, which are computed once for that."""
        if self._checks is None or not stream.writes_target:
            self._bring_in(stream, rows, reach, info, attempts, additions, all_rows)
            return
        every = None if all_rows is None else self._checks.qualified(all_rows)
        if every is not None and has_moment(self.session, analysed(every)):
            every = None  # rows that no micro-batch has changed stay, as in a table too large to be written anew
        with self._checks.counted(rows, _batches_of(info)) as (held, found):
            self._violations = found
            self._bring_in(stream, held, reach, replace(info, violations=found), attempts, additions, every)

    def _bring_in(
        self,
        stream: StreamSpec,
        rows: DataFrame,
        reach: Bounds,
        info: commit.CommitInfo,
        attempts: int,
        additions: Mapping[str, str] | None,
        all_rows: DataFrame | None,
    ) -> None:
        if not stream.key and stream.writes_target:
            commit.again_after_conflicts(partial(self._merge_one_row, stream, rows, info, additions), self._check, attempts)
            return
        own = self._own_tables.get(stream.relation) if additions is None and info.read_version is None else None
        if own is not None:
            upsert = partial(own.upsert, stream, rows, reach, info, self._check, all_rows)
            if commit.again_after_conflicts(upsert, self._check, attempts):
                return
        size = table_size(self.session, self.location(stream))
        commit.merge(self.session, self._table(stream), stream, rows, reach, info, self._check, size, attempts, additions)

    def _merge_one_row(
        self, stream: StreamSpec, rows: DataFrame, info: commit.CommitInfo, additions: Mapping[str, str] | None
    ) -> None:
        """Merge the row of an aggregate without GROUP BY into the target: the row that is there takes its values."""
        version = delta_tables.version(self.session, self._spec.target_location)
        refuse_rows_of_others(self.session, self._spec, version)
        size = table_size(self.session, self._spec.target_location, version)
        info = replace(info, read_version=version if info.read_version is None else info.read_version)
        commit.merge(self.session, self._table(stream), stream, rows, {}, info, self._check, size, 1, additions)
        refuse_rows_added_since(self.session, self._spec, version, self._epoch)

    def _table(self, stream: StreamSpec) -> DeltaTable:
        if not stream.writes_target:
            return DeltaTable.forPath(self.session, self.location(stream))
        return DeltaTable.forName(self.session, quote_parts(self._spec.target))

    def _replace(
        self,
        before: int,
        rows: int,
        reason: FlushReason,
        arrival: datetime | None,
        full: Sequence[tuple[Intake, FlushInput]] = (),
    ) -> None:
        """Replace the target's rows with the query above; see `QueryAbove`.

        Args:
            before: the target's transaction before the flush.
            full: what has been merged into the aggregates since; none: it is not known.
        """
        newest = [(each, each.committed) for each in self._intakes]
        info = self._commit_info(before + 1, self._version(), rows, reason, None, arrival, newest)
        changed = [partial(self._changed_rows, intake, taken.batches) for intake, taken in full]
        with self._described(f"the query above its aggregates ({reason.value})"):
            self._violations = self._above.replace(info, before, changed)

    def _described(self, doing: str) -> AbstractContextManager[None]:
        return jvm.described(self.session, f"flow {self._spec.name}: {doing}", self._spec.id)

    def _version(self) -> int:
        """Return the version of the target's transaction, which grows with each flush of any query."""
        return sum(intake.committed + 1 for intake in self._intakes) - 1

    def _commit_info(
        self,
        first: int,
        last: int,
        rows: int,
        reason: FlushReason,
        watermark: float | None,
        arrival: datetime | None,
        newest: Sequence[tuple[Intake, int]] = (),
    ) -> commit.CommitInfo:
        """Return what a commit says; `newest` is the last micro-batch in it of each query."""
        until = datetime.fromtimestamp(watermark, UTC) if watermark is not None else None
        spec, read = self._spec, self._read(newest)
        said = (spec.name, spec.id, self._epoch, first, last, rows, reason.value, until, arrival)
        return commit.CommitInfo(*said, read=read, application=spec.application)

    def _read(self, batches: Sequence[tuple[Intake, int]]) -> Cut | None:
        """Return how far queries have read the flow's sources; None: it reads what has no version, or what it reads anew."""
        reads = {place(each.location): each for each in self._spec.reads}
        if not batches or not all(each.is_stream for each in self._spec.reads):
            return None
        cuts = []
        for intake, batch in batches:
            found = intake.read_versions(batch)
            if found is None or not all(place(location) in reads for location in found):
                return None
            named = {".".join(reads[place(location)].name): (location, *at) for location, at in found.items()}
            whole = {name: SourceVersion(key, at, location) for name, (location, key, at) in named.items() if at is not None}
            cuts.append(Cut(whole, tuple(name for name in named if name not in whole)))
        return merged(cuts)


def _batches_of(info: commit.CommitInfo) -> str:
    return f"the flush of micro-batches {info.first_batch} to {info.last_batch}"
