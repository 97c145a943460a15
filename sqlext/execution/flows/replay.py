"""REPLAY QUARANTINE: rows that were quarantined, brought into the table of their flow once they hold its constraints.

For each flow whose rows are in the quarantine table:

1. Rows that hold all constraints which would keep them out are written as files of the flow's table, which no version names yet.
2. These rows are deleted from the quarantine table, in a commit that names the files. After a crash before it, nothing has
   happened; VACUUM deletes the files.
3. The files are added to the flow's table, in a commit with the same transaction. After a crash before it, whatever comes next,
   a start of the flow, REPLAY, SAVEPOINT or RESTORE, finds the transaction of step 2 in the quarantine table and not in the
   flow's, and adds the files first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from sqlext.errors import FlowError, SchemaError, SqlextError, UnsupportedError
from sqlext.execution.delta import commit, delta_log, staged_files, target
from sqlext.execution.delta.staged_files import StagedFiles
from sqlext.execution.delta.target import with_nulls
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, CommitIdentity, TableTransaction
from sqlext.execution.flows.creation import same_name
from sqlext.execution.state.row_checks import holds
from sqlext.moments import Moment, announce
from sqlext.options import ValueText
from sqlext.plan.constraints import FLOW_COLUMN, FLOW_ID_COLUMN, INPUT_COLUMN
from sqlext.plan.flow_spec import FlowSpec
from sqlext.quoting import quote, quote_parts
from sqlext.spark import conditions, delta_tables, failures, jvm
from sqlext.spark.settings import recorded, recorded_settings

logger = logging.getLogger(__name__)

_REASON = "replay"


@dataclass(frozen=True)
class Quarantine:
    """A quarantine table.

    Attributes:
        name: qualified.
        location: of its files.
    """

    name: tuple[str, ...]
    location: str


def opened(spark: SparkSession, name: tuple[str, ...]) -> Quarantine:
    """Return a quarantine table.

    Raises:
        NotFoundError: there is no such table.
        UnsupportedError: it is not a quarantine table.
    """
    found = target.describe(spark, name)
    if FLOW_ID_COLUMN not in found.columns:
        raise UnsupportedError(
            f"{'.'.join(name)} is not a table of quarantined rows. REPLAY QUARANTINE takes the table that ON VIOLATION "
            "QUARANTINE INTO names."
        )
    return Quarantine(name, found.location)


def flows_in(spark: SparkSession, table: Quarantine, condition: ValueText | None) -> dict[tuple[str, str], int]:
    """Return the flows whose rows meet a condition, by name and id, and the numbers of these rows.

    Raises:
        SchemaError: Spark refuses the condition, or it is not about one row.
    """
    rows = spark.table(quote_parts(table.name))
    check_condition(spark, rows.schema, condition)
    found = _chosen(rows, condition).groupBy(FLOW_COLUMN, FLOW_ID_COLUMN).count().collect()
    return {(str(row[FLOW_COLUMN]), str(row[FLOW_ID_COLUMN])): int(row["count"]) for row in sorted(found, key=str)}


def check_condition(spark: SparkSession, columns: StructType, condition: ValueText | None) -> None:
    """See that Spark takes the condition of a WHERE, and that it is about one row; see `flows_in`."""
    if condition is None:
        return
    try:
        found = conditions.analyse(spark, columns, condition.value)
    except PySparkException as error:
        raise SchemaError(f"The condition cannot be used: {failures.reason_of(error)}", condition.position) from None
    if found.has_subquery or not found.is_deterministic:
        raise UnsupportedError("The condition of REPLAY QUARANTINE must be about one row, and deterministic.", condition.position)


class Replay:
    """The rows of one flow, on their way back from a quarantine table.

    Args:
        session: one like the flow's own, and of nobody else.
        table: the quarantine table.
        spec: the flow.
    """

    def __init__(self, session: SparkSession, table: Quarantine, spec: FlowSpec) -> None:
        self._session = session
        self._table = table
        self._spec = spec
        self._app = f"{spec.id}/{_REASON}/{delta_tables.table_id(session, table.location)}"

    def run(self, condition: ValueText | None, asked: Mapping[str, str]) -> int:
        """Bring back the rows that meet a condition and hold the flow's constraints; return their number.

        Args:
            condition: None: all rows.
            asked: the settings under which the condition is meant, which are those of the statement's session.

        Raises:
            UnsupportedError: the flow's table needs Delta's own writer, or the quarantine table has no deletion vectors.
        """
        target.check_same_table(self._session, self._spec)
        return commit.again_after_conflicts(lambda: self._run(condition, asked), lambda: None)

    def _run(self, condition: ValueText | None, asked: Mapping[str, str]) -> int:
        session = self._session
        self.finish()
        snapshot = delta_tables.snapshot(session, self._table.location)
        number = 1 + (delta_log.last_transaction(session, self._table.location, self._app, int(snapshot.version())) or 0)
        transaction = TableTransaction(session, snapshot, None, is_small=False)
        if not transaction.can_mark_rows:
            raise UnsupportedError(
                f"Rows cannot be taken out of {'.'.join(self._table.name)} one by one: ALTER TABLE it SET TBLPROPERTIES "
                "('delta.enableDeletionVectors' = 'true')."
            )
        rows = transaction.placed_rows({}).where((F.col(FLOW_ID_COLUMN) == self._spec.id) & F.col(INPUT_COLUMN).isNull())
        with recorded_settings(session, asked):
            rows = _chosen(rows, condition)
        columns = session.table(quote_parts(self._spec.target)).schema
        rows = _with_columns(rows, columns)
        for each in self._spec.constraints:
            rows = rows if each.keeps_row else rows.where(holds(each, rows))
        with jvm.counted(rows) as (held, count):
            if not count:
                return 0
            staged = staged_files.stage(held.select(*map(quote, columns.names)), self._spec.target_location)  # 1
            if staged is None:
                raise UnsupportedError(
                    f"Rows cannot be replayed into {'.'.join(self._spec.target)}: it has columns that the flow does not write, "
                    "or Delta must write them. INSERT INTO it from the quarantine table, and DELETE them there."
                )
            info = self._info(count, {"staged": staged.to_json()})
            transaction.replace(held.select(FILE_COLUMN, ROW_COLUMN), None, CommitIdentity(self._app, number, info))  # 2
        announce(Moment.REPLAY_BEGUN, self._spec.name)
        self._add(staged, number, count)  # 3
        return count

    @property
    def last(self) -> tuple[int | None, int | None]:
        """The last transaction in the quarantine table, and in the flow's."""
        places = (self._table.location, self._spec.target_location)
        taken, added = (delta_log.last_transaction(self._session, place, self._app) for place in places)
        return taken, added

    def finish(self) -> None:
        """Add the files of a replay that a crash has left between its two commits."""
        taken, added = self.last
        if taken is not None and (added is None or added < taken):
            info = self._info_of(taken)
            self._add(StagedFiles.from_json(info["staged"]), taken, int(info["rows"]))

    def _add(self, staged: StagedFiles, number: int, count: int) -> None:
        location, info = self._spec.target_location, self._info(count, {})
        staged_files.check_files(self._session, location, [staged])
        if staged_files.append(self._session, location, [staged], CommitIdentity(self._app, number, info)):
            return
        rows = staged_files.rows_of(self._session, location, [staged])  # the table has changed meanwhile
        writer = rows.write.format("delta").mode("append").option("txnAppId", self._app).option("txnVersion", number)
        writer.option("userMetadata", info).saveAsTable(quote_parts(self._spec.target))

    def _info(self, count: int, more: dict[str, str]) -> str:
        spec = self._spec
        said = {"flow": spec.name, "flow_id": spec.id, "rows": count, "reason": _REASON, "from": ".".join(self._table.name)}
        return json.dumps({"sqlext": said | more})

    def _info_of(self, number: int) -> dict[str, str]:
        """Return what the commit on the quarantine table with a number of the transaction says."""
        session, location = self._session, self._table.location
        version = delta_log.version_of(session, location, self._app, number, delta_tables.version(session, location))
        if version is not None:
            found: dict[str, str] = json.loads(delta_log.commit_info(session, location, version)["userMetadata"])["sqlext"]
            return found
        raise FlowError(
            f"A replay of {'.'.join(self._table.name)} into {'.'.join(self._spec.target)} was not finished, and the log of the "
            "first does not reach back to it any more. Its rows are in the version before."
        )


