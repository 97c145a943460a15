"""Another query for a flow, made in place: nothing of the old one goes before the new one is whole, and readers see one commit.

The flow is at rest: stopped, with nothing in its buffer.

1. What is to be done is noted in the flow's folder, and the state's new table is made, empty, in a place of its own.
2. The history of what is added is computed (`history.py`). It is joined by the keys to what is stored.
3. The new state is committed, if it has a table of its own, with the flow's last transaction.
4. The target gets its new columns and rows in one commit, with a transaction that says which query they are of.
5. The registry gets the new query; the old state and the note go.

A crash before 4 leaves the old flow: `settled`, which comes before each start, deletes what was made. A crash after 4 leaves the
new one: it does 5. Which of the two it is, the transaction of 4 tells.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from sqlext.errors import FlowError, StatementCanceledError, UnsupportedError
from sqlext.execution.delta import commit, delta_log, target
from sqlext.execution.delta.commit import CommitInfo
from sqlext.execution.delta.delta_log import last_transaction
from sqlext.execution.delta.own_table import qualified
from sqlext.execution.delta.transaction import CommitIdentity, TableTransaction, begun, commit_actions, note_read, write_operation
from sqlext.execution.flows.creation import FlowRequest, reserve, stream_of
from sqlext.execution.flows.history import partials_of_history
from sqlext.execution.flows.partition_keys import lossy
from sqlext.execution.flows.redefinition import Redefinition
from sqlext.execution.flows.savepoints import content_of
from sqlext.execution.flows.state_choice import with_state
from sqlext.execution.state.delta_state import state_in
from sqlext.execution.state.distinct_values import values_in
from sqlext.execution.state.row_checks import FlowChecks, Violations
from sqlext.execution.state.state_in_table import as_partials
from sqlext.execution.state.state_table import StateTable
from sqlext.execution.streaming.checkpoint import Checkpoint
from sqlext.moments import Moment, announce
from sqlext.options import Level
from sqlext.plan.cut import Cut
from sqlext.plan.flow_spec import Column, FlowSpec
from sqlext.plan.job_graph import QUALIFIES
from sqlext.plan.view_spec import SourceVersion
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm
from sqlext.spark.settings import ALL_FILES, OWN_JOINS, session_settings
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_NOTE = "alteration"
_NOTE_VERSION = 1
_STORED, _HISTORY = "s", "h"
_THERE = "__sqlext_there"


@dataclass(frozen=True)
class Note:
    """What is on record of an alteration that may not have come to its end.

    Attributes:
        spec: the flow with its new query; None: the state's new table is not there yet.
        host: the process that alters it.
    """

    spec: FlowSpec | None
    host: str

    def to_json(self) -> str:
        """Return the text of the file."""
        spec = "" if self.spec is None else self.spec.to_json()
        return json.dumps({"version": _NOTE_VERSION, "host": self.host, "spec": spec})


def note_in(home: HadoopPath) -> Note | None:
    """Return what is noted in a flow's folder."""
    file = home.child(_NOTE)
    if not file.exists():
        return None
    found = json.loads(file.read_text())
    if found["version"] != _NOTE_VERSION:
        raise FlowError(f"{file.location} is of another version of sqlext. Use the one that wrote it.")
    return Note(FlowSpec.from_json(found["spec"]) if found["spec"] else None, str(found["host"]))


def refuse_begun(home: HadoopPath, spec: FlowSpec) -> None:
    """Raise FlowError if an alteration of a flow was begun and has not ended."""
    if note_in(home) is not None:
        raise FlowError(f"The query of flow `{spec.name}` was being altered when its process died. START FLOW it first.")


def is_at_rest(home: HadoopPath, spec: FlowSpec) -> bool:
    """Return whether nothing of a flow that does not run waits to be brought into its table, and nothing was begun."""
    return note_in(home) is None and not spec.restoring and not content_of(home, spec).child("buffer").names()


