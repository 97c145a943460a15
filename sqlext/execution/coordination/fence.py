"""One driver for each flow and job: whoever takes it puts its epoch into the home, and takes lower ones away."""

from __future__ import annotations

from sqlext.errors import FlowError
from sqlext.spark.storage import HadoopPath

_PREFIX = "epoch-"


class FencedError(FlowError):
    """Another driver runs the flow or job now."""


class Fence:
    """The epoch of one flow or job, as one driver sees it: a file named by it. Any thread may call `check`.

    Args:
        home: its folder; made when it is not there.
        what: what it is, for messages: "flow `t`".
        epoch: this driver's, from the registry.
    """

    def __init__(self, home: HadoopPath, what: str, epoch: int) -> None:
        self._home = home
        self._mark = home.child(f"{_PREFIX}{epoch}")
        self._what = what
        self._epoch = epoch

    def take(self) -> None:
        """From here on drivers with lower epochs stop at their next micro-batch or commit.

        Of two that take at once, the one that looks later sees both marks: the higher one stays.

        Raises:
            FencedError: a driver with a higher epoch has come first.
        """
        self._home.make()
        self._mark.write_text("")
        for epoch in self._epochs():
            if epoch > self._epoch:
                self._mark.delete()
                raise self._taken(epoch)
            if epoch < self._epoch:
                self._home.child(f"{_PREFIX}{epoch}").delete()

    def check(self) -> None:
        """Raise FencedError when another driver has taken it; one question to the file system."""
        if not self._mark.exists():
            raise self._taken(max(self._epochs(), default=None))

    def _epochs(self) -> list[int]:
        """Those in force: more than one for a moment only, and none when the folder is gone."""
        found = (name.removeprefix(_PREFIX) for name in self._home.names() if name.startswith(_PREFIX))
        return [int(number) for number in found if number.isdigit()]

    def _taken(self, current: int | None) -> FencedError:
        return FencedError(
            f"Another driver has taken over {self._what} (epoch {current}, this one has {self._epoch}). It stops here."
        )
