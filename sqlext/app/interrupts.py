"""Ctrl-C and other signals, as a request to stop that waits check. Spark's own handler would cancel the jobs of running flows."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The signals that this process has received.

    The first one is a request; a second one ends the process at once, which loses nothing that flows have buffered durably. At a
    prompt, Ctrl-C ends only the running statement, however often it is pressed: see `is_forgiving`.

    Args:
        ended: what a second signal prints.

    Attributes:
        asked: set at a signal.
        must_end: whether a signal requests the end of the process.
        is_forgiving: whether Ctrl-C leaves the process running; the code that ends the statement then clears `asked`.
        on_end: called, on the main thread, at a signal other than Ctrl-C.
    """

    def __init__(self, ended: str = "ended at once; flows resume in the next run") -> None:
        self._ended = ended
        self.asked = threading.Event()
        self.must_end = False
        self.is_forgiving = False
        self.on_end: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Handle the signals until the process ends; a signal that is ignored (nohup) stays ignored."""
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_forgiven = self.is_forgiving and number == signal.SIGINT
        if self.must_end and not is_forgiven:
            os.write(sys.stderr.fileno(), f"\n{self._ended}\n".encode())
            os._exit(128 + number)
        self.must_end = self.must_end or not is_forgiven
        self.asked.set()
        if number != signal.SIGINT:
            self.on_end()
