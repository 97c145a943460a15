"""One refresh of a materialized view: from the versions of its sources that its newest commit names, to those of now.

The commit is the checkpoint: it names the versions, so nothing else is needed to go on after a crash. A refresh

1. looks at the newest version of each source; if the view is at these, it ends here, without a Spark job;
2. decides whether the changes can be computed alone (`query.py`, `incremental.py`), or why the query is computed in full;
3. brings the rows into the view's table, in one transaction over the version that it has read (`writing.py`). If another process
   has refreshed the view meanwhile, the transaction fails, and the refresh begins again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField

from sqlext.errors import UnsupportedError, ViewError
from sqlext.execution.delta import commit
from sqlext.execution.delta.changes import WEIGHT, ChangedFiles, changed_files, net
from sqlext.execution.delta.transaction import CommitIdentity
from sqlext.execution.state.row_checks import RowChecks
from sqlext.execution.views.cost import full_costs_less, settings_for
from sqlext.execution.views.cuts import Cuts
from sqlext.execution.views.fallback import why_in_full
from sqlext.execution.views.history import ViewState, metadata_of, state_of
from sqlext.execution.views.incremental import Derivation, TouchedPart
from sqlext.execution.views.kept import Kept
from sqlext.execution.views.merging import held_differences, mergeable
from sqlext.execution.views.partial_refresh import PartialRefresh
from sqlext.execution.views.partial_table import NONE, PartialTable
from sqlext.execution.views.query import ViewQuery, analyse
from sqlext.execution.views.shared_changes import SharedChanges
from sqlext.execution.views.sources import Versions, are_as_analysed, are_as_defined, newest, not_before
from sqlext.execution.views.writing import Identify, Replacement, RowsMissingError, ViewTable, Written
from sqlext.plan.constraints import Violation
from sqlext.plan.cut import Cut, merged
from sqlext.plan.lineage import Input
from sqlext.plan.view_spec import RefreshPolicy, RefreshReport, SourceVersion, ViewSpec
from sqlext.quoting import fold
from sqlext.spark import delta_tables, jvm
from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.inputs import inputs_of
from sqlext.spark.named_tables import are_same
from sqlext.spark.plans import Node, forget_functions, id_of, output_of
from sqlext.spark.settings import ALL_FILES, OWN_JOINS, meaning_of, session_settings

logger = logging.getLogger(__name__)

_FEW = 10_000
_MOST_ANALYSES = 3
_UNREACHED = "the changes do not reach the result"
_OTHER_ROWS = "its rows depend on the order in which others are read, so the old ones are not known"
_BY = {"Aggregate": "touched groups", "Window": "touched partitions"}


class Owner(Protocol):
    """Who keeps the records of views; `ViewManager` does."""

    def may_commit(self, spec: ViewSpec) -> None:
        """Raise ViewError if this process must not commit to a view: it was dropped, or is being replaced."""

    def is_lagging(self, spec: ViewSpec, report: RefreshReport) -> bool:
        """Return whether a refresh must begin now for a view's target lag to be kept."""

    def note_reads(self, spec: ViewSpec, reads: tuple[Input, ...]) -> None:
        """Note what a view's query reads now; raise ViewError if it would read itself."""


