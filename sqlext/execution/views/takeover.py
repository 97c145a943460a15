"""The views of processes that are gone: taken over by this one, without a Spark job."""

from __future__ import annotations

import logging
import threading
from functools import partial

from sqlext.errors import ViewError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.views.making import ViewMaker
from sqlext.execution.views.registry import Records, ViewEvent, ViewEventKind, ViewRegistry, created
from sqlext.plan.lineage import shown

logger = logging.getLogger(__name__)


class Takeover:
    """See the module's docstring. Any thread may call it: the ticker, and what starts the process; the later one waits.

    Args:
        registry, lease: of this process.
        maker: undoes what is half created.
    """

    def __init__(self, registry: ViewRegistry, lease: Lease, maker: ViewMaker) -> None:
        self._registry = registry
        self._lease = lease
        self._maker = maker
        self._turn = threading.Lock()

    def resume(self) -> list[str]:
        """Undo what a process that is gone has left half created, then do as `take_over`."""
        with self._turn:
            self._maker.sweep()
            return self._taken()

    def take_over(self) -> list[str]:
        """Take over the views with schedules whose process is gone, and return their names."""
        with self._turn:
            return self._taken()

    def _taken(self) -> list[str]:
        taken: list[str] = []
        for record in created(self._registry.read()).values():
            is_free = not record.spec.schedule.is_by_hand and not record.spec.session_bound
            if is_free and self._lease.is_dead(record.host):
                try:
                    self._registry.append(partial(self._event, record.spec.id))
                except ViewError:
                    continue  # another process came first
                taken.append(shown(record.spec.name))
        if taken:
            logger.info("materialized views taken over: %s", ", ".join(taken))
        return taken

    def _event(self, view_id: str, records: Records) -> ViewEvent:
        record = records.get(view_id)
        if record is None or self._lease.is_elsewhere(record.host):
            raise ViewError("The view was dropped, or taken by another process.")
        return ViewEvent(view_id, ViewEventKind.TAKEN, host=self._lease.host_id)
