"""Creating a materialized view: what is checked before anything exists, its table, and what undoes it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, NullType, StructField, StructType

from sqlext.errors import NameTakenError, Position, SchemaError, UnsupportedError, ViewError
from sqlext.execution.delta import delta_log, table_definition, target
from sqlext.execution.delta.commit import USER_METADATA
from sqlext.execution.flows.constraint_checks import check_condition, refuse_errors
from sqlext.execution.flows.registry import FlowRecord, without_case
from sqlext.execution.views.history import metadata_of, state_of
from sqlext.execution.views.ownership import is_table_of, maker_of
from sqlext.execution.views.query import analyse
from sqlext.execution.views.registry import Records, ViewRecord, of_name
from sqlext.execution.views.writing import Replacement
from sqlext.plan.constraints import Constraint, Violation, without_dropped
from sqlext.plan.job_graph import TableDefinition
from sqlext.plan.lineage import Input, Lineage, Node, NodeKind, shown
from sqlext.plan.view_spec import VIEW_PROPERTY, RefreshPolicy, Schedule, ViewSpec
from sqlext.quoting import fold, quote_parts
from sqlext.spark import delta_tables, jvm, plans, settings
from sqlext.spark.inputs import inputs_of
from sqlext.spark.settings import session_settings
from sqlext.spark.storage import HadoopPath


@dataclass(frozen=True)
class ViewRequest:
    """What a statement wants: a materialized view.

    Attributes:
        name: of the view, qualified.
        session: the view's own.
        frame: its query, analysed in that session.
        text: the statement, as written.
        query: its query.
        written, written_columns: see `ViewSpec`; the columns are those of `frame` unless they are given.
        definition: of the table that holds the rows.
        replace: whether it takes the place of a view that is there.
        constraints: on its rows; the query leaves out those that they drop.
        variables, session_bound: see `ViewSpec`.
        position: of the statement's beginning.
    """

    name: tuple[str, ...]
    session: SparkSession
    frame: DataFrame
    text: str
    query: str
    definition: TableDefinition
    written: str = ""
    written_columns: tuple[str, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    policy: RefreshPolicy = RefreshPolicy.AUTO
    replace: bool = False
    if_not_exists: bool = False
    constraints: tuple[Constraint, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    session_bound: tuple[str, ...] = ()
    position: Position | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the view's columns."""
        return tuple(column.name for column in self.definition.columns) or tuple(self.frame.columns)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The relations that the query reads."""
        return inputs_of(self.session, plans.analysed(self.frame))

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the statement gives the table."""
        return {key: given.value for key, given in self.definition.properties.items()}


def without_dropped_rows(request: ViewRequest) -> ViewRequest:
    """Return a request whose query leaves out the rows that the view's constraints drop.

    Raises:
        UnsupportedError: a constraint quarantines rows, or is not about one row.
        SchemaError: Spark refuses a condition.
    """
    frame, listed = request.frame, request.definition.columns
    if not request.constraints or len(request.columns) != len(frame.columns):  # which `check_query` refuses
        return request
    fields = [StructField(name, field.dataType) for name, field in zip(request.columns, frame.schema, strict=True)]
    kinds = [each.type for each in listed] or [""] * len(fields)
    given = [StructField(f.name, DataType.fromDDL(kind) if kind else f.dataType) for f, kind in zip(fields, kinds, strict=True)]
    for each in request.constraints:
        if each.violation is Violation.QUARANTINE:
            raise UnsupportedError(
                f"The constraint `{each.name}` quarantines rows, and those of a materialized view change: a row that violates it "
                "now may hold it later. Use ON VIOLATION DROP ROW; a second view with WHERE NOT (..) has the rows that it drops.",
                each.position,
            )
        refuse_errors(each, appends=False)
        check_condition(request.session, StructType(given), each)
    query = without_dropped(request.query, dict(zip(request.columns, kinds, strict=True)), request.constraints)
    if query == request.query:
        return request
    names = tuple(frame.columns)
    return replace(request, query=query, frame=request.session.sql(query), written=request.query, written_columns=names)


# What is checked.


def check_query(request: ViewRequest) -> None:
    """See whether a table can have the query's columns.

    Raises:
        UnsupportedError: the query reads a stream.
        SchemaError: it cannot.
    """
    if request.frame.isStreaming:
        raise UnsupportedError(
            "A materialized view reads tables, and its query reads a stream. CREATE STREAMING TABLE keeps a query over streams "
            "up to date.",
            request.position,
        )
    target.check_column_list(request.frame, request.definition.columns, ())
    times = Counter(fold(name) for name in request.columns)
    if (twice := next((name for name in request.columns if times[fold(name)] > 1), None)) is not None:
        raise SchemaError(
            f"The materialized view {shown(request.name)} would have two columns `{twice}`. Give one another name in the query: "
            f".. AS name.",
            request.position,
        )
    target.check_spelling(request.columns, request.position)
    target.check_names(request.columns, request.properties)
    for name, column in zip(request.columns, request.frame.schema.fields, strict=True):
        if isinstance(column.dataType, NullType):
            raise SchemaError(f"The column `{name}` is NULL, without a type. CAST it in the query.", request.position)


