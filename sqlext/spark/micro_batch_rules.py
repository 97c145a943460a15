"""What Spark's optimizer does that is wrong for the micro-batches of some streams, and is left out there.

Relies on Spark's private side: reads Catalyst plans, and names rules. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from sqlext.plan.constraints import COMPUTED_MARK
from sqlext.spark import row_errors
from sqlext.spark.plans import analysed, kind, nodes_of

_EXCLUDED = "spark.sql.optimizer.excludedRules"
_ALIASES = "org.apache.spark.sql.catalyst.optimizer.RemoveRedundantAliases"


def sound_rules(frame: DataFrame) -> Mapping[str, str]:
    """Return the settings with which a streaming query must be started, so that this is left out.

    Args:
        frame: the analysed query.
    """
    found = dict(row_errors.SETTINGS) if COMPUTED_MARK in frame.columns else {}
    if _has_grouping_sets_and_union(frame):
        given = frame.sparkSession.conf.get(_EXCLUDED, None)
        found[_EXCLUDED] = f"{given},{_ALIASES}" if given else _ALIASES
    return found


def _has_grouping_sets_and_union(frame: DataFrame) -> bool:
    """Return whether a query has both.

    Spark renames the columns that a micro-batch reads to those of the query. Taking such names away, in the first branch of a
    UNION ALL, leaves the Expand of ROLLUP, CUBE or GROUPING SETS with a column that is not there: the stream would fail with
    PLAN_VALIDATION_FAILED_RULE_IN_BATCH. The rule only makes plans smaller.
    """
    kinds = {kind(node) for node in nodes_of(analysed(frame))}
    return {"Expand", "Union"} <= kinds
