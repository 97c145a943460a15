"""One driver a flow: whoever takes a flow writes a higher epoch into its home, and the one before stops."""

from __future__ import annotations

from sqlext.errors import FlowError, NotFoundError
from sqlext.storage import HadoopPath

_FILE = "epoch"


class FencedError(FlowError):
    """Another driver runs the flow now."""


class Fence:
    """The epoch file of one flow, as one driver sees it. Any thread may call `check`.

    Args:
        home: the flow's folder; made when it is not there.
        flow: its name, for messages.
        epoch: this driver's, from the registry.
    """

    def __init__(self, home: HadoopPath, flow: str, epoch: int) -> None:
        self._home = home
        self._file = home.child(_FILE)
        self._flow = flow
        self._epoch = epoch

    def take(self) -> None:
        """From here on drivers with lower epochs stop at their next micro-batch or commit.

        Raises:
            FencedError: a driver with a higher epoch has come first.
        """
        self._home.make()
        current = self._read()
        if current is not None and current > self._epoch:
            raise self._taken(current)
        self._file.write_text(str(self._epoch))

    def check(self) -> None:
        """Raise FencedError when another driver has taken the flow."""
        current = self._read()
        if current != self._epoch:
            raise self._taken(current)

    def _read(self) -> int | None:
        """The epoch in force; None when none was ever written, or the flow was dropped."""
        try:
            return int(self._file.read_text())
        except NotFoundError:
            return None

    def _taken(self, current: int | None) -> FencedError:
        return FencedError(
            f"Another driver has taken over flow `{self._flow}` (epoch {current}, this one has {self._epoch}). It stops here."
        )
