"""Ctrl-C and its like: a wish to stop, seen by whoever waits. Spark's own handler would cancel the jobs of running flows."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Notes the first signal; a second one ends the process at once, which loses nothing that flows have buffered durably.

    At a prompt, Ctrl-C ends only what runs now, as often as it is pressed: see `is_forgiving`.

    Attributes:
        asked: set at a signal.
        must_end: whether one of them wants the process to end.
        is_forgiving: whether Ctrl-C leaves the process alone; whoever ends what ran then clears `asked`.
        on_end: called, on the main thread, at a signal other than Ctrl-C.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.must_end = False
        self.is_forgiving = False
        self.on_end: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Take the signals from now on to the end of the process; one that is ignored (nohup) stays ignored."""
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_forgiven = self.is_forgiving and number == signal.SIGINT
        if self.must_end and not is_forgiven:
            os.write(sys.stderr.fileno(), b"\nended at once; flows are taken up again in the next run\n")
            os._exit(128 + number)
        self.must_end = self.must_end or not is_forgiven
        self.asked.set()
        if number != signal.SIGINT:
            self.on_end()