def replay(
    spark: SparkSession,
    table: Quarantine,
    condition: ValueText | None,
    specs: Sequence[FlowSpec],
    session_of: Callable[[FlowSpec], SparkSession],
    turn_at: Callable[[tuple[str, ...]], AbstractContextManager[bool]],
) -> str:
    """Bring quarantined rows back through their flows.

    Args:
        spark: the session of the statement.
        table: where they are.
        condition: which of them; None: all.
        specs: all flows.
        session_of: returns a session like a flow's own.
        turn_at: has the turn at a flow's table: a savepoint or a restoration between the two commits would lose the rows.

    Returns:
        A sentence with the numbers of rows, by table, and how many stay and why.
    """
    appending = {spec.id: spec for spec in specs if spec.appends}
    for spec in appending.values():
        if any(same_name(table.name, each) for each in spec.quarantine_tables):
            with turn_at(spec.target):
                Replay(session_of(spec), table, spec).finish()
    said, asked = [], recorded(spark)
    for (name, flow_id), there in flows_in(spark, table, condition).items():
        if flow_id not in appending:
            said.append(f"{there} rows stay: the flow {name} that has quarantined them is no more, or appends no rows")
            continue
        spec = appending[flow_id]
        with turn_at(spec.target):
            done = Replay(session_of(spec), table, spec).run(condition, asked)
        said.append(f"{done} rows replayed into {'.'.join(spec.target)}")
        said += [f"{there - done} rows stay: they still violate its constraints"] if done < there else []
    return "; ".join(said) or f"there are no such rows in {'.'.join(table.name)}"


