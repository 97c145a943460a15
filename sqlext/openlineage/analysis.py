"""The datasets and columns of a run, by Spark's analysis of its query. Runs no Spark job; used by the sending thread only."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from sqlext.execution.coordination.runs import Query, Runnable
from sqlext.execution.delta.target import ddl_of
from sqlext.execution.streaming.queries import with_unique_names
from sqlext.openlineage import naming
from sqlext.openlineage.naming import DatasetName
from sqlext.plan.lineage import Input, shown
from sqlext.quoting import quote_parts
from sqlext.redaction import Redaction
from sqlext.spark import delta_tables, jvm, sessions
from sqlext.spark.column_lineage import Origin, QueryColumns, ReadColumns, Use, columns_of
from sqlext.spark.plans import analysed
from sqlext.spark.process import metastores

logger = logging.getLogger(__name__)

Columns = tuple[tuple[str, str], ...]
"""Name and type of each column."""


@dataclass(frozen=True)
class Dataset:
    """A dataset that a run reads or writes.

    Attributes:
        name: its name.
        table: its name in the catalog; None: it has none.
        columns: those that are known.
        key: the name by which a refresh's report knows it.
    """

    name: DatasetName
    table: DatasetName | None = None
    columns: Columns = ()
    key: str = ""


@dataclass(frozen=True)
class Source:
    """A column that a value comes from, and how."""

    dataset: DatasetName
    column: str
    use: Use


@dataclass(frozen=True)
class Datasets:
    """The datasets of a run.

    Attributes:
        inputs: what it reads, each once.
        output: what it writes; None: the table is not there yet.
        origins: by column of the output, where its values come from; None: that cannot be known.
    """

    inputs: tuple[Dataset, ...] = ()
    output: Dataset | None = None
    origins: Mapping[str, tuple[Source, ...]] | None = field(default=None)


class Analysis:
    """See the module's docstring.

    Args:
        spark: a session of the application.
        show: redacts secrets in names.
    """

    def __init__(self, spark: SparkSession, show: Redaction) -> None:
        self._spark = spark
        self._show = show
        self._catalog = naming.of_catalog(spark.conf.get("spark.sql.warehouse.dir") or "", metastores(spark))

    def datasets(self, runs: Runnable) -> Datasets:
        """Return the datasets of a run; what cannot be found out is left out. Never raises."""
        found = None if runs.query is None else self._columns(runs, runs.query)
        if found is None:
            inputs = tuple(dataset for each in runs.reads for dataset in self._recorded(each))
            return Datasets(_each_once(inputs), self._output(runs, runs.columns))
        assert runs.query is not None
        names = _target_names(runs.query, found)
        columns = runs.columns or tuple((names[name], kind) for name, kind in found.columns if name in names)
        inputs = tuple(each for read in found.reads for each in self._read(read))
        return Datasets(_each_once(inputs), self._output(runs, columns), self._origins(found, names))

    def _columns(self, runs: Runnable, query: Query) -> QueryColumns | None:
        try:
            session = sessions.restored_session(self._spark, runs.session)
            with jvm.active(session):
                return columns_of(session, analysed(with_unique_names(session.sql(query.sql))))
        except Exception:  # a query that only its own session can analyse, a table that is gone: lineage is no reason to fail
            logger.debug("the query of %s cannot be analysed", shown(runs.name), exc_info=True)
            return None

    def _output(self, runs: Runnable, columns: Columns) -> Dataset | None:
        location = runs.target.location
        if not location:  # of a table that a job creates
            try:
                location = delta_tables.named(self._spark, quote_parts(runs.target.name))[0]
            except Exception:
                logger.debug("table %s is not there", shown(runs.target.name), exc_info=True)
                return None
        return self._table(Input(runs.target.name, location), columns)[0]

    def _recorded(self, read: Input) -> tuple[Dataset, ...]:
        """Return what is on record of a relation, with the columns of a Delta table."""
        columns: Columns = ()
        try:
            if read.location:
                fields = delta_tables.schema_of(delta_tables.snapshot(self._spark, read.location))
                columns = tuple((each.name, ddl_of(each.dataType)) for each in fields)
        except Exception:
            logger.debug("the columns of %s are not known", shown(read.name), exc_info=True)
        return self._table(read, columns)

    def _read(self, read: ReadColumns) -> tuple[Dataset, ...]:
        if not read.servers:
            return self._table(read.input, read.columns)
        _, _, topics = read.input.name[0].partition(" ")
        return tuple(Dataset(self._shown(each), columns=read.columns) for each in naming.of_topics(read.servers, topics))

    def _table(self, read: Input, columns: Columns) -> tuple[Dataset, ...]:
        """Return the dataset of a table or of files; none of a relation that has neither a place nor a name in the catalog."""
        in_catalog = self._shown(naming.of_table(self._catalog, read.name)) if len(read.name) > 1 else None
        name = self._shown(naming.of_location(read.location)) if read.location else in_catalog
        if name is None:
            return ()
        return (Dataset(name, None if in_catalog == name else in_catalog, columns, ".".join(read.name)),)

    def _origins(self, found: QueryColumns, names: Mapping[str, str]) -> Mapping[str, tuple[Source, ...]] | None:
        if found.origins is None or not names:
            return None
        datasets = [self._read(each) for each in found.reads]
        if not all(datasets):
            return None  # what has no name cannot be named as an origin
        return {target: _sources(found.origins[name], datasets) for name, target in names.items() if name in found.origins}

    def _shown(self, name: DatasetName) -> DatasetName:
        """Return a name without secrets: paths and addresses may have some."""
        return DatasetName(self._show.message(name.namespace), self._show.message(name.name))


def _target_names(query: Query, found: QueryColumns) -> Mapping[str, str]:
    """Return the name of the table's column, by that of the query's; empty: it is not known which goes where."""
    if query.columns:
        return dict(query.columns)
    names = query.names or tuple(name for name, _ in found.columns)
    is_whole = query.gives_columns and len(names) == len(found.columns)
    return {name: target for (name, _), target in zip(found.columns, names, strict=True)} if is_whole else {}


def _sources(origins: Iterable[Origin], datasets: list[tuple[Dataset, ...]]) -> tuple[Source, ...]:
    found = {Source(each.name, origin.column, origin.use) for origin in origins for each in datasets[origin.read]}
    return tuple(sorted(found, key=lambda each: (each.dataset.namespace, each.dataset.name, each.column, each.use)))


def _each_once(datasets: Iterable[Dataset]) -> tuple[Dataset, ...]:
    """Return datasets, each once, with the columns of all that have its name."""
    found: dict[DatasetName, Dataset] = {}
    for each in datasets:
        there = found.get(each.name)
        columns = each.columns if there is None else tuple(dict.fromkeys((*there.columns, *each.columns)))
        found[each.name] = Dataset(each.name, each.table, columns, each.key)
    return tuple(found.values())
