"""One driver for each flow and job: whoever takes it writes a higher epoch into its home, and the one before stops."""

from __future__ import annotations

from sqlext.errors import FlowError, NotFoundError
from sqlext.storage import HadoopPath

_FILE = "epoch"


class FencedError(FlowError):
    """Another driver runs the flow or job now."""


class Fence:
    """The epoch file of one flow or job, as one driver sees it. Any thread may call `check`.

    Args:
        home: its folder; made when it is not there.
        what: what it is, for messages: "flow `t`".
        epoch: this driver's, from the registry.
    """

    def __init__(self, home: HadoopPath, what: str, epoch: int) -> None:
        self._home = home
        self._file = home.child(_FILE)
        self._what = what
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
        """Raise FencedError when another driver has taken it."""
        current = self._read()
        if current != self._epoch:
            raise self._taken(current)

    def _read(self) -> int | None:
        """The epoch in force; None when none was ever written, or the folder is gone."""
        try:
            return int(self._file.read_text())
        except NotFoundError:
            return None

    def _taken(self, current: int | None) -> FencedError:
        return FencedError(
            f"Another driver has taken over {self._what} (epoch {current}, this one has {self._epoch}). It stops here."
        )