def finish_all(session: SparkSession, spec: FlowSpec) -> None:
    """Add the files of replays that a crash has left between their two commits; see `Replay.finish`.

    Args:
        session: one like the flow's own, and of nobody else.
        spec: the flow.
    """
    for each in _replays(session, spec):
        each.finish()


def transactions(session: SparkSession, spec: FlowSpec) -> list[tuple[int | None, int | None]]:
    """Return the last transactions of a flow's replays, each in its quarantine table and in the flow's; see `finish_all`."""
    return [each.last for each in _replays(session, spec)]


def _replays(session: SparkSession, spec: FlowSpec) -> Iterator[Replay]:
    for name in spec.quarantine_tables if spec.appends else ():
        try:
            table = opened(session, name)
        except SqlextError:  # nothing is quarantined there any more
            continue
        yield Replay(session, table, spec)


def finish_at_start(session: SparkSession, spec: FlowSpec) -> None:
    """Do `finish_all`, in a copy of a session; where that is not possible, the flow starts, and REPLAY QUARANTINE says why."""
    if not spec.quarantine_tables:
        return
    try:
        finish_all(jvm.clone_session(session), spec)
    except (SqlextError, *failures.SPARK_ERRORS) as error:
        logger.error("flow %s: a replay that was not finished: %s", spec.name, failures.reason_of(error))


def _with_columns(rows: DataFrame, columns: StructType) -> DataFrame:
    """Return quarantined rows with the columns of the flow's table, by name: they may lack new ones, and fields of these."""
    names = {each.name.lower() for each in columns}
    others = (each for each in rows.schema if each.name.lower() not in names)
    return rows.to(StructType([*(StructField(each.name, with_nulls(each.dataType)) for each in columns), *others]))


def _chosen(rows: DataFrame, condition: ValueText | None) -> DataFrame:
    chosen: Column = F.lit(True) if condition is None else F.expr(condition.value)
    return rows.where(chosen)
