"""Moments in the life of a flow or view that a test may wait for: the code announces them, and in production nobody listens.

A crash at each of them is what `ARCHITECTURE.md`'s crash table describes. `sqlext.testing` has what tests make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Moment(StrEnum):
    """A moment, after its name has become true and before anything follows."""

    TABLE_MADE = "table made"
    """The flow's tables are there, the flow does not run yet."""
    BATCH_BEGUN = "batch begun"
    """Spark has planned a micro-batch, and nothing of it has run."""
    BATCH_BUFFERED = "batch buffered"
    """A micro-batch is in the buffer; Spark does not know yet that it has ended."""
    REWIND_BEGUN = "rewind begun"
    """What memory lost is to be brought back: the newest micro-batch no longer counts as ended."""
    FLUSH_BEGUN = "flush begun"
    """A flush has taken what is buffered."""
    ROWS_QUARANTINED = "rows quarantined"
    """Quarantine tables have the rows of a flush that are for them, the flow's table has nothing of it."""
    VALUES_COMMITTED = "values committed"
    """The table of distinct values has a flush, or has nothing new of it; the state has it not."""
    STATE_COMMITTED = "state committed"
    """The state's own table has a flush, the query's table has it not; with session windows the other way round."""
    FLUSH_COMMITTED = "flush committed"
    """All tables have a flush, the buffer still holds its micro-batches."""

    REPLAY_BEGUN = "replay begun"
    """Quarantined rows have left the quarantine table, and are not in the flow's table yet."""
    ALTERATION_NOTED = "alteration noted"
    """A flow's other query is on record as one to come; nothing is committed."""
    ALTERATION_STATE_COMMITTED = "alteration's state committed"
    """The state of a flow's other query is there, its table has it not."""
    ALTERATION_COMMITTED = "alteration committed"
    """A flow's table has its other query, the registry has it not."""
    ALTERATION_RECORDED = "alteration recorded"
    """The registry has a flow's other query, and the flow does not run yet."""
    SAVEPOINT_COPIED = "savepoint copied"
    """All that a savepoint is made of is copied, and it is not on record."""
    RESTORE_PREPARED = "restore prepared"
    """A flow's files are there as a savepoint has them, and it is not on record that they are the flow's."""
    RESTORE_DECIDED = "restore decided"
    """It is on record that a flow is set back to a savepoint; its table is not yet."""
    RESTORE_COMMITTED = "restore committed"
    """A flow's table is set back to a savepoint, and that is not on record."""
    PARTIALS_COMMITTED = "partials committed"
    """The partial results beside a view have a refresh, the view has it not."""


Listener = Callable[[Moment, str], None]
"""Called with the moment and the name of the flow or view, on the thread that has come there, which goes on when it returns."""

_listeners: tuple[Listener, ...] = ()


def announce(moment: Moment, flow: str) -> None:
    """Call the listeners: a flow has reached a moment."""
    for listener in _listeners:
        listener(moment, flow)


@contextmanager
def listened(listener: Listener) -> Iterator[None]:
    """Have a listener called at each moment of every flow of this process, in the `with` block."""
    global _listeners
    _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        _listeners = tuple(each for each in _listeners if each is not listener)
