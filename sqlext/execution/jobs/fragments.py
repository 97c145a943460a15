"""The physical plan of a bounded query, cut into the pieces that a job runs one after the other.

Spark's plan is cut at its shuffle exchanges. The plan below an exchange, including partial aggregates, becomes a vertex of its
own. Its rows are written to a table, in the buckets that the exchange would have sent them to, and the plan above the exchange
reads that table. A broadcast is not cut: each piece reads it whole.

This module reads Catalyst's plans, which are internal to Spark; it was tested with Spark 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from sqlext.execution.jobs.execution_graph import ExecutionGraph, JobVertex, VertexKind
from sqlext.spark.java import items_of, java_array, java_of, scala_object, scala_seq
from sqlext.spark.jvm import active
from sqlext.spark.physical_plan import WHOLE_PLANS, plan_fingerprint
from sqlext.spark.settings import session_settings
from sqlext.spark.sorted_plan import sorted_aggregates

_BY_ROW = frozenset(
    """
    ProjectExec FilterExec HashAggregateExec ObjectHashAggregateExec SortAggregateExec SortExec BroadcastHashJoinExec GenerateExec
    ExpandExec BatchEvalPythonExec ArrowEvalPythonExec InputAdapter
    """.split()
)
"""Operators that may run over each slice of their input separately: their result is the union of the slices' results."""
_BY_KEY = _BY_ROW | frozenset(
    """
    SortMergeJoinExec ShuffledHashJoinExec WindowExec WindowGroupLimitExec FlatMapGroupsInPandasExec FlatMapGroupsInArrowExec
    """.split()
)
"""Operators of which this holds as long as a slice has all rows of its keys."""
_SCAN = "FileSourceScanExec"
_STAND_IN = "sqlext input "


@dataclass(frozen=True)
class Input:
    """An input of a piece: the result of another vertex.

    Attributes:
        vertex: the id of that vertex.
        is_whole: whether each part reads the whole result, such as the small side of a broadcast join.
    """

    vertex: int
    is_whole: bool


@dataclass(frozen=True)
class Fragment:
    """A piece of the plan.

    Attributes:
        vertex: its vertex in the execution graph.
        plan: its physical plan, with a leaf in place of each input (`input_number`).
        inputs: its inputs, by number.
        bucket: Catalyst's expression of a row's bucket; None: there is only one bucket.
        scan: the leaf that is read in slices; None unless the vertex is a source.
    """

    vertex: JobVertex
    plan: Any
    inputs: tuple[Input, ...]
    bucket: Any = None
    scan: Any = None


@dataclass(frozen=True)
class FragmentedPlan:
    """The plan of a query, cut into fragments.

    Attributes:
        graph: the execution graph. Its last vertex is the sink, which has a fragment only if the last piece cannot be divided.
        fragments: the fragments, by vertex.
        fingerprint: a hash of the fragments, which shows whether a job is resumed with the plan it began with.
    """

    graph: ExecutionGraph
    fragments: tuple[Fragment, ...]
    fingerprint: str


def cut(spark: SparkSession, analysed: Any, is_sorted: bool = False) -> FragmentedPlan:
    """Cut the plan of an analysed query, without running anything.

    Args:
        spark: a session whose setting `spark.sql.shuffle.partitions` is the number of buckets.
        analysed: Catalyst's analysed plan of the query.
        is_sorted: whether aggregates above an exchange sort.
    """
    with active(spark), session_settings(spark, WHOLE_PLANS):
        return _cut(spark, analysed, is_sorted)


def _cut(spark: SparkSession, analysed: Any, is_sorted: bool) -> FragmentedPlan:
    execution = java_of(spark).org.apache.spark.sql.execution
    planned = spark._jsparkSession.sessionState().executePlan(analysed, execution.CommandExecutionMode.SKIP())
    ensure = execution.exchange.EnsureRequirements(True, java_of(spark).scala.Option.apply(None))
    physical = planned.sparkPlan()
    if is_sorted:
        physical = sorted_aggregates(spark, physical, looks_at_files=False)  # a resumed job must get the same plan again
    ordered = scala_object(spark, "org.apache.spark.sql.execution.InsertSortForLimitAndOffset").apply(ensure.apply(physical))
    return _Cutter(spark).run(ordered)  # a limit above an exchange sorts its input again, which a cut would hide from that rule


