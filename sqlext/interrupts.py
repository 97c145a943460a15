"""Ctrl-C and its like: a wish to stop, seen by whoever waits. Spark's own handler would cancel the jobs of running flows."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Notes the first signal; a second one ends the process at once, which loses nothing that flows have buffered durably.

    Attributes:
        asked: set at the first signal.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()

    def install(self) -> None:
        """Take the signals from now on to the end of the process; one that is ignored (nohup) stays ignored."""
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            os.write(sys.stderr.fileno(), b"\nended at once; flows are taken up again in the next run\n")
            os._exit(128 + number)
        self.asked.set()
