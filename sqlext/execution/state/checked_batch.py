"""What the checks of a micro-batch's rows have found: numbers of violations, and rows to quarantine, which a flush commits.

Both lie in the micro-batch's folder in the buffer, beside the folder of the rows that go into the table, and are there before
the micro-batch is complete: after a crash before that, Spark repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType

from sqlext.errors import FlowError
from sqlext.execution.delta import quarantine as quarantine_table
from sqlext.execution.state.row_checks import Violations
from sqlext.plan.constraints import BATCH_COLUMN
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark.storage import COMMITTER, HadoopPath

FOLDER_COLUMN = "__sqlext_batch"
"""The column of which the name of a micro-batch's folder has the value."""
_FORMAT = 1


@dataclass(frozen=True)
class QuarantinedRows:
    """Rows of a micro-batch for a quarantine table.

    Attributes:
        table: the table, qualified.
        place: the folder of the rows' files, relative to the buffer's.
        schema: of the rows, as Spark's JSON.
    """

    table: tuple[str, ...]
    place: str
    schema: str


@dataclass(frozen=True)
class CheckedBatch:
    """What was found in a micro-batch.

    Attributes:
        violations: how many of its rows violate each constraint.
        quarantined: its rows for quarantine tables, at most one for each table.
    """

    violations: Violations
    quarantined: tuple[QuarantinedRows, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no row violates a constraint."""
        return not any(self.violations.values())


def noted(home: HadoopPath, place: str, violations: Violations, rows: Mapping[tuple[str, ...], DataFrame]) -> CheckedBatch:
    """Write what was found in a micro-batch.

    Args:
        home: the buffer's folder.
        place: that of the micro-batch's rows, relative to it.
        violations: how many rows violate each constraint.
        rows: rows for quarantine tables.
    """
    folder, _, version = place.rpartition("/")
    quarantined = []
    for number, (table, chosen) in enumerate(rows.items()):
        written = f"{folder}/quarantined-{version}-{number}"
        chosen.write.options(**COMMITTER).parquet(home.child(written).location)
        quarantined.append(QuarantinedRows(table, written, chosen.schema.json()))
    found = CheckedBatch(violations, tuple(quarantined))
    home.child(_note(place)).create_text(json.dumps({"format": _FORMAT, **asdict(found)}))
    return found


def found_in(home: HadoopPath, place: str, names: Collection[str]) -> CheckedBatch | None:
    """Return what was found in a micro-batch; None: its rows were not checked.

    Args:
        home, place: as for `noted`.
        names: what lies in the micro-batch's folder.

    Raises:
        FlowError: another version of sqlext has written it.
    """
    if _note(place).rpartition("/")[2] not in names:
        return None
    file = home.child(_note(place))
    found = json.loads(file.read_text())
    if found.get("format") != _FORMAT:
        raise FlowError(f"Another version of sqlext has written what the checks of a micro-batch have found, {file.location}.")
    quarantined = (QuarantinedRows(tuple(each["table"]), each["place"], each["schema"]) for each in found["quarantined"])
    return CheckedBatch(Violations(found["violations"]), tuple(quarantined))


def drop(home: HadoopPath, place: str, found: CheckedBatch) -> None:
    """Delete what was found in a micro-batch; see `noted`."""
    for path in (*(each.place for each in found.quarantined), _note(place)):
        home.child(path).delete()


def quarantine(spark: SparkSession, home: HadoopPath, spec: FlowSpec, batches: Sequence[tuple[int, CheckedBatch]]) -> None:
    """Bring rows of micro-batches into quarantine tables, those that are not there yet, in one commit for each table.

    Args:
        spark: the session.
        home: the buffer's folder.
        spec: the flow.
        batches: what was found in each, by its number, in order.
    """
    for table in dict.fromkeys(each.table for _, found in batches for each in found.quarantined):
        done = quarantine_table.last_batch(spark, table, spec)
        rows = {at: each for at, found in batches if at > done for each in found.quarantined if each.table == table}
        if rows:
            quarantine_table.append(table, _rows_of(spark, home, rows.values()), spec, min(rows), max(rows))


def _rows_of(spark: SparkSession, home: HadoopPath, quarantined: Iterable[QuarantinedRows]) -> DataFrame:
    """Return the rows of micro-batches for one table; columns that some have and others lack are NULL there."""
    places: dict[str, list[str]] = {}
    for each in quarantined:
        places.setdefault(each.schema, []).append(home.child(each.place).location)
    reader = spark.read.option("basePath", home.location)  # the folder's name has the micro-batch
    kinds = {schema: StructType.fromJson(json.loads(schema)).add(FOLDER_COLUMN, LongType()) for schema in places}
    frames = [reader.schema(kinds[schema]).parquet(*at) for schema, at in places.items()]
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames)
    return rows.withColumnRenamed(FOLDER_COLUMN, BATCH_COLUMN)


def _note(place: str) -> str:
    folder, _, version = place.rpartition("/")
    return f"{folder}/checked-{version}.json"