def input_number(node: Any) -> int | None:
    """Return the number of the input that a leaf stands for; None for any other node."""
    if node.getClass().getSimpleName() != "RDDScanExec" or not str(node.name()).startswith(_STAND_IN):
        return None
    return int(str(node.name()).removeprefix(_STAND_IN))


@dataclass
class _Piece:
    """A fragment that is being cut; it counts only nodes outside of broadcasts."""

    inputs: list[Input] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    scans: list[Any] = field(default_factory=list)
    leaves: int = 0
    buckets: set[int] = field(default_factory=set)


class _Cutter:
    """Cuts one physical plan into fragments."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._java = java_of(spark)
        self._vertices: list[JobVertex] = []
        self._fragments: list[Fragment] = []
        self._exchanges: list[tuple[Any, JobVertex]] = []  # in canonical form
        self._nothing = spark._jsparkSession.emptyDataFrame().queryExecution().toRdd()

    def run(self, plan: Any) -> FragmentedPlan:
        last = self._piece(plan, None)
        if last.kind is VertexKind.SINGLE:  # its result need not be kept: the sink itself runs it
            sink = JobVertex(last.id, VertexKind.SINK, last.name, last.inputs)
            self._vertices[-1] = sink
            whole = self._fragments[-1]
            self._fragments[-1] = Fragment(sink, whole.plan, whole.inputs)
        else:
            self._vertices.append(JobVertex(len(self._vertices), VertexKind.SINK, "write", (last.id,)))
        return FragmentedPlan(ExecutionGraph(tuple(self._vertices)), tuple(self._fragments), self._fingerprint())

    def _piece(self, top: Any, partitioning: Any) -> JobVertex:
        """Make a vertex of the plan below an exchange, or of the top of the whole plan."""
        piece = _Piece()
        plan = self._walk(top, piece, is_whole=False)
        kind = _kind(piece)
        bucket, buckets = _buckets(partitioning)
        reads = tuple(sorted({each.vertex for each in piece.inputs}))
        vertex = JobVertex(len(self._vertices), kind, _name(top), reads, buckets)
        scan = piece.scans[0] if kind is VertexKind.SOURCE else None
        self._vertices.append(vertex)
        self._fragments.append(Fragment(vertex, plan, tuple(piece.inputs), bucket, scan))
        return vertex

    def _walk(self, node: Any, piece: _Piece, is_whole: bool) -> Any:
        kind = str(node.getClass().getSimpleName())
        if kind == "ShuffleExchangeExec":
            below = self._exchanged(node)
            if not is_whole:
                piece.buckets.add(below.buckets)
            piece.inputs.append(Input(below.id, is_whole))
            leaf = self._stand_in(node, len(piece.inputs) - 1)
            # An exchange that an operator requires Spark adds again where the piece lacks it. One that the query asks for, as
            # partition functions do, stays: what is above relies on it, and does not say so.
            is_required = str(node.shuffleOrigin().toString()).startswith("ENSURE_REQUIREMENTS")
            return leaf if is_required else node.withNewChildren(scala_seq(self._spark, [leaf]))
        if kind == "BroadcastExchangeExec":  # Spark adds it again when it plans the piece
            return self._walk(node.child(), piece, is_whole=True)
        children = items_of(node.children())
        if not is_whole:
            (piece.operators if children else piece.scans if kind == _SCAN else []).append(node)
            piece.leaves += not children and kind != _SCAN
        changed = [self._walk(child, piece, is_whole) for child in children]
        return node.withNewChildren(scala_seq(self._spark, changed)) if children else node

    def _exchanged(self, exchange: Any) -> JobVertex:
        """Return the vertex below an exchange; equal exchanges share one vertex, as in Spark's ReuseExchangeAndSubquery."""
        canonical = exchange.canonicalized()
        for known, vertex in self._exchanges:
            if known.equals(canonical):
                return vertex
        made = self._piece(exchange.child(), exchange.outputPartitioning())
        self._exchanges.append((canonical, made))
        return made

    def _stand_in(self, node: Any, number: int) -> Any:
        physical = self._java.org.apache.spark.sql.catalyst.plans.physical
        scan = self._java.org.apache.spark.sql.execution.RDDScanExec
        none = self._java.scala.Option.apply(None)
        partitioning = physical.UnknownPartitioning(0)
        return scan(node.output(), self._nothing, f"{_STAND_IN}{number}", partitioning, scala_seq(self._spark, []), none)

    def _fingerprint(self) -> str:
        texts = [f"{each.vertex} {each.inputs} {each.bucket}\n{each.plan.toString()}" for each in self._fragments]
        return plan_fingerprint("\n".join([*texts, *(rows for each in self._fragments for rows in self._local_rows(each.plan))]))

    def _local_rows(self, plan: Any) -> list[str]:
        """Return the rows that are in a plan and its subqueries, such as those of VALUES: its text leaves them out."""
        found, nodes = list[str](), [plan]
        while nodes:
            node = nodes.pop()
            nodes += [*items_of(node.children()), *items_of(node.subqueries())]
            kind = str(node.getClass().getSimpleName())
            if kind in ("LocalTableScanExec", "LocalRelation"):
                found.append(self._bytes(node.rows() if kind == "LocalTableScanExec" else node.data(), node.schema()))
        return found

    def _bytes(self, rows: Any, schema: Any) -> str:
        """Return Spark's binary form of rows as text; what they print may be the address of an object."""
        catalyst, types = self._java.org.apache.spark.sql.catalyst, self._java.org.apache.spark.sql.types
        whole = catalyst.expressions.BoundReference(0, types.DataTypes.createArrayType(schema), True)
        values = java_array(self._spark, self._java.java.lang.Object, [catalyst.util.GenericArrayData(rows)])
        # A generated projection would not do: Py4J takes its class for the one that it has met by this name before.
        name = "org.apache.spark.sql.catalyst.expressions.InterpretedUnsafeProjection"
        projection = scala_object(self._spark, name).createProjection(scala_seq(self._spark, [whole]))
        return bytes(projection.apply(catalyst.expressions.GenericInternalRow(values)).getBytes()).hex()


