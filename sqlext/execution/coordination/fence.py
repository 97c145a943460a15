"""One driver for each flow and job: the driver that takes it puts its epoch into the home, and removes lower ones."""

from __future__ import annotations

import logging

from sqlext.errors import FlowError
from sqlext.spark.storage import HadoopPath

logger = logging.getLogger(__name__)

_PREFIX = "epoch-"


class FencedError(FlowError):
    """The error of a driver after another one has taken over its flow or job."""


class Fence:
    """The epoch of one flow or job, as one driver sees it: a file named after the epoch. Any thread may call `check`.

    Args:
        home: the folder of the flow or job; created if it does not exist.
        what: the flow or job, for messages: "flow `t`".
        epoch: this driver's epoch, from the registry.
    """

    def __init__(self, home: HadoopPath, what: str, epoch: int) -> None:
        self._home = home
        self._mark = home.child(f"{_PREFIX}{epoch}")
        self._what = what
        self._epoch = epoch

    def take(self) -> None:
        """Take the flow or job: drivers with lower epochs stop at their next micro-batch or commit.

        Of two drivers that take it at once, the one that looks later sees both marks: the higher one stays.

        Raises:
            FencedError: a driver with a higher epoch came first.
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
        """Raise FencedError if another driver has taken the flow or job; costs one call to the file system."""
        if not self._mark.exists():
            raise self._taken(max(self._epochs(), default=None))

    def cause_of(self, error: BaseException) -> BaseException:
        """Return why a driver has failed: another one has taken over, whatever it noticed of that first; else `error` itself."""
        try:
            self.check()
        except FencedError as fenced:
            return fenced
        except Exception:  # the storage does not answer, which may be what `error` is about
            logger.exception("the fence of %s cannot be looked at", self._what)
        return error

    def _epochs(self) -> list[int]:
        """Return the epochs in force: several for a moment only, and none if the folder is gone."""
        found = (name.removeprefix(_PREFIX) for name in self._home.names() if name.startswith(_PREFIX))
        return [int(number) for number in found if number.isdigit()]

    def _taken(self, current: int | None) -> FencedError:
        if current is None:
            gone = f"The folder of {self._what} is gone: it was ended or dropped elsewhere."
            return FencedError(f"{gone} This driver (epoch {self._epoch}) stops here.")
        return FencedError(
            f"Another driver has taken over {self._what} with epoch {current}. This one has epoch {self._epoch}, and stops here."
        )
