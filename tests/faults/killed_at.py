"""Runs `sqlext`, and dies by kill -9, with its JVM, at a moment that the code announces (`sqlext.testing.Moment`).

    python -m tests.faults.killed_at FLOW MOMENT TIMES SECONDS run flows.sql ..

The process dies when the flow has come to the moment for the TIMES-th time, and SECONDS have passed since then.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from pyspark import SparkContext

from sqlext.cli import main
from sqlext.testing import Moment, listened


def killed_at(flow: str, moment: Moment, times: int, seconds: float) -> None:
    """Run the rest of the command line, and die in it."""
    left = times

    def listener(found: Moment, name: str) -> None:
        nonlocal left
        if (found, name) != (moment, flow):
            return
        left -= 1
        if left == 0 and seconds:
            threading.Timer(seconds, die).start()
        elif left == 0:
            die()

    with listened(listener):
        main()


def die() -> None:
    """Kill this process and those that it has started; its JVM, which has a session of its own, would end more gently."""
    gateway: Any = SparkContext._gateway
    if gateway is not None:
        os.killpg(gateway.proc.pid, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    given = [sys.argv.pop(1) for _ in range(4)]
    killed_at(given[0], Moment(given[1]), int(given[2]), float(given[3]))