def _kind(piece: _Piece) -> VertexKind:
    names = {str(node.getClass().getSimpleName()) for node in piece.operators}
    is_fixed = all(_is_fixed(node) for node in piece.operators)
    reads_one_scan = len(piece.scans) == 1 and not piece.leaves and not piece.buckets
    reads_buckets = not piece.scans and not piece.leaves and len(piece.buckets) == 1 and piece.buckets != {1}
    if is_fixed and reads_one_scan and names <= _BY_ROW:
        return VertexKind.SOURCE
    if is_fixed and reads_buckets and names <= _BY_KEY:
        return VertexKind.BUCKETS
    return VertexKind.SINGLE


def _is_fixed(node: Any) -> bool:
    """Return whether an operator's result is independent of partitions: no rand(), spark_partition_id() or global sort."""
    if node.getClass().getSimpleName() == "SortExec" and getattr(node, "global")():
        return False
    return all(expression.deterministic() for expression in items_of(node.expressions()))


def _buckets(partitioning: Any) -> tuple[Any, int]:
    """Return the expression of a row's bucket, None for a single bucket, and the number of buckets."""
    if partitioning is None or partitioning.getClass().getSimpleName() != "HashPartitioning":
        return None, 1
    return partitioning.partitionIdExpression(), int(partitioning.numPartitions())


def _name(node: Any) -> str:
    """Return the name of a piece, as SHOW JOBS displays it."""
    return str(node.nodeName())