def check_policy(session: SparkSession, name: tuple[str, ...], query: str, policy: RefreshPolicy) -> None:
    """Raise UnsupportedError if a view with REFRESH POLICY INCREMENTAL STRICT cannot be refreshed incrementally.

    Args:
        session: the view's own.
        name: the view's, qualified.
        query: its query.
        policy: its policy.
    """
    if policy is RefreshPolicy.STRICT and (obstacle := analyse(session, query).obstacle):
        raise UnsupportedError(
            f"The materialized view {shown(name)} cannot be refreshed incrementally: {obstacle}. Change the query, or leave out "
            "STRICT: it is then computed in full."
        )


def check_free(request: ViewRequest, records: Records, flows: Mapping[str, FlowRecord]) -> ViewRecord | None:
    """See whether a view may have its name.

    Returns:
        The view that it replaces; None: there is none.

    Raises:
        NameTakenError: a view, table or flow has the name, and is not to be replaced.
    """
    name, text = request.name, shown(request.name)
    being_made = (each for each in records.values() if each.is_reserved and without_case(each.spec.name) == without_case(name))
    if next(being_made, None) is not None:
        raise NameTakenError(f"The materialized view {text} is just being created, by another statement.", request.position)
    flow = next((each.spec for each in flows.values() if without_case(each.spec.target) == without_case(name)), None)
    if flow is not None:
        raise NameTakenError(
            f"The flow `{flow.name}` writes to {text}. Choose another name, or drop the flow and its table first.",
            request.position,
        )
    flow = next((each.spec for each in flows.values() if without_case(each.spec.qualified_name) == without_case(name)), None)
    if flow is not None:
        raise NameTakenError(f"There is a flow {text} already, into {shown(flow.target)}. Choose another name.", request.position)
    found = of_name(records, name)
    if found is not None and not request.replace:
        raise NameTakenError(
            f"There is a materialized view {shown(found.spec.name)} already. CREATE OR REPLACE MATERIALIZED VIEW recreates it, "
            "and IF NOT EXISTS leaves it as it is.",
            request.position,
        )
    _check_table(request, found)
    return found


def _check_table(request: ViewRequest, replaced: ViewRecord | None) -> None:
    """Raise NameTakenError if there is a table or view of the name that no materialized view has left."""
    session, text = request.session, shown(request.name)
    if not target.exists(session, request.name):
        return
    if replaced is not None and is_table_of(session, replaced.spec):
        return
    is_left = replaced is None and maker_of(session, request.name) is not None
    if is_left and request.replace:
        return
    if is_left:
        said = f"There is a table {text} already, which a materialized view that is gone has left. CREATE OR REPLACE recreates it"
    elif replaced is not None:
        said = f"{text} is now another table than that of the materialized view {text}. DROP TABLE it"
    else:
        said = f"There is a table or view {text} already, which is no materialized view. DROP it"
    raise NameTakenError(f"{said}, or choose another name.", request.position)


def check_cycle(request: ViewRequest, lineage: Lineage) -> None:
    """Raise UnsupportedError if a view would read itself, directly or through other views and flows.

    Args:
        request: what the statement wants.
        lineage: the graph.
    """
    reads = request.inputs
    key = Input(request.name, target.place_of(request.session, request.name) or "").key
    lineage.refuse_cycle(Node(key, request.name, NodeKind.VIEW, reads), request.position)


def temporary_views_in(frame: DataFrame) -> tuple[str, ...]:
    """Return the names of the temporary views that a query reads, which end with their session."""
    nodes = plans.nodes_of(plans.analysed(frame))
    found = (str(node.desc().identifier().table()) for node in nodes if plans.kind(node) == "View" and node.isTempView())
    return tuple(dict.fromkeys(found))


# What is made.


def reserve(request: ViewRequest) -> ViewSpec:
    """Return the record of a view before its table exists.

    Its location is that of a managed table to be made, when nothing lies there yet: all that is found there later came from the
    making.
    """
    session = request.session
    has_place = any(clause[:8].upper() == "LOCATION" for clause in request.definition.clauses)
    is_new = not has_place and not target.exists(session, request.name)
    location = jvm.default_location(session, request.name) if is_new else None
    location = None if location and HadoopPath(session, location).names() else location
    return ViewSpec(
        id=uuid.uuid4().hex,
        name=request.name,
        location=location or "",
        table_id="",
        text=jvm.redaction(session).sql(request.text),
        query=request.query,
        columns=request.columns,
        written=request.written,
        written_columns=request.written_columns or tuple(request.frame.columns),
        reads=request.inputs,
        has_own_types=any(column.type for column in request.definition.columns),
        policy=request.policy,
        schedule=request.schedule,
        catalog=session.catalog.currentCatalog(),
        database=session.catalog.currentDatabase(),
        settings=settings.recorded(session),
        variables=request.variables,
        session_bound=request.session_bound,
        constraints=tuple(replace(each, position=None) for each in request.constraints),
    )


