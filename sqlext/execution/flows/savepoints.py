"""The savepoints of one flow, as folders below the flow's own: copies of all that the flow needs to go back.

A savepoint's folder has `files`, the flow's checkpoints and the tables that belong to it alone; `target`, the rows of its target;
`quarantine-N`, those that it has quarantined; and `savepoint.json`, its record, which is written last: a savepoint is whole, or
after a crash not there. It needs nothing of the flow's own files and tables, so it holds until it is dropped, or the flow is.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import FlowError, NameTakenError, NotFoundError, SetupError, UnsupportedError, did_you_mean
from sqlext.execution.delta import delta_log, quarantine, table_copy, target
from sqlext.execution.delta.foreign_commits import last_said, refuse_rows_of_others
from sqlext.execution.flows.source_positions import positions
from sqlext.execution.state.buffer import DurableBuffer
from sqlext.execution.state.delta_state import state_in
from sqlext.execution.state.distinct_values import values_in
from sqlext.execution.state.state_table import StateTable
from sqlext.execution.streaming.checkpoint import BEGUN
from sqlext.moments import Moment, announce
from sqlext.plan.flow_spec import RESTORED, FlowSpec, StateBackend
from sqlext.plan.job_graph import OutputMode
from sqlext.plan.savepoint import Savepoint
from sqlext.spark import delta_tables
from sqlext.spark.settings import ALL_FILES, session_settings
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

FOLDER = "savepoints"
_RECORD, _FILES, _TARGET, _QUARANTINE = "savepoint.json", "files", "target", "quarantine-"
_BUFFER = "buffer"
_NOT_COPIED = (_BUFFER, FOLDER, BEGUN)
"""A micro-batch that a savepoint interrupts is in none of its tables: what it brings lives from when it runs again."""
_MAKER = "made-by"
"""The file with the id of the process that makes a savepoint; the first one in its folder."""
_EPOCH = "epoch-"
_ATTEMPTS = 3


class SavepointStore:
    """The savepoints of one flow. Its caller sees to it that only one statement at a time changes them.

    Args:
        home: the flow's folder.
    """

    def __init__(self, home: HadoopPath) -> None:
        self._home = home
        self._folder = home.child(FOLDER)

    def all(self) -> list[Savepoint]:
        """Return the savepoints, oldest first; one that another version of sqlext has made is left out, and logged."""
        found: list[Savepoint | None] = []
        for name in self._folder.names():
            try:
                found.append(self._read(name))
            except FlowError as error:
                logger.error("savepoint %s: %s", self._folder.child(name).location, error)
        return sorted((each for each in found if each is not None), key=lambda each: (each.at, each.name))

    def one(self, name: str) -> Savepoint:
        """Return a savepoint by name; case does not matter.

        Raises:
            NotFoundError: there is none of that name.
        """
        there = self.all()
        found = next((each for each in there if each.name.lower() == name.lower()), None)
        if found is None:
            near = did_you_mean(name, [each.name for each in there])
            raise NotFoundError(f"There is no savepoint `{name}` of this flow.{near} SHOW SAVEPOINTS lists them.")
        return found

    def by_id(self, key: str) -> Savepoint:
        """Return a savepoint by id.

        Raises:
            FlowError: it is gone.
        """
        found = self._read(key)
        if found is None:
            raise FlowError(f"The savepoint in {self._folder.child(key).location} is gone.")
        return found

    def free_name(self, name: str, now: datetime) -> str:
        """Return the name of a new savepoint: the given one, or one made of the time.

        Raises:
            NameTakenError: there is a savepoint of that name.
        """
        taken = {each.name.lower() for each in self.all()}
        if name.lower() in taken:
            raise NameTakenError(
                f"There is a savepoint `{name}` of this flow already. Choose another name, or DROP SAVEPOINT it."
            )
        if name:
            return name
        made = f"sp_{now:%Y%m%d_%H%M%S}"
        return next(each for each in (made, *(f"{made}_{n}" for n in range(2, len(taken) + 3))) if each not in taken)

    def clear_leftovers(self, is_working: Callable[[str], bool]) -> None:
        """Delete what a crash has left of savepoints that were not made, or not dropped, to the end.

        Args:
            is_working: returns whether another process, by its id, may be making one.
        """
        for folder in map(self._folder.child, self._folder.names()):
            maker = folder.child(_MAKER)
            if not folder.child(_RECORD).exists() and not (maker.exists() and is_working(maker.read_text().strip())):
                folder.delete()

    def make(
        self, spark: SparkSession, spec: FlowSpec, name: str, at: datetime, host: str, check: Callable[[], None]
    ) -> Savepoint:
        """Copy a flow that does not run. After a crash before the last step there is no savepoint.

        1. The flow's checkpoints and tables are copied.
        2. The rows of its target are, and those that it has quarantined. Where a micro-batch did not come to its end, it is
           repeated, and its rows are quarantined again.
        3. Its record is written.

        Args:
            spark: a session of the flow's.
            spec: the flow.
            name: of the savepoint.
            at: the time.
            host: the id of this process.
            check: called before step 3; raises if the flow may have run meanwhile.
        """
        key = uuid.uuid4().hex
        place, content = self._folder.child(key), content_of(self._home, spec)
        try:
            place.child(_MAKER).create_text(host)
            _copy_again(spark, content, place.child(_FILES))  # 1
            version, location = delta_tables.version(spark, spec.target_location), spec.target_location
            metadata = delta_tables.metadata_of(delta_tables.snapshot_at(spark, location, version))
            last = delta_log.last_transaction(spark, location, spec.application, version)
            with session_settings(spark, ALL_FILES):
                table_copy.copy_rows(spark, location, version, place.child(_TARGET))  # 2
                self._copy_quarantined(spark, spec, key, -1 if last is None else last)
            said = last_said(spark, location, version, spec.id)
            made = Savepoint(
                id=key,
                name=name,
                at=at.isoformat(timespec="milliseconds"),
                spec=spec,
                target_version=version,
                committed=-1 if last is None else last,
                metadata=metadata,
                positions=positions(spark, spec, content),
                read={each: said[each] for each in ("sources", "mixed") if each in said},
                bytes=place.size(),
                files=_sizes(place),
            )
            check()
            announce(Moment.SAVEPOINT_COPIED, spec.name)
            if not place.child(_MAKER).exists():
                raise FlowError(f"Another process has deleted what was made of the savepoint of flow `{spec.name}`. Try again.")
            place.child(_RECORD).create_text(made.to_json())  # 3
        except BaseException:
            place.delete()
            raise
        return made

    def _copy_quarantined(self, spark: SparkSession, spec: FlowSpec, key: str, last: int) -> None:
        for number, name in enumerate(spec.quarantine_tables):
            if target.exists(spark, name):
                place = self._folder.child(key, f"{_QUARANTINE}{number}").location
                quarantine.rows_of(spark, name, spec.id, last).write.parquet(place)

    def quarantined(self, spark: SparkSession, savepoint: Savepoint) -> dict[tuple[str, ...], DataFrame]:
        """Return the rows that the flow had quarantined, by table."""
        names = enumerate(savepoint.spec.quarantine_tables)
        places = {name: self._folder.child(savepoint.id, f"{_QUARANTINE}{number}") for number, name in names}
        return {name: spark.read.parquet(place.location) for name, place in places.items() if place.exists()}

    def drop(self, savepoint: Savepoint) -> None:
        """Delete a savepoint: it is gone with its record, whatever becomes of its files."""
        self._folder.child(savepoint.id, _RECORD).delete()
        self._folder.child(savepoint.id).delete()

    def files(self, savepoint: Savepoint) -> HadoopPath:
        """Return the folder of its copy of the flow's checkpoints and tables."""
        return self._folder.child(savepoint.id, _FILES)

    def rows(self, savepoint: Savepoint) -> HadoopPath:
        """Return the folder of its copy of the target's rows."""
        return self._folder.child(savepoint.id, _TARGET)

    def check_rows(self, savepoint: Savepoint) -> None:
        """See that all files with rows are there.

        Raises:
            FlowError: one is gone or torn; Spark would just read the others.
        """
        place = self._folder.child(savepoint.id)
        if _sizes(place) != savepoint.files:
            raise FlowError(f"The savepoint `{savepoint.name}` is damaged: {place.location} does not have the files that it had.")

    def _read(self, key: str) -> Savepoint | None:
        try:
            return Savepoint.from_json(self._folder.child(key, _RECORD).read_text())
        except NotFoundError:
            return None  # it was not made to its end, or is just being dropped