def settled(spark: SparkSession, home: HadoopPath, spec: FlowSpec, record: Callable[[FlowSpec], object], host: str) -> FlowSpec:
    """Bring an alteration to its end that a crash has left, or undo it, and return the flow as it is then.

    Args:
        spark: any session.
        home: the flow's folder.
        spec: the flow on record.
        record: writes the flow into the registry.
        host: this process.
    """
    note = note_in(home)
    if note is None:
        return spec
    if note.spec is None:
        _clear(home, spec, made := spec.streams[0].revision + 1, unused=made)
        return spec
    made = note.spec.streams[0].revision
    is_recorded = spec.streams[0].revision >= made
    look = _is_made if note.host == host else _shut_out  # nobody of this process has only paused
    is_made = is_recorded or commit.again_after_conflicts(partial(look, spark, spec, made), lambda: None)
    if is_made and not is_recorded:
        record(note.spec)
        logger.warning("flow %s: its process died while it altered its query, which is the new one now", spec.name)
    _clear(home, note.spec if is_made else spec, made, unused=made - 1 if is_made else made)
    return note.spec if is_made and not is_recorded else spec


def _is_made(spark: SparkSession, spec: FlowSpec, made: int, version: int | None = None) -> bool:
    """Return whether the commit of step 4 is in a version of the table; None: in its newest."""
    return (last_transaction(spark, spec.target_location, _application(spec), version) or 0) >= made


def _shut_out(spark: SparkSession, spec: FlowSpec, made: int) -> bool:
    """Commit nothing, as the application of step 4, unless that has come meanwhile; return whether it has.

    A process that only paused, and goes on with step 4 later, is in conflict.
    """
    with jvm.active(spark):
        snapshot = delta_tables.snapshot(spark, spec.target_location)
        if _is_made(spark, spec, made, int(snapshot.version())):
            return True
        said = json.dumps({"sqlext": {"flow": spec.name, "reason": "alteration undone"}})  # no flush, so without the flow's id
        transaction = begun(spark, snapshot)
        note_read(transaction, _application(spec))
        identity = CommitIdentity(_application(spec), made - 1, said)
        commit_actions(spark, transaction, [], write_operation(spark, "Append"), identity)
    return False


def finish(home: HadoopPath, spec: FlowSpec) -> None:
    """Delete what only the old query of a flow has needed; the new one is on record."""
    made = spec.streams[0].revision
    _clear(home, spec, made, unused=made - 1)


def _clear(home: HadoopPath, spec: FlowSpec, made: int, unused: int) -> None:
    """Delete the state of a query that is not the flow's, and what was noted of an alteration, in this order."""
    content = content_of(home, spec)
    if not spec.streams[0].has_distinct_values:
        values_in(content).delete()
    for path in (state_in(content, unused), content.child(_history(made)), home.child(_NOTE)):
        path.delete()


def _application(spec: FlowSpec) -> str:
    return f"{spec.application}/query"


def _history(revision: int) -> str:
    return f"history-{revision}"


def query_replaced(spec: FlowSpec, request: FlowRequest) -> FlowSpec:
    """Return the record of a flow with the query of a request, before its state has a place."""
    made = reserve(request, spec.qualified_name, spec.target, spec.constraints)
    levels = (Level.HINT.name, Level.WITH.name)
    given = {key: values for key, values in spec.given.items() if key not in levels}
    given |= {key: request.given[key] for key in levels if request.given.get(key)}
    return replace(
        spec,
        text=made.text,
        query=made.query,
        operators=made.operators,
        sources=made.sources,
        reads=made.reads,
        not_idempotent_because=made.not_idempotent_because,
        variables=made.variables,
        session_bound=made.session_bound,
        given=given,
    )