def with_table(spec: ViewSpec, request: ViewRequest) -> ViewSpec:
    """Make the table of a view, empty, and complete the view's record.

    Args:
        spec: the view, as reserved.
        request: what makes it.
    """
    properties = _properties(spec, request)
    table = table_definition.create(
        request.session, spec.name, request.frame.schema, request.definition, properties, replaces=False
    )
    return _completed(spec, request, table, table.location)


@contextmanager
def modelled(spec: ViewSpec, request: ViewRequest, place: HadoopPath) -> Iterator[tuple[ViewSpec, Replacement]]:
    """Make an empty table with the definition of a view's that is to replace another one, and delete it after the block.

    Args:
        spec: the view, as reserved.
        request: what makes it.
        place: an unused location.

    Returns:
        The view's complete record, and what its first refresh replaces.

    Raises:
        UnsupportedError: the view is to have another location than the table that it replaces.
        AnalysisException: Delta does not accept the definition.
    """
    session = request.session
    old = target.describe(session, spec.name)
    _check_location(request, old.location)
    with table_definition.modelled(session, place, request.frame.schema, request.definition, _properties(spec, request)) as model:
        yield _completed(spec, request, model, old.location), Replacement(old.table_id, model.location)


def _properties(spec: ViewSpec, request: ViewRequest) -> dict[str, str]:
    return {**request.properties, VIEW_PROPERTY: spec.id}


def _completed(spec: ViewSpec, request: ViewRequest, table: target.Target, location: str) -> ViewSpec:
    """Return the record of a view.

    Args:
        spec: the view, as reserved.
        request: what makes it.
        table: has the view's definition.
        location: of the view's own table.
    """
    comment = delta_tables.comment(request.session, table.location)
    return replace(spec, location=location, table_id=table.table_id, columns=tuple(table.columns), comment=comment)


def _check_location(request: ViewRequest, location: str) -> None:
    clause = next((each for each in request.definition.clauses if each[:8].upper() == "LOCATION"), None)
    if clause is None:
        return
    written = str(request.session.sql(f"SELECT {clause[8:]}").collect()[0][0])
    if HadoopPath(request.session, written).location.rstrip("/") != location.rstrip("/"):
        raise UnsupportedError(
            f"The table of {shown(request.name)} is in {location}, and LOCATION '{written}' is another place. Leave LOCATION "
            "out, or DROP MATERIALIZED VIEW it first.",
            request.position,
        )


def undo_table(spark: SparkSession, record: ViewRecord) -> None:
    """Take back what was made of the table of a view that was not created to its end: drop it, or restore the one before.

    Raises:
        ViewError: the log does not tell which version was replaced.
    """
    spec = record.spec
    if not target.exists(spark, spec.name):
        if spec.location:
            HadoopPath(spark, spec.location).delete()  # files of a table that never got into the catalog
        return
    if maker_of(spark, spec.name) != spec.id:
        return
    if record.replaces_table:
        _restore(spark, spec, record.replaces)
    else:
        spark.sql(f"DROP TABLE {quote_parts(spec.name)}")


def _restore(spark: SparkSession, spec: ViewSpec, before: str) -> None:
    """Bring back the version before a view has replaced its table, as the refresh that it was.

    Args:
        spark: any session of the application.
        spec: the view that has replaced the table.
        before: the id of the view before, which goes on from there; empty: there was none.
    """
    location = target.describe(spark, spec.name).location
    version = _replaced_at(spark, location, spec.id) - 1
    state = state_of(spark, location, before, version)
    said = {} if state.last is None or state.foreign else {USER_METADATA: metadata_of(before, state.last)}
    own = jvm.clone_session(spark)  # whose settings no other thread sees
    with session_settings(own, said):
        own.sql(f"RESTORE TABLE {quote_parts(spec.name)} TO VERSION AS OF {version}").collect()


def _replaced_at(spark: SparkSession, location: str, view_id: str) -> int:
    """Return the version in which a view has replaced a table."""
    version = delta_tables.version(spark, location)
    while version > 0 and (found := delta_log.actions(spark, location, version)) is not None:
        made = any(
            each["metaData"].get("configuration", {}).get(VIEW_PROPERTY) == view_id for each in found if "metaData" in each
        )
        if made and "REPLACE" in str(delta_log.info_of(found).get("operation")):
            return version
        version -= 1
    raise ViewError(f"The log of the table in {location} does not tell which version was replaced by view {view_id}.")