def content_of(home: HadoopPath, spec: FlowSpec) -> HadoopPath:
    """Return the folder of a flow's checkpoints, buffers and tables.

    Args:
        home: the flow's folder.
        spec: the flow.
    """
    return home.child(spec.folder) if spec.folder else home


def copy_content(spark: SparkSession, content: HadoopPath, place: HadoopPath) -> None:
    """Copy a flow's checkpoints, marks and tables; not its buffers, which are empty, nor what else is in its folder.

    Raises:
        SetupError: a file cannot be copied.
    """
    place.make()
    for status in content.statuses():
        name = str(status.getPath().getName())
        here, there = content.child(name), place.child(name)
        if name in _NOT_COPIED or name.startswith((_EPOCH, RESTORED)):
            continue
        if status.isFile() or name == "checkpoint":
            here.copy_to(there)
        elif table_copy.is_table(here):
            table_copy.copy_files(spark, here, there)
        else:
            copy_content(spark, here, there)


def tables_in(content: HadoopPath) -> list[HadoopPath]:
    """Return the tables in a copy of a flow's files."""
    found: list[HadoopPath] = []
    for status in content.statuses():
        place = content.child(str(status.getPath().getName()))
        if not status.isFile() and place.location.rsplit("/", 1)[-1] != "checkpoint":
            found += [place] if table_copy.is_table(place) else tables_in(place)
    return found


