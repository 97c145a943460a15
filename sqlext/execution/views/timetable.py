"""When a materialized view is to be refreshed by itself: arithmetic on seconds, without a clock of its own."""

from __future__ import annotations

from enum import Enum, auto

from sqlext.execution.flows.retries import pause_after
from sqlext.plan.view_spec import Schedule

LOOK_SECONDS = 1.0
"""How often the sources of a view with TRIGGER ON UPDATE are looked at."""
_PAUSE_SHARE = 0.25
"""The part of a target lag between two refreshes at least: one may bring nothing, where something below it is older."""
_NEVER = float("inf")


class Due(Enum):
    """What is due for a view."""

    NOTHING = auto()
    LOOK = auto()
    """See whether a source has changed; if so, refresh."""
    REFRESH = auto()


class Timetable:
    """When one view is due. Not thread-safe; all times are seconds of one monotonic clock.

    SCHEDULE EVERY: a refresh is due when its time has passed since the last one, by whomever, was begun. One that could not be
    begun in time is begun once, when it can be. TRIGGER ON UPDATE: the sources are looked at every second, but for as long after
    a refresh as AT MOST EVERY says; those of a view with a target lag always are. After a failure nothing is due until the pause
    has passed.

    Args:
        schedule: the view's.
        now: the time.
        since: the seconds since the last refresh; None: not known, so that one is due now.
    """

    def __init__(self, schedule: Schedule, now: float, since: float | None = None) -> None:
        self._schedule = schedule
        self._begun = -_NEVER if since is None else now - since
        self._looked = -_NEVER
        self._attempts = 0
        self._paused_until = -_NEVER
        self._must_try = False
        self._before = (self._begun, False)  # what a refresh that has begun has changed

    @property
    def schedule(self) -> Schedule:
        """The view's schedule."""
        return self._schedule

    def with_schedule(self, schedule: Schedule) -> Timetable:
        """Return the timetable of another schedule; the time of the last refresh stays known."""
        made = Timetable(schedule, self._begun, 0.0)
        made._looked, made._before = self._looked, self._before
        return made

    def due(self, now: float) -> Due:
        """Return what is due."""
        if now < self._paused_until:
            return Due.NOTHING
        if self._must_try or (self._schedule.every is not None and now >= self._begun + self._schedule.every):
            return Due.REFRESH
        lag = None if self._schedule.is_stopped else self._schedule.target_lag
        may_look = self.may_follow(now) or (lag is not None and now >= self._begun + _PAUSE_SHARE * lag)
        return Due.LOOK if may_look and now >= self._looked + LOOK_SECONDS else Due.NOTHING

    def may_follow(self, now: float) -> bool:
        """Return whether the view may be refreshed with others that it reads, or that read it, if a change has come."""
        return self._schedule.on_update and now >= max(self._begun + self._schedule.at_most_every, self._paused_until)

    def note_look(self, now: float) -> None:
        """Note that the sources are looked at."""
        self._looked = now

    def note_looked(self, is_behind: bool) -> None:
        """Note what a look has found: if the view is behind, a refresh is due."""
        self.note_success()
        self._must_try = is_behind

    def note_begun(self, now: float) -> None:
        """Note that a refresh begins."""
        self._before = (self._begun, self._must_try)
        self._begun = now
        self._must_try = False

    def note_canceled(self) -> None:
        """Note that the refresh that has begun was canceled: what was due still is."""
        self._begun, self._must_try = self._before

    def note_success(self) -> None:
        """Note that a refresh, or a look, has succeeded."""
        self._attempts = 0
        self._paused_until = -_NEVER
        self._must_try = False

    def note_failure(self, now: float) -> float | None:
        """Note that a refresh, or a look, has failed.

        Returns:
            The seconds until the next try; None: the view is refreshed by hand only.
        """
        if self._schedule.is_by_hand:
            return None
        self._attempts += 1
        pause = pause_after(self._attempts).total_seconds()
        self._paused_until = now + pause
        self._must_try = True
        return pause
