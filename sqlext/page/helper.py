"""A helper process beside a host of flows, for work that takes long or needs more memory than the host can spare."""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from sqlext.clock import Deadline
from sqlext.errors import SetupError, SqlextError, WaitTimeoutError

logger = logging.getLogger(__name__)

_MOST_BYTES = 16 * 1024**2


class HelperProcess:
    """A Python process that answers each line on its standard input with a line on its standard output.

    The first request starts it. One thread at a time may call `ask`, `ask_once` and `close`; any thread may call `stop`.

    Args:
        arguments: the arguments of Python, which name the program.
        seconds: the time, in seconds, that an answer may take; after it the process is killed.
        failure: the beginning of error messages, such as `The chart cannot be drawn`.
    """

    def __init__(self, arguments: Sequence[str], seconds: float, failure: str) -> None:
        self._arguments = [sys.executable, *arguments]
        self._seconds = seconds
        self._failure = failure
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def ask(self, line: bytes) -> bytes:
        """Return the answer to a line; if the process has ended meanwhile, as after a long idle time, ask a new one.

        Raises:
            SetupError: the process ends, or the helper is closed.
            WaitTimeoutError: the answer takes too long.
        """
        try:
            return self._answer(line, self._seconds)
        except SqlextError:  # which may be an OSError too
            raise
        except (OSError, ValueError):
            self._end()
        return self.ask_once(line, self._seconds)

    def ask_once(self, line: bytes, seconds: float) -> bytes:
        """Return the answer to a line within a time, in seconds, without repeating the line."""
        try:
            return self._answer(line, seconds)
        except SqlextError:
            raise
        except (OSError, ValueError) as error:
            self._end()
            raise SetupError(f"{self._failure}: the helper process ended ({type(error).__name__}).") from None

    def stop(self) -> None:
        """Kill the process, even while it works, and start no other; a request meanwhile fails. Does not wait."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """Kill the process and release its resources. No request may be running."""
        self.stop()
        self._end()

    def _answer(self, line: bytes, seconds: float) -> bytes:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            return self._read_line(process.stdout, seconds)
        except WaitTimeoutError:
            self._end()
            raise

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise SetupError(f"{self._failure}: the page is closing.")
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(  # noqa: S603  # this Python, and a program of this package
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # errors are in the answer
                start_new_session=True,  # it gets no Ctrl-C from the terminal; it ends when its stdin does
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # it imports from where this process does
            )
            _let_others_first(self._process.pid)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it has no data to lose
            with suppress(OSError), process:  # a request may be left in its pipe
                pass

    def _read_line(self, stream: IO[bytes], seconds: float) -> bytes:
        """Read one line from a pipe.

        Raises:
            WaitTimeoutError: the line takes too long.
            ValueError: the line is too long, or the pipe ends within it.
        """
        found, deadline = bytearray(), Deadline(seconds)
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not found.endswith(b"\n"):
                if not selector.select(deadline.left):
                    raise WaitTimeoutError(f"{self._failure}: it took more than {seconds:.0f} s.")
                piece = os.read(stream.fileno(), 65536)
                if not piece or len(found) > _MOST_BYTES:
                    raise ValueError("no whole line")
                found += piece
        return bytes(found)


def _let_others_first(pid: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, pid, 10)
    except OSError as error:  # it has ended, or this machine has no priorities
        logger.debug("process %d keeps its priority: %s", pid, error)
