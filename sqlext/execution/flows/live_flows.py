"""The flows of one process, and the turns that take what changes them.

A statement, a restart or a new try changes the flows of a table in its turn at this table. Tables do not wait for one another:
the start of a flow whose broker does not answer, or a change of a query that reads its history again, holds up nobody else.
Nobody who has a turn waits for another one, so that no two can wait for each other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakValueDictionary

from pyspark.sql import SparkSession

from sqlext.errors import SqlextError, WaitTimeoutError
from sqlext.execution.flows.flow import Flow
from sqlext.execution.flows.registry import FlowRecord, FlowRegistry, find, without_case
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.flow_spec import FlowSpec
from sqlext.spark import failures, jvm
from sqlext.spark.cancellation import wait_for

logger = logging.getLogger(__name__)

_FOREVER = -1.0


class LiveFlows:
    """See the module's docstring.

    `_lock` guards the turns, what is busy, and changes of `all`; while it is held, nothing is called that could wait.

    Args:
        registry: of this process.

    Attributes:
        all: the flows by id, whatever their phase. The dict is never changed, only replaced, so that the host's ticker, which
            looks at every flow ten times a second, need not wait for anybody.
    """

    def __init__(self, registry: FlowRegistry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._turns: WeakValueDictionary[tuple[str, ...], threading.RLock] = WeakValueDictionary()  # those that somebody has
        self._busy: dict[str, Flow] = {}
        self.all: Mapping[str, Flow] = {}

    @contextmanager
    def turn_at(self, table: tuple[str, ...], patience: float = _FOREVER) -> Iterator[bool]:
        """Have the turn at a table, by its qualified name, within the block; one who has it already gets it again.

        Args:
            patience: how long to wait until nobody else has it, in seconds.

        Returns:
            Whether this thread has the turn.
        """
        with self._lock:
            turn = self._turns.setdefault(without_case(table), threading.RLock())
        has_it = turn.acquire(timeout=patience)
        try:
            yield has_it
        finally:
            if has_it:
                turn.release()

    def wait_for_others(self, spark: SparkSession, table: tuple[str, ...], seconds: float) -> None:
        """Wait until nobody else has the turn at a table, or the client cancels the statement.

        Raises:
            WaitTimeoutError: that takes longer.
        """

        def is_free(step: float) -> bool:
            with self.turn_at(table, step) as has_turn:
                return has_turn

        if not wait_for(spark, is_free, seconds):
            raise WaitTimeoutError(
                f"Another statement is about the flow of {'.'.join(table)}, and has not ended within {seconds:g} s."
            )

    @contextmanager
    def turn_of(self, name: tuple[str, ...]) -> Iterator[FlowRecord]:
        """Have the turn at a flow's table within the block, and give the flow's record, as it is then.

        Args:
            name: of the flow, qualified.

        Raises:
            NotFoundError: there is no such flow.
        """
        while True:
            table = find(self._registry.read(), name).spec.target
            with self.turn_at(table):
                record = find(self._registry.read(), name)
                if without_case(record.spec.target) == without_case(table):
                    yield record
                    return

    def get(self, flow_id: str) -> Flow | None:
        """Return a flow of this process, whatever its phase."""
        return self.all.get(flow_id)

    def put(self, flow: Flow) -> None:
        """Note a flow that has started."""
        with self._lock:
            self.all = {**self.all, flow.spec.id: flow}

    def let_go(self, flow_id: str) -> None:
        """Forget a flow, which has ended."""
        with self._lock:
            self.all = {key: flow for key, flow in self.all.items() if key != flow_id}

    @contextmanager
    def busy_with(self, flow: Flow) -> Iterator[None]:
        """While it is started or stopped within the block, others can interrupt a flow."""
        with self._lock:
            self._busy[flow.spec.id] = flow
        try:
            yield
        finally:
            with self._lock:
                self._busy.pop(flow.spec.id, None)

    def interrupt(self, flow_id: str) -> None:
        """Interrupt a flow that is just being started or stopped, which may take long."""
        with self._lock:
            flow = self._busy.get(flow_id)
        if flow is not None:
            flow.interrupt()


@contextmanager
def resumed_if_undone(
    run: Callable[[FlowSpec, SparkSession, FlowOptions], object], record: FlowRecord, flow: Flow | None
) -> Iterator[None]:
    """Run a flow again, if it ran, where the block, which stops it, fails.

    Args:
        run: starts a flow.
        record: of the flow, as it was before.
        flow: of this process; None: it runs elsewhere, or not at all.
    """
    was_running = flow is not None and flow.is_running
    try:
        yield
    except Exception:
        if flow is not None and was_running:
            try:
                with jvm.outside_of_any_query(flow.session):
                    run(record.spec, flow.session, flow.options)
            except (SqlextError, *failures.SPARK_ERRORS) as error:
                logger.exception("flow %s could not be restarted: %s", record.spec.name, failures.reason_of(error))
        raise
