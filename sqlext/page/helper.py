"""A process beside the one that hosts flows: it does what takes long, or more memory than a host can spare, line by line."""

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
    """A Python process that answers each line on its standard input with one on its standard output; started at the first.

    One thread at a time calls `ask`; any thread may call `close`.

    Args:
        arguments: of Python, which name the program.
        seconds: that an answer may take; the process is killed at their end.
        failure: how messages begin, such as `The chart cannot be drawn`.
    """

    def __init__(self, arguments: Sequence[str], seconds: float, failure: str) -> None:
        self._arguments = [sys.executable, *arguments]
        self._seconds = seconds
        self._failure = failure
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def ask(self, line: bytes) -> bytes:
        """The answer to a line; asked once more where the process ended meanwhile, as it does when it has long been idle.

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
        """The same of a line that is not to be repeated, and within so many seconds."""
        try:
            return self._answer(line, seconds)
        except SqlextError:
            raise
        except (OSError, ValueError) as error:
            self._end()
            raise SetupError(f"{self._failure}: the process that does it ended ({type(error).__name__}).") from None

    def stop(self) -> None:
        """Kill the process, also while it works, and start no other; who asks meanwhile gets an error. Waits for nobody."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """The same, and clear away what is left of it. Nobody may ask meanwhile."""
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
                stderr=subprocess.DEVNULL,  # what goes wrong is in the answer
                start_new_session=True,  # no Ctrl-C of the terminal reaches it; it ends when its stdin does
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # it finds what this process finds
            )
            _let_others_first(self._process.pid)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it holds nothing that could be lost
            with suppress(OSError), process:  # a request may be left in its pipe
                pass

    def _read_line(self, stream: IO[bytes], seconds: float) -> bytes:
        """One line of a pipe.

        Raises:
            WaitTimeoutError: it takes too long.
            ValueError: the line is too long, or ends in its middle.
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
    except OSError as error:  # it has ended; or this machine has no such thing
        logger.debug("process %d keeps its priority: %s", pid, error)
