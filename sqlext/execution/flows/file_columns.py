"""The columns of a flow over files, which become more as its files have more (`schema-evolution`).

Before a micro-batch is taken in, its files are looked at. Where they have a field that no column names, the micro-batch fails
with `NewColumnsError`, and nothing of it is in the table. The supervisor then starts the flow again with the columns in its
query: the start adds them to the table (`source_changes.evolved`) and records both, and Spark repeats the micro-batch, with the
same files.

A crash at any step loses nothing: the micro-batch stays planned, and is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, IntegerType, MapType, StructField, StructType

from sqlext.errors import NewColumnsError, SchemaError
from sqlext.execution.delta import target
from sqlext.execution.streaming.checkpoint import Checkpoint
from sqlext.execution.streaming.streams import StreamLeaf, leaves_of
from sqlext.options import SCHEMA_EVOLUTION, Options
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import INTERNAL_PREFIX, FlowPlan
from sqlext.quoting import STREAMED, quote_string, zoned
from sqlext.spark import failures, file_schemas, files
from sqlext.spark.file_schemas import Files
from sqlext.sql.file_calls import KEPT, READ_FILES, FilesCall, calls_in, growing, with_kept

ADD_COLUMNS = "add columns"
_PROBE = StructField(f"{INTERNAL_PREFIX}probe", IntegerType())
"""A column that no files have."""


def may_grow(flow: FlowPlan | FlowSpec, options: Options) -> bool:
    """Return whether a flow's table may get columns: it is to, and the flow appends the rows of one query over its sources.

    There, a new column is an error in relations that only the running flow has.
    """
    reads_others = flow.above or flow.prerequisites or flow.hybrids or flow.runs_once
    return bool(options[SCHEMA_EVOLUTION] == ADD_COLUMNS and flow.appends and not reads_others)


def check(session_of: Callable[[FlowSpec], SparkSession], spec: FlowSpec, options: Options) -> None:
    """See that the columns of a flow's files can become more, if its options want that.

    Args:
        session_of: returns a session like the flow's own.

    Raises:
        PySparkException: they cannot, since the columns or their positions are given; the message names the argument.
    """
    calls = [call for call in calls_in(spec.streams[0].sql) if call.is_streamed] if may_grow(spec, options) else []
    if calls:
        session = session_of(spec)
        for call in calls:
            files.arguments_of(session, call)


def widened(spec: FlowSpec, error: BaseException | None) -> FlowSpec:
    """Return a flow whose query keeps the columns with which an error wants it to be started again; or the flow as it is."""
    if not isinstance(error, NewColumnsError):
        return spec
    (stream,) = spec.streams
    sql = with_kept(stream.sql, error.columns)
    return spec if sql == stream.sql else replace(spec, streams=(replace(stream, sql=sql),))


@dataclass(frozen=True)
class _Call:
    """A call whose columns may become more.

    Attributes:
        key: of the call.
        files: its arguments, with the columns that it keeps.
        is_shown: whether a column more would change the query.
        sources: the names of its streams' offsets.
    """

    key: str
    files: Files
    is_shown: bool
    sources: tuple[str, ...]


class FileColumns:
    """The calls of a flow's query over files. Made when the query is analysed; Spark's stream thread calls `look`.

    Args:
        session: the flow's own.
        sql: the flow's query, as it is recorded.

    Raises:
        PySparkException: the columns of a call cannot become more; see `check`.
    """

    def __init__(self, session: SparkSession, sql: str) -> None:
        self._session = session
        self._recorded = sql
        calls = {call.key: call for call in calls_in(sql) if call.is_streamed}
        arguments = {key: files.arguments_of(session, call) for key, call in calls.items()}
        keys = [key for key, given in arguments.items() if given.grows]
        self.sql = growing(sql, keys)
        """The query, as it is to be run."""
        leaves = leaves_of(session.sql(self.sql), ()) if keys else ()
        shown = {key: self._is_shown(key, arguments[key]) for key in keys}
        sources = {key: self._sources(calls[key], leaves) for key in keys}
        self._calls = [_Call(key, arguments[key], shown[key], sources[key]) for key in keys]

    def look(self, checkpoint: Checkpoint, batch: int) -> None:
        """Look at the files of a planned micro-batch.

        Raises:
            NewColumnsError: they have columns that the query has not.
            SchemaError: a file cannot be read, or has a column that cannot be added.
        """
        grown = dict[str, StructType]()
        for call in self._calls:
            if call.is_shown or call.files.has_header:  # whose header must be compared, since rows are read by position then
                paths = [path for source in call.sources for path in checkpoint.files_of_batch(source, batch)]
                found = self._found(call.files, file_schemas.paths_of(self._session, paths))
                if call.is_shown and found != call.files.kept:
                    grown[call.key] = found
        if grown:
            raise self._new(grown)

    def _found(self, call: Files, paths: Sequence[str]) -> StructType:
        """Return the columns of a call with those that are new in some files; files that are gone are left out."""
        while paths:
            try:
                return files.columns_with_new(self._session, call, paths)
            except SchemaError:
                there = file_schemas.existing(self._session, call, paths)
                if len(there) == len(paths):
                    raise
                paths = there
        return call.kept

    def _new(self, grown: Mapping[str, StructType]) -> NewColumnsError:
        """Return the error with the columns that all calls are to keep."""
        columns = dict(grown) if self._stands_alone(grown) else self._with_all(grown)
        try:
            frame = self._analysed(columns)
        except AnalysisException as error:
            raise SchemaError(
                f"Files have {self._listed(grown)}, with which the query cannot be analysed: {failures.reason_of(error)} "
                "Name the query's columns."
            ) from error
        names = [name.lower() for name in frame.columns]
        if doubled := next((name for name in names if names.count(name) > 1), None):
            raise SchemaError(
                f"Files have {self._listed(grown)}, with which the query has two columns `{doubled}`. Name the query's columns."
            )
        literals = {key: quote_string(zoned(found.toDDL())) for key, found in columns.items()}
        return NewColumnsError(f"Files have {self._listed(grown)}, which the flow's columns do not name yet.", literals)

    def _stands_alone(self, grown: Mapping[str, StructType]) -> bool:
        """Return whether no other call needs the new columns.

        Several calls that have some are sides of UNION ALL, as joins of streams cannot get columns: Spark would analyse it by
        position, whatever the columns' names are.
        """
        if len(grown) > 1:
            return False
        try:
            self._analysed(grown)
        except AnalysisException:  # such as of UNION ALL, whose sides must have as many columns
            return False
        return True

    def _with_all(self, grown: Mapping[str, StructType]) -> dict[str, StructType]:
        """Return the columns of all calls with those that are new in any, in one order; a call's own have the types of its files.

        Raises:
            SchemaError: files of CSV have theirs at other positions; or names differ by case only.
        """
        known = {call.key: call.files for call in self._calls}
        columns = dict[str, StructType]()
        for call in self._calls:
            found = call.files.kept
            for other in sorted(grown, key=lambda key: not known[key].has_header):  # CSV first, which is read by position
                new = [field for field in grown[other] if field not in known[other].kept.fields]
                found = file_schemas.with_new_fields(call.files, found, StructType(new))
            own = grown.get(call.key, found)
            names = [[field.name.lower() for field in each] for each in (found, own)]
            if call.files.has_header and names[0][: len(own)] != names[1]:
                raise SchemaError(
                    f"Files have {self._listed(grown)}. Both sides of a UNION ALL get all of them in one order, but CSV is read "
                    f"by position, and files of `{call.files.shown}` have theirs at other ones. Name the query's columns."
                )
            columns[call.key] = _typed(found, own)
        return columns

    def _analysed(self, columns: Mapping[str, StructType]) -> DataFrame:
        literals = {key: quote_string(zoned(found.toDDL())) for key, found in columns.items()}
        return self._session.sql(with_kept(self._recorded, literals))

    def _is_shown(self, key: str, call: Files) -> bool:
        """Return whether a column more of a call would change the query: by Spark's analysis, of such a query.

        In doubt it would: the flow is then started again with a column that it does not use.
        """
        try:
            frame = self._analysed({key: StructType([*call.kept, _PROBE])})
        except AnalysisException:  # as above
            return True
        return file_schemas.is_used(frame, _PROBE.name)

    def _sources(self, call: FilesCall, leaves: Sequence[StreamLeaf]) -> tuple[str, ...]:
        """Return the names of the offsets of the streams that a call is in the query: those that are equal to it alone."""
        alone = f"FROM {STREAMED}{READ_FILES}({call.arguments}, {KEPT} => {call.kept}) SELECT *"
        (own,) = leaves_of(self._session.sql(growing(alone, [call.key])), ())
        found = tuple(leaf.name for leaf in leaves if _reads(leaf) == _reads(own))
        if not found:
            raise SchemaError(
                f"The stream of {READ_FILES}({call.key}) is not found in the plan of the query, so `{SCHEMA_EVOLUTION.key}` = "
                f"`{ADD_COLUMNS}` has no files to look at. Set it to `none`, and please report this."
            )
        return found

    def _listed(self, grown: Mapping[str, StructType]) -> str:
        """Return the new columns of calls, for a message."""
        known = {call.key: call.files for call in self._calls}
        listed = []
        for key, found in grown.items():
            before = known[key].kept
            new = [f"`{f.name}` {target.ddl_of(f.dataType)}" for f in found if f not in before.fields]
            listed.append(f"{', '.join(new)} (in `{known[key].shown}`)")
        return " and ".join(listed)


def _reads(leaf: StreamLeaf) -> tuple[str, str, Mapping[str, str], str]:
    return leaf.kind, leaf.location, leaf.options, str(leaf.relation.schema().json())


def _typed(columns: Any, own: Any) -> Any:
    """Return columns, or the type of one, with the types that those of the same names have in others, also inside of structs."""
    if isinstance(columns, StructType) and isinstance(own, StructType):
        kinds = {field.name.lower(): field.dataType for field in own}
        typed = ((each, _typed(each.dataType, kinds.get(each.name.lower(), each.dataType))) for each in columns)
        return StructType([StructField(each.name, kind, each.nullable, each.metadata) for each, kind in typed])
    if isinstance(columns, ArrayType) and isinstance(own, ArrayType):
        return ArrayType(_typed(columns.elementType, own.elementType), columns.containsNull)
    if isinstance(columns, MapType) and isinstance(own, MapType):
        return MapType(columns.keyType, _typed(columns.valueType, own.valueType), columns.valueContainsNull)
    return own
