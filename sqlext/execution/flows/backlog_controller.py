"""Steers one flow through backlog: looks at its sources, and sets the pace of its queries when the phase changes (FLIP-309).

Sources are looked at about once a second by a thread of its own, and at the end of each micro-batch by Spark's stream thread, so
that the next micro-batch is planned at the right pace already. The stream thread calls no functions of the user's, of which one
may never return: it could not be stopped then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlext.clock import Clock, Deadline
from sqlext.errors import SqlextError
from sqlext.execution.backlog.pacer import BacklogBatch, BacklogSettings, Pacer, SourceLook
from sqlext.execution.backlog.readers import SourceReader, reader_of
from sqlext.execution.backlog.status import BacklogStatus, SourceBacklogStatus, Switch, because
from sqlext.execution.flows.intake import Intake
from sqlext.execution.streaming.checkpoint import PlannedBatch
from sqlext.execution.streaming.pace import Pace, Phase
from sqlext.execution.streaming.streams import StreamLeaf
from sqlext.functions.backlog_reports import BacklogReport, backlog_report
from sqlext.logs import carried
from sqlext.plan.flow_spec import SourceSpec
from sqlext.spark import failures
from sqlext.spark.failures import SPARK_ERRORS

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_LOOKS_SHARE = 0.05
"""Looking at the sources takes at most this part of the time, however slow it is to list their files."""
_CLOSE_SECONDS = 30.0
_LOOK_PATIENCE = 30.0
"""How many seconds a micro-batch waits for a look of another thread, before it ends without one of its own."""
_POLL_SECONDS = 0.1
_SWITCHES_KEPT = 50


@dataclass
class _Source:
    """One stream of one query, and what was read of it."""

    name: str
    intake: Intake
    leaf: StreamLeaf
    reader: SourceReader
    offset: str | None = None
    watermark: datetime | None = None
    throughput: float | None = None
    has_failed: bool = False


def report_of(sources: Iterable[SourceSpec], alias: str) -> BacklogReport | None:
    """Return the function that users have registered for a stream, by its alias; None: there is none."""
    return next((found for each in sources if each.alias == alias and (found := backlog_report(each.name))), None)


class BacklogController:
    """See the module's docstring.

    `_lock` guards the pacer and the sources, and is held while sources are looked at, which takes long where a storage does not
    answer: stops and micro-batches wait for it no longer than they may. `status` and `_reports` are replaced whole, and may be
    read without it.

    Args:
        name: the flow's.
        interval: `execution.checkpointing.interval`.
        settings: by the alias of each stream.
        is_enabled: whether sources are to be looked at.
        report_of: the function of the user's that says isProcessingBacklog of a stream, by its alias; None: there is none.
        clock: measures ages.
        changed: called when the phase has changed, on the thread that found out.
        failed: told when a hybrid source cannot go on.
    """

    def __init__(
        self,
        name: str,
        interval: timedelta | None,
        settings: Mapping[str, BacklogSettings],
        is_enabled: bool,
        report_of: Callable[[str], Callable[[], bool] | None],
        clock: Clock,
        changed: Callable[[Phase], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._settings = settings
        self._report_of = report_of
        self._clock = clock
        self._changed = changed
        self._failed = failed
        self._pacer = Pacer(interval, {})
        self._interval = interval
        self._sources: list[_Source] = []
        self._lock = threading.Lock()
        self._unseen = deque[tuple[Intake, PlannedBatch]]()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_enabled = is_enabled
        self._reports: Mapping[str, bool | None] = {}  # what the functions of the user's said last, by the aliases of streams
        self.status = BacklogStatus()
        self._seen_at = float("-inf")
        self._switches_told = 0

    @property
    def pace(self) -> Pace:
        """How micro-batches are to come now."""
        with self._lock:
            return self._pacer.pace

    def seen(self, intakes: Iterable[Intake], max_age: float) -> BacklogStatus:
        """Return the status with a look at the sources of queries that run, even where nothing looks at them by itself.

        Args:
            intakes: the flow's.
            max_age: the age, in seconds, of a look that is new enough.
        """
        started = [intake for intake in intakes if intake.started is not None]
        if self._is_enabled or not started or time.monotonic() - self._seen_at <= max_age:
            return self.status
        self._hear()
        with self._lock:
            if not self._closed.is_set():
                self._see(started)
            if self._closed.is_set():
                self._let_go()
            return self.status

    def _see(self, started: Sequence[Intake]) -> None:
        """Look at the sources while no phase depends on them; the lock is held."""
        try:
            if not self._sources:
                for intake in started:
                    self._find_sources(intake)
            planned = {id(each): each.checkpoint.planned(each.checkpoint.newest_committed) for each in started}
            for source in self._sources:
                _move(source, planned.get(id(source.intake), PlannedBatch()))
            looks = {source.name: self._look_at(source) for source in self._sources}
        except (SqlextError, *SPARK_ERRORS) as error:  # it is just being stopped, or the storage does not answer
            logger.info("flow %s: its sources could not be looked at: %s", self._name, failures.reason_of(error))
            looks = {source.name: SourceLook() for source in self._sources}  # what was seen before says nothing now
        sources = {s.name: SourceBacklogStatus(s.leaf.alias, False, looks[s.name]) for s in self._sources}
        lag = max((age for look in looks.values() if (age := _age(look)) is not None), default=None)
        self.status, self._seen_at = replace(self.status, sources=sources, lag=lag), time.monotonic()

    def new_switches(self) -> tuple[Switch, ...]:
        """Return the changes of phase since the last call; only one thread may call this."""
        status = self.status
        number, self._switches_told = status.switch_count - self._switches_told, status.switch_count
        return status.switches[-number:] if number else ()

    def open(self, intakes: Sequence[Intake]) -> None:
        """Look at the sources of queries that are analysed and do not run yet."""
        if not self._is_enabled:
            return
        self._hear()
        with self._lock:
            for intake in intakes:
                self._find_sources(intake)
            none = BacklogSettings(None, None)
            self._pacer = Pacer(self._interval, {s.name: self._settings.get(s.leaf.alias, none) for s in self._sources})
            self._look(is_first=True)

    def watch(self) -> None:
        """Begin to look at the sources by itself, when all queries run."""
        if self._is_enabled:
            self._thread = threading.Thread(target=carried(self._watch), name=f"sqlext-pace-{self._name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, and let go of what the readers hold; a thread that is in a look or a function does it when it can."""
        self._closed.set()
        deadline = Deadline(_CLOSE_SECONDS)
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(deadline.left)
            if self._thread.is_alive():
                logger.warning("flow %s: the thread %s still runs after %.0f s", self._name, self._thread.name, _CLOSE_SECONDS)
        if self._lock.acquire(timeout=deadline.left):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def batch_ended(self, intake: Intake, batch: int, seconds: float) -> None:
        """Note the end of a micro-batch, on the stream thread; Spark plans the next one when this returns."""
        if not self._is_enabled:
            return
        try:
            has_switched = self._after(intake, batch, seconds)
        except Exception:  # what is known of a source must not cost the micro-batch
            if not intake.stopping:
                logger.exception("flow %s: its sources could not be looked at", self._name)
            return
        self._tell(has_switched)

    def _after(self, intake: Intake, batch: int, seconds: float) -> bool:
        planned = intake.checkpoint.planned(batch)
        if not self._is_mine(intake):
            self._unseen.append((intake, planned))
            return False
        try:
            self._move_unseen()
            before = {source.name: source.offset for source in self._sources}
            mine = [source for source in self._sources if source.intake is intake]
            for source in mine:
                _move(source, planned)
            has_switched = self._look()
            taken_at = intake.running.pace
            if taken_at.phase is Phase.BACKLOG and taken_at.size is not None:
                fills = [self._fill(source, before[source.name], taken_at.size, seconds) for source in mine]
                known = [fill for fill in fills if fill is not None]
                self._pacer.note_batch(BacklogBatch(taken_at.size, max(known) if known else None, seconds))
            self._apply()
        finally:
            self._lock.release()
        return has_switched

    def _is_mine(self, intake: Intake) -> bool:
        """Take the lock for the end of a micro-batch; False: a look takes too long, or the query is to stop."""
        deadline = Deadline(_LOOK_PATIENCE)
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            if self._closed.is_set() or intake.stopping or deadline.has_passed:
                return False
        return True

    # The thread.

    def _watch(self) -> None:
        took = 0.0
        while not self._closed.wait(max(LOOK_SECONDS, took / _LOOKS_SHARE)):
            began = time.monotonic()
            try:
                self._hear()
                with self._lock:
                    has_switched = not self._closed.is_set() and self._look()
                    self._apply()
                self._tell(has_switched)
                for intake in {id(source.intake): source.intake for source in self._sources}.values():
                    if intake.has_ended_part and not self._closed.is_set():
                        self._advance(intake)
            except Exception:
                if not self._closed.is_set():
                    logger.exception("flow %s: its sources could not be looked at", self._name)
            took = time.monotonic() - began
        with self._lock:
            self._let_go()

    def _advance(self, intake: Intake) -> None:
        """Continue with the next relation of a hybrid source, when one was read to its end."""
        try:
            intake.next_part()
            with self._lock:
                if self._closed.is_set():
                    return
                self._find_sources(intake)
                has_switched = self._look()
                pace = self._pacer.pace
            intake.start(pace)
        except (SqlextError, *SPARK_ERRORS) as error:
            self._failed(error)
            return
        self._tell(has_switched)

    # With the lock held.

    def _find_sources(self, intake: Intake) -> None:
        """Of a query that is analysed, and does not run yet."""
        intake.running.find_streams(self._settings)
        planned = intake.checkpoint.planned(intake.checkpoint.newest_committed)
        for source in self._sources:
            if source.intake is intake:
                source.reader.close()
        self._sources = [source for source in self._sources if source.intake is not intake]
        for leaf in intake.running.leaves:
            reader = reader_of(intake.session, leaf, intake.checkpoint, self._clock.now)
            source = _Source(self._free_name(leaf), intake, leaf, reader)
            _move(source, planned)
            self._sources.append(source)

    def _move_unseen(self) -> None:
        """Take in the micro-batches whose end nobody could wait for the lock to note."""
        while self._unseen:
            intake, planned = self._unseen.popleft()
            for source in self._sources:
                if source.intake is intake:
                    _move(source, planned)

    def _look(self, is_first: bool = False) -> bool:
        """See what the sources have left; whether the phase has changed."""
        self._move_unseen()
        looks = {source.name: self._look_at(source) for source in self._sources if not source.intake.has_failed}
        self._pacer.see(looks, is_first)
        before, phase = self.status, self._pacer.phase
        aliases = {source.name: source.leaf.alias for source in self._sources}
        sources = {
            name: SourceBacklogStatus(aliases[name], source.is_processing_backlog, source.look)
            for name, source in self._pacer.sources.items()
            if name in aliases
        }
        lag = max((age for look in looks.values() if (age := _age(look)) is not None), default=None)
        status = replace(before, phase=phase, sources=sources, lag=lag, catch_up=self._catch_up(looks))
        if phase is not before.phase:
            switch = Switch(self._clock.now(), phase, because(sources))
            logger.info("flow %s: %s (%s)", self._name, phase.value, switch.because)
            newest = (*before.switches, switch)[-_SWITCHES_KEPT:]
            status = replace(status, switches=newest, switch_count=before.switch_count + 1)
        self.status = status
        return phase is not before.phase

    def _look_at(self, source: _Source) -> SourceLook:
        try:
            look = source.reader.look(source.offset)
            source.has_failed = False
        except (SqlextError, *SPARK_ERRORS) as error:  # if it is more than a moment, the query itself says what is wrong
            if not source.has_failed:
                logger.warning("flow %s: source %s cannot be looked at: %s", self._name, source.name, failures.reason_of(error))
            source.has_failed = True
            look = SourceLook()
        is_waiting = not source.intake.is_quiet if look.has_unread is None else look.has_unread
        if source.leaf.has_watermark and source.watermark is not None and is_waiting:
            age = self._clock.now() - source.watermark
            look = replace(look, lag=max(look.lag or timedelta(), age))
        hybrid = source.intake.hybrid
        if hybrid is not None and hybrid.alias == source.leaf.alias:
            look = replace(look, is_history=not hybrid.is_last)
        return replace(look, reported=self._reports.get(source.leaf.alias))

    def _fill(self, source: _Source, before: str | None, size: float, seconds: float) -> float | None:
        """How much of its limit a source gave to a micro-batch."""
        first_limit = source.leaf.first_limit
        if first_limit is None:
            return None
        old, new = source.reader.handed_over(before), source.reader.handed_over(source.offset)
        if old is None or new is None:
            unread = self._pacer.sources[source.name].look.unread
            return 0.0 if unread == 0 else None
        read = max(new - old, 0.0)  # less than nothing where commits in between have removed files
        source.throughput = read / max(seconds, 0.001)
        return read / (first_limit * size)

    def _catch_up(self, looks: Mapping[str, SourceLook]) -> timedelta | None:
        left = [
            timedelta(seconds=unread / source.throughput)
            for source in self._sources
            if (unread := looks.get(source.name, SourceLook()).unread) and source.throughput
        ]
        return max(left, default=None)

    def _apply(self) -> None:
        pace = self._pacer.pace
        for intake in {id(source.intake): source.intake for source in self._sources}.values():
            intake.running.set_pace(pace)

    def _let_go(self) -> None:
        """Close the readers, after the last look."""
        for source in self._sources:
            source.reader.close()
        self._sources = []
        if not self._is_enabled:  # nobody looks any more, so what was seen last tells nothing
            self.status = replace(self.status, sources={}, lag=None)

    def _free_name(self, leaf: StreamLeaf) -> str:
        taken = {source.name for source in self._sources}
        name, number = leaf.alias or f"source {leaf.at}", 1
        while name in taken:
            number += 1
            name = f"{leaf.alias} ({number})"
        return name

    # Without it.

    def _hear(self) -> None:
        """Ask the functions of the user's."""
        self._reports = {alias: self._reported(alias) for alias in self._settings}

    def _reported(self, alias: str) -> bool | None:
        function = self._report_of(alias)
        if function is None:
            return None
        try:
            return bool(function())
        except Exception as error:  # noqa: BLE001  # a function of the user's may raise anything
            logger.warning("flow %s: the backlog function of %s failed: %s", self._name, alias, error)
            return False

    def _tell(self, has_switched: bool) -> None:
        if has_switched:
            self._changed(self.status.phase)


def _age(look: SourceLook) -> timedelta | None:
    """Return the age of the oldest unread record; zero: all is read; None: not known."""
    return timedelta() if look.unread == 0 else look.lag


def _move(source: _Source, planned: PlannedBatch) -> None:
    source.offset = planned.offsets.get(source.leaf.name, source.offset)
    source.watermark = planned.watermark or source.watermark
