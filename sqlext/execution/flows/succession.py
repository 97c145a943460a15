"""A flow in the place of another one: nothing of the old one goes before the new one runs.

1. All checks of the successor pass, its table's definition among them; the old flow runs on (`creation.prepare`, `try_table`).
2. The successor is reserved, with the id of the flow that it replaces. A crash from here to step 5: the reservation is undone,
   the table is restored if it was replaced already, and the old flow is resumed.
3. The old flow is stopped, flushed; its record and its folder stay.
4. Its table is replaced, by one commit.
5. The successor starts. A failure from 3 to here is undone in the same way, and the old flow runs on.
6. It is recorded that the successor came to run, and the old flow is forgotten. After a crash before that, the next host does it.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from sqlext.errors import FlowError
from sqlext.execution.delta import delta_log, quarantine, target
from sqlext.execution.delta.commit import USER_METADATA, CommitInfo
from sqlext.execution.flows.registry import FlowRecord, FlowState, Records
from sqlext.plan.constraints import quarantines
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import FLOW_PROPERTY
from sqlext.quoting import quote_parts
from sqlext.spark import delta_tables
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)


def undo_table(spark: SparkSession, spec: FlowSpec, records: Records) -> None:
    """Take back what was made of the table of a flow that did not come to run.

    Args:
        spec: the flow's reservation.
    """
    for name in quarantines(spec.constraints):
        quarantine.undo(spark, name, spec.id)
    if not target.exists(spark, spec.target):
        if spec.target_location:
            HadoopPath(spark, spec.target_location).delete()  # files of a table that never got into the catalog
        return
    table = target.describe(spark, spec.target)
    if table.properties.get(FLOW_PROPERTY) != spec.id:
        return
    if spec.replaces_table:
        restore(spark, spec, table.location, records.get(spec.replaces))
    else:
        spark.sql(f"DROP TABLE {quote_parts(spec.target)}")


def restore(spark: SparkSession, spec: FlowSpec, location: str, old: FlowRecord | None) -> None:
    """Bring back the version before the table was replaced: rows, columns, properties, and Delta's id of it.

    Args:
        spec: of the flow that had replaced it.
        old: the flow before, if there was one; the commit is told to be its own, so that it trusts the rows.

    Raises:
        FlowError: the log does not reach back to the replacement any more.
    """
    version = _replaced_at(spark, location, spec.id)
    said = {}
    if old is not None:
        last = delta_log.last_transaction(spark, location, old.spec.application)
        last = -1 if last is None else last
        info = CommitInfo(old.spec.name, old.spec.id, old.epoch, last + 1, last, 0, "restored")
        said = {USER_METADATA: info.to_json()}
    with session_settings(spark, said):
        spark.sql(f"RESTORE TABLE {quote_parts(spec.target)} TO VERSION AS OF {version - 1}").collect()
    logger.warning("table %s is again as it was before flow %s, which did not start", ".".join(spec.target), spec.name)


def _replaced_at(spark: SparkSession, location: str, flow_id: str) -> int:
    version = delta_tables.version(spark, location)
    while version > 0:
        found = delta_log.actions(spark, location, version)
        if found is None:
            break
        configurations = [each["metaData"].get("configuration", {}) for each in found if "metaData" in each]
        is_replacement = "REPLACE" in str(delta_log.info_of(found).get("operation"))
        if is_replacement and any(each.get(FLOW_PROPERTY) == flow_id for each in configurations):
            return version
        version -= 1
    raise FlowError(f"The log of the table in {location} does not tell which version flow {flow_id} replaced.")


def is_half_made(record: FlowRecord, records: Records) -> bool:
    """Whether a flow whose process has died was not made to its end, and is to be undone.

    One that has come to run in the place of another is not, whatever became of it later: the old flow may still be on record.
    """
    return record.state is FlowState.RESERVED or (
        record.state in (FlowState.FAILED, FlowState.RETRYING) and record.spec.replaces in records and not record.has_succeeded
    )
