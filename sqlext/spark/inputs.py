"""The relations that an analysed query reads, by name and folder, whatever Spark reads them with.

Relies on Spark's private side: Catalyst's leaves. Checked with Spark 4.2.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sqlext.plan.lineage import Input
from sqlext.spark.java import items_of, java_of, texts_of
from sqlext.spark.plans import kind, relation_of

NOTHING_READ = ("LocalRelation", "OneRowRelation", "Range", "LogicalRDD", "CTERelationRef", "ExternalRDD")
"""Leaves of rows that lie in the plan, or that some other node reads."""


def inputs_of(spark: SparkSession, *plans: Any) -> tuple[Input, ...]:
    """Return the relations that analysed plans read, each once; rows that lie in a plan itself are none."""
    found: dict[Input, None] = {}
    for plan in plans:
        for part in (plan, *items_of(plan.subqueriesAll())):
            for leaf in items_of(part.collectLeaves()):
                if kind(leaf) not in NOTHING_READ:
                    found[input_of(spark, leaf)] = None
    return tuple(found)


def input_of(spark: SparkSession, leaf: Any) -> Input:
    """Return the relation that a leaf of an analysed plan reads."""
    match kind(leaf):
        case "LogicalRelation":
            return _of_files(spark, leaf)
        case "StreamingRelation":
            return _of_stream(spark, leaf)
        case "StreamingRelationV2":
            return _of_connector(leaf)
        case "HiveTableRelation":
            return _of_table(spark, leaf.tableMeta())
        case "DataSourceV2Relation":
            return Input((str(leaf.name()),))
        case _:
            return Input((str(leaf.nodeName()).strip(),))


def _of_files(spark: SparkSession, leaf: Any) -> Input:
    found = relation_of(leaf)
    if leaf.catalogTable().isDefined():
        return _of_table(spark, leaf.catalogTable().get(), "" if found is None else found.location)
    if found is not None:
        return Input((found.name,), found.location)
    files = leaf.relation().location() if kind(leaf.relation()) == "HadoopFsRelation" else None
    paths = [] if files is None else [str(path.toString()) for path in items_of(files.rootPaths())]
    return Input((paths[0],), paths[0]) if len(paths) == 1 else Input((str(leaf.nodeName()).strip(),))


def _of_stream(spark: SparkSession, leaf: Any) -> Input:
    source = leaf.dataSource()
    if source.catalogTable().isDefined():
        return _of_table(spark, source.catalogTable().get(), is_stream=True)
    path = next((value for key, value in texts_of(spark, source.options()).items() if key.lower() == "path"), "")
    return Input((path or str(leaf.sourceName()),), path, is_stream=True)


def _of_connector(leaf: Any) -> Input:
    """Return a stream of a connector, such as the topics of Kafka."""
    options = {str(key).lower(): str(value) for key, value in dict(leaf.extraOptions().asCaseSensitiveMap()).items()}
    topics = next((options[key] for key in ("subscribe", "subscribepattern", "assign") if key in options), "")
    name = str(leaf.sourceName())
    return Input((f"{name} {topics}" if topics else name,), is_stream=True)


def _of_table(spark: SparkSession, table: Any, location: str = "", is_stream: bool = False) -> Input:
    """Return a table of the catalog, under its name there; its folder is that of its entry if it is not known otherwise."""
    identifier = table.identifier()
    parts = (identifier.catalog(), identifier.database())
    name = (*(str(part.get()) for part in parts if part.isDefined()), str(identifier.table()))
    if not location and table.storage().locationUri().isDefined():  # as a path: a URI escapes what a path has as it is
        location = str(java_of(spark).org.apache.hadoop.fs.Path(table.storage().locationUri().get()).toString())
    return Input(name, location, is_stream)