class Refresher:
    """Refreshes one view. Not thread-safe: one thread at a time may call it.

    Args:
        session: a session of the view's own, like the one that created it.
        spec: the view.
        partials: the table of partial results beside it, which need not exist.
        shared: the changes that are read for all views of this process.
        owner: of the view.
        replacement: of a view that is just being created: the table whose place its own takes; None: it has its own.
    """

    def __init__(
        self,
        session: SparkSession,
        spec: ViewSpec,
        partials: PartialTable,
        shared: SharedChanges,
        owner: Owner,
        replacement: Replacement | None = None,
    ) -> None:
        self._session = session
        self._spec = spec
        self._owner = owner
        self._partials = partials
        self._shared = shared
        self._replacement = replacement
        self._query: ViewQuery | None = None
        self._state: ViewState | None = None

    def refresh(
        self, is_full: bool = False, check: Callable[[], None] = lambda: None, pins: Mapping[str, SourceVersion] | None = None
    ) -> RefreshReport:
        """Bring the view up to date, in one commit; without a change of a source, nothing is committed.

        Args:
            is_full: whether to compute it in full.
            check: called before each commit; raises if this process must not commit.
            pins: the versions of sources that it is brought to, by `lineage.place`; others are at their newest one.

        Raises:
            ViewError: the view's table is gone, or another one has taken its place.
            PySparkException: Spark cannot compute the query, or a source is gone.
        """
        with jvm.active(self._session):
            return commit.again_after_conflicts(lambda: self._once(is_full, check, pins or {}), check)

    @property
    def tables(self) -> frozenset[str] | None:
        """The locations of the view's table and of its sources; None: not known yet, or something else is read, too."""
        query = self._query
        if query is None or query.unversioned:
            return None
        return frozenset({self._spec.location, *(source.location for source in query.sources.values())})

    def is_behind(self) -> bool:
        """Return whether a source has changed since the last refresh. Runs no Spark job."""
        with jvm.active(self._session):
            (_, state), query = self._current(), self._analysed()
            last = state.last
            return last is None or bool(state.foreign) or not query.is_at(last, newest(self._session, query.sources))

    def is_other(self) -> bool:
        """Return whether the query means something else than at the last refresh: a table, view or function was replaced."""
        with jvm.active(self._session):
            (_, state), query = self._current(), self._analysed()
            return state.last is not None and state.last.is_other(query.fingerprint, newest(self._session, query.sources))

    def _once(self, is_full: bool, check: Callable[[], None], pins: Mapping[str, SourceVersion]) -> RefreshReport:
        began = time.monotonic()
        snapshot, state = self._current()
        known = self._query
        query = self._analysed()
        last = state.last
        pins = not_before(pins, {} if last is None else last.sources)
        after = newest(self._session, query.sources, pins)
        is_known = not query.unversioned and not query.varies
        is_same = last is not None and not state.foreign and is_known and query.is_at(last, after)
        if last is not None and is_same and not is_full:
            last = replace(last, version=state.version)  # which has the same rows, also if somebody has compacted the table
            return replace(last, done="no change", because="", rows_in=0, rows_deleted=0, rows_inserted=0, seconds=0.0)
        for _ in range(_MOST_ANALYSES):  # of the sources' columns as they are now, which may change meanwhile
            is_current = query is not known or are_as_defined(self._session, query.definitions, after)
            if is_current and are_as_analysed(self._session, query.types, after):
                break
            query = self._analysed(anew=True)
            after = newest(self._session, query.sources, pins, query.types)
        current, before = (snapshot, self._model(), state), {} if last is None else last.sources
        meaning = meaning_of(self._spec.settings)
        versions = Versions(query.plans, self._session, before, after, query.types, self._shared, meaning)
        refresh = _OneRefresh(self._session, self._spec, query, current, versions, self._partials, began, check)
        with session_settings(self._session, settings_for(self._session, after, bool(query.unversioned))):
            report = refresh.run(is_full)
        self._state = None
        logger.info("materialized view %s: %s", ".".join(self._spec.name), report)
        return report

    def _analysed(self, anew: bool = False) -> ViewQuery:
        """Return the analysed query; it is analysed again where a name means another table now.

        Over SQL views it is analysed each time: their definitions may change.
        """
        if self._query is None or anew or self._query.may_change or not are_same(self._session, self._query.tables):
            if self._query is not None:
                forget_functions(self._session, self._query.functions)
            types: list[StructField] = []
            if self._spec.has_own_types:
                defined = self._model() or delta_tables.snapshot(self._session, self._spec.location)
                types = [*delta_tables.schema_of(defined)]
            query = self._query = analyse(self._session, self._spec.query, types, self._spec.written)
            self._owner.note_reads(self._spec, inputs_of(self._session, query.plan))
            self._shared.note(self._spec.id, {query.sources[name].location: [*used] for name, used in query.types.items()})
        return self._query

    def _current(self) -> tuple[Any, ViewState]:
        """Return the newest version of the view's table, as Delta's Snapshot, and its state."""
        snapshot = delta_tables.snapshot(self._session, self._spec.location)
        version = int(snapshot.version())
        wanted = self._spec.table_id if self._replacement is None else self._replacement.table_id
        if version < 0 or str(snapshot.metadata().id()) != wanted:
            name = ".".join(self._spec.name)
            raise ViewError(
                f"The table of the materialized view {name} was dropped or replaced: {self._spec.location} no longer holds it. "
                f"DROP MATERIALIZED VIEW {name}, and create it again."
            )
        if self._replacement is not None:
            return snapshot, ViewState(version, None)
        if self._state is None or self._state.version != version:
            self._state = state_of(self._session, self._spec.location, self._spec.id, version)
        return snapshot, self._state

    def _model(self) -> Any:
        """Return the newest version of the table with the definition that the view's table is to get; None: it has its own."""
        return None if self._replacement is None else delta_tables.snapshot(self._session, self._replacement.model)