class Alteration:
    """One alteration of one flow; see the module's docstring.

    Args:
        session: like the flow's own, and of nobody else.
        home: the flow's folder.
        spec: the flow as it is.
        request: with the new query, analysed in `session`.
        redefinition: what that makes of it.
        epoch: of the flow's last driver.
        check: raises if another driver has the flow.
    """

    def __init__(
        self,
        session: SparkSession,
        home: HadoopPath,
        spec: FlowSpec,
        request: FlowRequest,
        redefinition: Redefinition,
        epoch: int,
        check: Callable[[], None],
    ) -> None:
        self._session = session
        self._home = home
        self._content = content_of(home, spec)
        self._spec = spec
        self._request = request
        self._redefinition = redefinition
        self._epoch = epoch
        self._check = check
        self._revision = spec.streams[0].revision + 1

    def run(self, host: str, canceled: Event) -> FlowSpec:
        """Do steps 1 to 4, and return the flow with its new query.

        Args:
            host: this process.
            canceled: set when the client waits no longer.

        Raises:
            UnsupportedError: the history is not there any more.
            StatementCanceledError: the client has canceled the statement.
            FlowError: another process alters the flow.
        """
        file = self._home.child(_NOTE)
        if not file.create_text(Note(None, host).to_json()):  # 1
            raise FlowError(f"Another process alters flow `{self._spec.name}` just now. Try again when it has ended.")
        self._check()  # a process that has started the flow before it could see the note
        spec = self._with_places()
        file.write_text(Note(spec, host).to_json())
        announce(Moment.ALTERATION_NOTED, spec.name)
        batch = last_transaction(self._session, spec.target_location, spec.application)
        history = self._over_history(batch, canceled)  # 2
        snapshot = delta_tables.snapshot(self._session, spec.target_location)
        table = TableTransaction(self._session, snapshot, None, is_small=True)
        table.note_read(_application(self._spec))
        table.take_columns(self._schema(spec, delta_tables.schema_of(snapshot)))
        with session_settings(self._session, ALL_FILES | OWN_JOINS), jvm.held(self._state(table, batch, history)) as state:
            if canceled.is_set():
                raise StatementCanceledError("The statement was canceled.")
            self._store(spec, state, batch)  # 3
            announce(Moment.ALTERATION_STATE_COMMITTED, spec.name)
            with self._checked(self._rows(spec, table, state)) as (rows, violations):
                self._check()
                info = self._info(table.version, batch, violations)
                table.write_whole(qualified(rows), CommitIdentity(_application(spec), self._revision, info))  # 4
        announce(Moment.ALTERATION_COMMITTED, spec.name)
        return spec

    def _with_places(self) -> FlowSpec:
        """Return the flow with its new query, and make the state's table if it needs one of its own."""
        for left in (state_in(self._content, self._revision), self._content.child(_history(self._revision))):
            left.delete()  # by a process that went on for a moment after another had undone what it did
        query = self._request.flow.queries[0]
        fields = self._request.flow.output.drop(QUALIFIES).schema
        columns = tuple(Column(field.name, field.name, target.ddl_of(field.dataType)) for field in fields)
        made = replace(stream_of(self._session, self._request.plan, query, columns, self._content), revision=self._revision)
        lost = {*lossy(self._session, self._spec.target_location, columns)}
        stream = with_state(made, query.aggregate, None, self._content, True, bool(self._spec.constraints), lost)
        return replace(query_replaced(self._spec, self._request), streams=(stream,), columns=columns)

    def _schema(self, spec: FlowSpec, there: StructType) -> StructType:
        """Return the target's new columns; those that stay keep their comments and NOT NULL."""
        known, shown = {field.name: field for field in there}, self._redefinition.shown or {}
        targets = {column.output: column.target for column in self._spec.streams[0].columns}
        kept = {each.name for each in self._redefinition.columns if each.how == "kept"}
        fields = []
        for column in self._request.flow.output.drop(QUALIFIES).schema:
            old = known.get(targets.get(shown.get(column.name, column.name), ""))
            kind = target.with_nulls(column.dataType)
            if old is not None and (column.name in kept or column.name in shown):
                fields.append(StructField(column.name, kind, old.nullable, old.metadata))
            else:
                fields.append(StructField(column.name, kind))
        return StructType(fields)

    def _stored(self, table: TableTransaction, batch: int | None) -> DataFrame:
        """Return the partial results that are stored, by the names that they have in the old query's aggregate.

        Raises:
            FlowError: they are not those of the micro-batches that the table has: a flush has failed between its two commits.
        """
        stream, old = self._spec.streams[0], self._redefinition.old
        if stream.state_columns:
            location, version, rows = self._spec.target_location, table.version, table.rows
        else:
            location = state_in(self._content, stream.revision).location
            version = delta_tables.version(self._session, location)
            rows = delta_tables.rows_at(self._session, location, version)
            if last_transaction(self._session, location, self._spec.application, version) != batch:
                raise FlowError(f"The last flush of flow `{self._spec.name}` is not complete. START FLOW it first.")
        StateTable(self._session, location, self._spec, self._epoch).refuse_changes_of_others(version)
        return as_partials(rows, stream.state_columns or old.schema.names, old)

    def _over_history(self, batch: int | None, canceled: Event) -> DataFrame | None:
        """Return the partial results of what is added, over all that the flow has read; None: nothing is added, or was read."""
        added = self._redefinition.history
        if added is None or batch is None:
            return None
        name, home = f"sqlext-{self._spec.name}-{self._spec.id}-history", self._content.child(_history(self._revision))
        logger.info("flow %s: computing what its new query adds, over micro-batches 0 to %d", self._spec.name, batch)
        return partials_of_history(self._session, name, added, Checkpoint(self._content), batch, home, canceled)

    def _state(self, table: TableTransaction, batch: int | None, history: DataFrame | None) -> DataFrame:
        """Return the new query's partial results."""
        change, stored = self._redefinition, self._stored(table, batch)
        names = change.aggregate.schema.names
        if change.history is None or history is None:
            none = F.lit(None)
            kept = {name: F.col(quote(change.stored[name])) if name in change.stored else none for name in names}
            kinds = change.aggregate.schema
            return stored.select(*(kept[name].cast(kinds[name].dataType).alias(name) for name in names))
        keys = [(change.stored[mine], its) for mine, its in zip(change.aggregate.key, change.history.key, strict=True)]
        s, h = stored.withColumn(_THERE, F.lit(True)).alias(_STORED), history.withColumn(_THERE, F.lit(True)).alias(_HISTORY)
        same = F.lit(True)
        for mine, its in keys:
            same &= _column(_STORED, mine).eqNullSafe(_column(_HISTORY, its))
        both = s.join(h, same, "full_outer")
        self._refuse_other_groups(both)
        places = {name: _column(_HISTORY, its) for name, its in change.computed.items()}
        places |= {name: _column(_STORED, mine) for name, mine in change.stored.items()}
        return both.select(*(places[name].alias(name) for name in names))

    def _refuse_other_groups(self, both: DataFrame) -> None:
        """See that the history has the groups that are stored, and as many rows of each, where that is stored."""
        is_wrong = _column(_STORED, _THERE).isNull() | _column(_HISTORY, _THERE).isNull()
        for mine, its in self._redefinition.checked.items():
            is_wrong |= ~_column(_STORED, mine).eqNullSafe(_column(_HISTORY, its))
        if both.where(is_wrong).take(1):
            raise UnsupportedError(
                "its sources do not have the rows any more that it has read: the groups over them are not those of the table."
            )

    def _store(self, spec: FlowSpec, state: DataFrame, batch: int | None) -> None:
        if spec.streams[0].state_columns or batch is None:
            return
        self._check()
        location = state_in(self._content, self._revision).location
        table = TableTransaction(self._session, delta_tables.snapshot(self._session, location), None, is_small=True)
        table.write_whole(state, CommitIdentity(spec.application, batch, self._info(table.version, batch)))

    def _rows(self, spec: FlowSpec, table: TableTransaction, state: DataFrame) -> DataFrame:
        """Return the target's new rows."""
        change, stream = self._redefinition, spec.streams[0]
        if (shown := change.copied) is not None:
            targets = {column.output: column.target for column in self._spec.streams[0].columns}
            return table.rows.select(*(F.col(quote(targets[shown[c.output]])).alias(c.target) for c in stream.columns))
        return target.in_target_columns(change.aggregate.results(state), stream.columns, stream.has_qualifies)

    @contextmanager
    def _checked(self, rows: DataFrame) -> Iterator[tuple[DataFrame, Violations | None]]:
        """Yield rows for the target, and how many violate each constraint; those of the table itself have been checked."""
        if not self._spec.constraints or self._redefinition.copied is not None:
            yield rows, None
            return
        with FlowChecks(self._spec).counted(rows, "the rows of the new query") as found:
            yield found

    def _info(self, version: int, batch: int | None, violations: Violations | None = None) -> str:
        last = -1 if batch is None else batch
        spec, read = self._spec, _last_read(self._session, self._spec, version)
        info = CommitInfo(spec.name, spec.id, self._epoch, last + 1, last, 0, "altered", read_version=version, read=read)
        return replace(info, violations=violations, application=spec.application).to_json()


def _column(side: str, name: str) -> SparkColumn:
    return F.col(f"{side}.{quote(name)}")


def _last_read(spark: SparkSession, spec: FlowSpec, version: int) -> Cut | None:
    """Return how far a flow's last flush says that it has read its sources."""
    for at in range(version, -1, -1):
        found = delta_log.commit_info(spark, spec.target_location, at)
        try:
            said = json.loads(str(found.get("userMetadata")))["sqlext"]
            if said["flow_id"] != spec.id:
                continue
            sources = {name: SourceVersion(**each) for name, each in said["sources"].items()}
            return Cut(sources, tuple(said["mixed"]))
        except (ValueError, KeyError, TypeError):
            continue
    return None
