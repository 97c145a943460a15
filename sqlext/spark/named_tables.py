"""The tables that a plan reads by their names, and whether the catalog still means the same by these.

Relies on Spark's private side: the catalogs of a session, and the catalog's entry in a plan's leaf. Checked with Spark 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.java import items_of, java_array, java_of
from sqlext.spark.plans import nodes_of, relation_of


@dataclass(frozen=True)
class NamedTable:
    """A Delta table under its name.

    Attributes:
        name: catalog, database and table.
        location: the folder of its files, as the catalog says it.
    """

    name: tuple[str, ...]
    location: str


def named_tables(plan: Any) -> tuple[NamedTable, ...]:
    """Return the Delta tables that an analysed plan reads by their names, as the catalog had them when it was analysed."""
    leaves = [node for node in nodes_of(plan) if relation_of(node) is not None]
    entries = [leaf.catalogTable().get() for leaf in leaves if leaf.catalogTable().isDefined()]
    return tuple(dict.fromkeys(_named(each) for each in entries))


def are_same(spark: SparkSession, tables: Iterable[NamedTable]) -> bool:
    """Return whether names still mean the same tables; False: a table is gone, or cannot be found now. Runs no Spark job."""
    try:
        return all(_found(spark, each.name) == each for each in tables)
    except SPARK_ERRORS:
        return False


def _found(spark: SparkSession, name: tuple[str, ...]) -> NamedTable | None:
    """Return the Delta table that a name means now; None: it means something else."""
    catalog, *namespace, table = name
    parts = java_array(spark, java_of(spark).java.lang.String, namespace)
    identifier = java_of(spark).org.apache.spark.sql.connector.catalog.Identifier.of(parts, table)
    loaded = spark._jsparkSession.sessionState().catalogManager().catalog(catalog).loadTable(identifier)
    if str(loaded.getClass().getSimpleName()) != "DeltaTableV2":
        return None
    return _named(loaded.catalogTable().get())


def _named(entry: Any) -> NamedTable:
    return NamedTable(tuple(map(str, items_of(entry.identifier().nameParts()))), str(entry.location().toString()))