def _by(names: Sequence[str]) -> str:
    return f"by {', '.join(names)}" if names else "of all rows"


class _OneRefresh:
    """The work of one refresh, once it is known that there is some."""

    def __init__(
        self,
        session: SparkSession,
        spec: ViewSpec,
        query: ViewQuery,
        current: tuple[Any, Any, ViewState],
        versions: Versions,
        partials: PartialTable,
        began: float,
        check: Callable[[], None],
    ) -> None:
        self._check = check
        self._partials = PartialRefresh(session, spec, query, partials, check)
        self._partials_at = NONE  # the version that the commit will name
        self._session = session
        self._spec = spec
        self._query = query
        self._snapshot, self._model, self._state = current
        self._versions, self._after = versions, versions.after
        self._began = began
        self._checked = [each for each in spec.constraints if each.violation is not Violation.DROP]  # the query drops rows
        self._violations: Mapping[str, int] = {}  # among the rows to be inserted

    def run(self, is_full: bool) -> RefreshReport:
        """Refresh the view."""
        self._check_columns()
        because = self._why_full(is_full)
        try:
            if not because:
                try:
                    with session_settings(self._session, {**ALL_FILES, **OWN_JOINS}):
                        return self._incremental()
                except (UnsupportedError, RowsMissingError) as reason:
                    because = str(reason)
                except SPARK_ERRORS as error:
                    because = why_in_full(error)
                    if not because:
                        raise
                self._check()
            return self._full(because)
        finally:
            self._versions.close()

    def _why_full(self, is_full: bool) -> str:
        """Return why the view must be computed in full; empty: it need not."""
        last = self._state.last
        if is_full:
            return "FULL was requested" if last is not None else "first refresh"
        if last is None:
            return "the table's log has no refresh"
        if self._state.foreign:
            return f"{self._state.foreign} of the view's table is not a refresh"
        if self._spec.policy is RefreshPolicy.FULL:
            return "REFRESH POLICY FULL"
        if last.query != self._query.fingerprint:
            return "the query has changed: a view or function was replaced, or a table has other columns"
        if last.sources.keys() != self._after.keys():
            return "the query reads other tables than before"
        for name, version in self._after.items():
            if version.id != last.sources[name].id or version.version < last.sources[name].version:
                return f"{name} was replaced"
        if moved := last.moved(self._after):
            return f"{moved[0]} has its files in another folder now"
        if self._table_types() != self._query_types():
            return "the query's columns have other types than the view's"
        if self._query.obstacle:
            return self._query.obstacle
        if self._spec.policy is not RefreshPolicy.AUTO:
            return ""
        if last.partials == NONE and self._partials.are_wanted(self._versions):
            return "from now on, partial results are kept beside the view"
        return full_costs_less(self._changed_files(), last, self._query.is_row_by_row)

    def _changed_files(self) -> Iterator[ChangedFiles | None]:
        before = {} if self._state.last is None else self._state.last.sources
        for name, version in self._after.items():
            if name in before and version != before[name]:
                location = self._query.sources[name].location
                yield changed_files(self._session, location, before[name].version, version.version)

    def _table_types(self) -> list[str]:
        defined = self._snapshot if self._model is None else self._model
        return [field.dataType.simpleString() for field in delta_tables.schema_of(defined)]

    def _query_types(self) -> list[str]:
        return [field.dataType.simpleString() for field in self._query.frame.schema]

    def _check_columns(self) -> None:
        """Raise ViewError if the query no longer has the columns of then, in their order, which the view's are."""
        spec, now, then = self._spec, self._query.written_columns, self._spec.written_columns
        if len(now) != len(spec.columns) or (then and list(map(fold, now)) != list(map(fold, then))):
            name = ".".join(spec.name)
            raise ViewError(
                f"The query of the materialized view {name} now has the columns {', '.join(now)}, but the view was made of "
                f"{', '.join(then or spec.columns)}: a table that it reads has got or lost columns, or has them elsewhere, "
                f"and * takes all. CREATE OR REPLACE MATERIALIZED VIEW {name} makes it anew."
            )

    def _identify(self, done: str, because: str) -> Identify:
        def identify(deleted: int, inserted: int) -> CommitIdentity:
            last, seconds = self._state.last, time.monotonic() - self._began
            full, alone = (0.0, 0.0) if last is None else (last.full_seconds, last.incremental_seconds)
            is_full = done == "full"
            cut = merged((Cuts(self._session).of(self._after), Cut(mixed=self._query.unversioned)))
            self._report = RefreshReport(
                version=self._state.version,
                number=1 + (self._last_number() if last is None else last.number),
                done=done,
                because=because,
                sources=self._after,
                rows_in=-1 if is_full else self._versions.rows_in,
                rows_deleted=deleted,
                rows_inserted=inserted,
                seconds=seconds,
                query=self._query.fingerprint,
                full_seconds=seconds if is_full else full,
                incremental_seconds=alone / 2 if is_full else seconds,
                partials=self._partials_at,
                read={} if is_full else self._versions.read,
                cut=cut.sources,
                mixed=cut.mixed,
                violations=self._violations,
            )
            return CommitIdentity(self._spec.id, self._report.number, metadata_of(self._spec.id, self._report))

        return identify

    def _last_number(self) -> int:
        """Return the number of the newest refresh whose commit the log no longer has; 0: there was none."""
        found = self._snapshot.transactions().get(self._spec.id)
        return int(found.get()) if found.isDefined() else 0

    def _committed(self, written: Written) -> RefreshReport:
        return replace(self._report, version=written.version, seconds=time.monotonic() - self._began)

    def _table(self) -> ViewTable:
        check = self._check if self._state.last is None else lambda: None  # one that is being made may have been undone meanwhile
        return ViewTable(self._session, self._snapshot, self._spec.columns, self._model, self._inspect, check)

    def _inspect(self, rows: DataFrame) -> None:
        """Count the violations among rows that are about to be inserted; raise ConstraintError if one must not be."""
        if self._checked:
            name = ".".join(self._spec.name)
            way_out = f"CREATE OR REPLACE MATERIALIZED VIEW {name} makes it without the constraint."
            self._violations = RowChecks(self._spec.name, self._checked, way_out).violations_in(rows, "this refresh")

    def _full(self, because: str) -> RefreshReport:
        plan, self._partials_at = self._partials.computed(self._versions)
        if plan is None:
            plan = self._query.plans.replaced(self._query.plan, [(leaf, self._versions.new(leaf)) for leaf in self._query.leaves])
        rows = self._query.plans.frame(plan).toDF(*self._spec.columns)
        table, identify = self._table(), self._identify("full", because)
        if self._table_types() == self._query_types():
            return self._committed(table.write_whole(rows, identify))
        if self._model is not None:
            raise ViewError("The types of the query's columns have changed just now, with a table that it reads. Send it again.")
        return self._committed(table.write_anew(rows, identify))

    def _incremental(self) -> RefreshReport:
        table = self._table()
        if not table.can_change_rows:
            raise UnsupportedError("the view's table has no deletion vectors (delta.enableDeletionVectors)")
        root = self._query.pinned_tree(self._versions)
        before = NONE if self._state.last is None else self._state.last.partials
        self._partials_at = before
        with Kept(self._query.plans) as kept:
            derivation = Derivation(self._query.plans, self._versions.leaf, kept)
            if before >= 0:
                return self._through_partials(table, root, derivation, before)
            merged = self._merge_groups(table, root, derivation)
            if merged is not None:
                return merged
            part = derivation.touched_part(root)
            if part is not None:
                return self._replace_part(table, part)
            delta = derivation.delta(root)
            if delta is None:
                return self._committed(table.note(self._identify("no change", "")))
            plans, output = self._query.plans, output_of(root.plan)
            columns = [plans.named(each, name) for each, name in zip(output, self._spec.columns, strict=True)]
            weighted = plans.select(delta.plan, [*columns, plans.named(delta.weight, WEIGHT)])
            if self._query.is_by_order:
                weighted = kept.keep(weighted)
                # An old row that is computed again may be another one now, and cancel out a new row that is due elsewhere.
                if plans.frame(weighted).where(F.col(WEIGHT) < 0).take(1):
                    raise UnsupportedError(_OTHER_ROWS)
            return self._change_rows(table, net(plans.frame(weighted)))

    def _merge_groups(self, table: ViewTable, root: Node, derivation: Derivation) -> RefreshReport | None:
        """Add to the groups what changed; return None, and do nothing, if that is not possible."""
        found = mergeable(self._query.plans, root)
        below = None if found is None else derivation.delta(found.aggregate.children[0])
        if found is None or below is None:
            return None
        with held_differences(self._query.plans, found, below) as made:
            if made.is_empty:
                return self._committed(table.note(self._identify("no change", _UNREACHED)))
            if not made.can_be_added:
                return None
            names = [self._spec.columns[at] for at in found.keys]
            with session_settings(self._session, commit.FEW_ROWS if made.number <= _FEW else {}):
                written = table.merge_groups(found, made.rows, made.number, self._identify("merge groups", _by(names)))
            return None if written is None else self._committed(written)

    def _through_partials(self, table: ViewTable, root: Node, derivation: Derivation, before: int) -> RefreshReport:
        """Bring the partial results beside the view up to date, and then the rows that are computed of those that changed."""
        with self._partials.changed(root, derivation, before) as made:
            if made is None:
                return self._committed(table.note(self._identify("no change", _UNREACHED)))
            self._partials_at = made.version
            rows = self._query.plans.frame(made.rows).toDF(*self._spec.columns)
            identify = self._identify(made.done, f"{_by(made.names)}, of partial results")
            if made.keys is None:
                return self._committed(table.write_whole(rows, identify))
            return self._committed(table.replace_keys(made.names, made.keys, rows, identify))

    def _replace_part(self, table: ViewTable, part: TouchedPart) -> RefreshReport:
        plans = self._query.plans
        at = {id_of(each): name for each, name in zip(self._query.output, self._spec.columns, strict=True)}
        rows = plans.frame(part.rows).toDF(*self._spec.columns)
        names = [at[column] for column in part.columns]
        return self._committed(table.replace_keys(names, plans.frame(part.keys), rows, self._identify(_BY[part.by], _by(names))))

    def _change_rows(self, table: ViewTable, changed: DataFrame) -> RefreshReport:
        counts = [F.sum(F.greatest(F.lit(0), sign * F.col(WEIGHT))).alias(name) for sign, name in ((1, "added"), (-1, "gone"))]
        with jvm.observed(changed, *counts) as (held, found):
            added, gone = (int(found[name] or 0) for name in ("added", "gone"))
            if not added and not gone:
                return self._committed(table.note(self._identify("no change", _UNREACHED)))
            return self._committed(table.change_rows(held, added, gone, self._identify("changed rows" if gone else "append", "")))
