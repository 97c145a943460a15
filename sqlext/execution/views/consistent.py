"""Versions of tables that belong together: `sqlext.consistent_versions`, and the table function of that name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import OptionError, UnsupportedError
from sqlext.execution.views.cuts import Cuts
from sqlext.plan.cut import NoSharedCut, TableHistory, TableVersion, shared_cut
from sqlext.plan.view_spec import SourceVersion
from sqlext.spark import delta_tables
from sqlext.spark.inputs import inputs_of
from sqlext.spark.plans import analysed

FUNCTION = "consistent_versions"
_SCHEMA = "table_name STRING, version BIGINT, cut MAP<STRING, BIGINT>"


def consistent_versions(spark: SparkSession, tables: Sequence[str]) -> dict[str, int]:
    """Return the newest versions of some tables that are all made of the same versions of their first sources.

    A join of the tables `VERSION AS OF` these is repeatable: it equals the queries of the flows and views that keep them,
    composed over the first sources at one cut.

    Args:
        spark: the session.
        tables: the tables' names, as written in SQL: of materialized views, of flows, or of tables that nobody keeps.

    Returns:
        The version of each table, by the name that was given.

    Raises:
        OptionError: no table was named.
        AnalysisException: there is no such Delta table.
        UnsupportedError: the tables have no versions that belong together.
    """
    return {name: at.version for name, at in _found(spark, tables).items()}


def rows_of(spark: SparkSession, tables: Sequence[str]) -> DataFrame:
    """Return the rows of the table function: for each table its version, and the versions of the first sources.

    Raises:
        OptionError, AnalysisException, UnsupportedError: see `consistent_versions`.
    """
    found = _found(spark, tables)
    rows = [(name, at.version, {source: each.version for source, each in at.cut.sources.items()}) for name, at in found.items()]
    return spark.createDataFrame(rows, _SCHEMA)


def _found(spark: SparkSession, tables: Sequence[str]) -> dict[str, TableVersion]:
    if not tables:
        raise OptionError("consistent_versions needs the name of at least one table.")
    cuts, histories = Cuts(spark), []
    for name in dict.fromkeys(tables):
        location, table_id, _ = delta_tables.named(spark, name)
        newest = SourceVersion(table_id, delta_tables.version(spark, location), location)
        own = inputs_of(spark, analysed(spark.table(name)))[0]
        histories.append(TableHistory(name, partial(cuts.history, ".".join(own.name), newest)))
    try:
        return dict(zip(dict.fromkeys(tables), shared_cut(histories), strict=True))
    except NoSharedCut as because:
        raise UnsupportedError(
            f"{', '.join(tables)} have no versions that are made of the same versions of their sources: {because}. REFRESH "
            "MATERIALIZED VIEW .. CASCADE brings a chain to one cut."
        ) from None