def clear_earlier(home: HadoopPath, spec: FlowSpec) -> None:
    """Delete the checkpoints, buffers and tables of a restored flow from before it was restored, and nothing of later drivers."""
    for name in home.names():
        number = name.removeprefix(RESTORED)
        is_later = name != number and (not number.isdigit() or int(number) >= spec.generation)
        if name != FOLDER and not name.startswith((_EPOCH, f".{_EPOCH}")) and not is_later:
            home.child(name).delete()


def _sizes(place: HadoopPath) -> dict[str, int]:
    """Return the sizes of the files with rows in a savepoint's folder, by folder and name."""
    folders = [name for name in place.names() if name == _TARGET or name.startswith(_QUARANTINE)]
    found = {folder: place.child(folder).statuses() for folder in folders}
    return {f"{folder}/{each.getPath().getName()}": int(each.getLen()) for folder in folders for each in found[folder]}


def _copy_again(spark: SparkSession, content: HadoopPath, place: HadoopPath) -> None:
    """Copy a flow's files; Spark may still delete old versions of a state store meanwhile, which nobody needs."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            copy_content(spark, content, place)
            return
        except SetupError as error:
            place.delete()
            if attempt == _ATTEMPTS:
                raise
            logger.info("flow's files are copied again: %s", error)


def refuse_placed_state(spec: FlowSpec, content: HadoopPath) -> None:
    """Refuse a flow whose state names the place where it lies: Spark would look for a copy's columns in the flow's own folder.

    Raises:
        UnsupportedError: the flow has a keyed function.
    """
    for stream in spec.streams:
        state = target.home_of(content, stream.relation).child("checkpoint", "state")
        if any(state.child(operator, "_metadata", "v2").names() for operator in state.names()):
            raise UnsupportedError(
                f"Flow `{spec.name}` has a keyed function, and Spark's state of it can be read only in the folder where it was "
                "written: it has no savepoints."
            )


def refuse_changed_state(spark: SparkSession, spec: FlowSpec, content: HadoopPath) -> None:
    """Refuse a flow whose state others have changed: a savepoint of it would look as if the flow itself had.

    Raises:
        FlowError: names the version.
    """
    for stream in spec.streams:
        home = target.home_of(content, stream.relation)
        table = spec.target_location if stream.writes_target else target.table_in(home).location
        state = table if stream.state_columns else state_in(home, stream.revision).location
        kept = {state: stream.state_backend is StateBackend.DELTA, values_in(home).location: stream.has_distinct_values}
        for place in (place for place, is_there in kept.items() if is_there):
            StateTable(spark, place, spec, 0).check()
        if stream.writes_target and stream.output_mode is OutputMode.UPDATE and not stream.key:
            refuse_rows_of_others(spark, spec, delta_tables.version(spark, table))


def has_buffered(spark: SparkSession, spec: FlowSpec, content: HadoopPath) -> bool:
    """Return whether a flow that does not run has micro-batches, in its buffers or its state, that are not in its tables."""
    for stream in spec.streams:
        home = target.home_of(content, stream.relation)
        table = spec.target_location if stream.writes_target else target.table_in(home).location
        table = (
            state_in(home, stream.revision).location if stream.has_sessions else table
        )  # the last of its tables that gets a micro-batch
        last = delta_log.last_transaction(spark, table, spec.application)
        if stream.state_backend is StateBackend.DELTA and not (stream.state_columns or stream.has_sessions):
            state = delta_log.last_transaction(spark, state_in(home, stream.revision).location, spec.application)
            if (-1 if state is None else state) != (-1 if last is None else last):
                return True  # a flush has failed between its two commits
        buffered = DurableBuffer(home.child(_BUFFER), 0).find(0.0)
        if any(last is None or batch.last > last for batch in buffered):
            return True
    return False
