"""The views of processes that are gone: taken over by this one, or undone where they were only half made."""

from __future__ import annotations

import logging
import threading
from functools import partial

from sqlext.errors import ViewError
from sqlext.execution.coordination.lease import Lease
from sqlext.execution.views.graph import lineage_of
from sqlext.execution.views.making import Flows, ViewMaker
from sqlext.execution.views.needs import needs_of_views
from sqlext.execution.views.registry import Records, ViewEvent, ViewEventKind, ViewRegistry, created
from sqlext.plan.lineage import shown

logger = logging.getLogger(__name__)


class Takeover:
    """See the module's docstring. Any thread may call it: the ticker, and what starts the process; the later one waits.

    Args:
        registry, lease: of this process.
        maker: undoes what is half created.
        flows: of the home, through which views read one another, too.
    """

    def __init__(self, registry: ViewRegistry, lease: Lease, maker: ViewMaker, flows: Flows) -> None:
        self._registry = registry
        self._lease = lease
        self._maker = maker
        self._flows = flows
        self._turn = threading.Lock()

    def take_over(self, waits: bool = True) -> list[str]:
        """Undo what a process that is gone has left half created, and take over its views that are refreshed by themselves.

        These are the views with schedules, and those without that a target lag above them needs.

        Args:
            waits: whether to wait until another call has ended; if not, nothing is done then.

        Returns:
            Their names.
        """
        if not self._turn.acquire(blocking=waits):
            return []
        try:
            self._maker.sweep()
            return self._taken()
        finally:
            self._turn.release()

    def _taken(self) -> list[str]:
        taken: list[str] = []
        records = self._registry.read()
        needs = needs_of_views(lineage_of(self._flows(), records), records)
        for record in created(records).values():
            is_due = not record.spec.schedule.is_by_hand or record.spec.id in needs
            if is_due and not record.spec.session_bound and self._lease.is_dead(record.host):
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
