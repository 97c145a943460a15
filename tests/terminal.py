"""A process at a terminal of its own: what people type, and what they see."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

_SIZE = struct.pack("HHHH", 50, 140, 0, 0)  # lines, columns
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[=>]|\r")


class Terminal:
    """Starts a process as the leader of a terminal's session, so that Ctrl-C is a signal to it; kills it in the end.

    Args:
        environment: on top of this process's own.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, _SIZE)
        # no cursor position requests: nobody here answers them
        own = {**os.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", **environment}
        self.process = subprocess.Popen(command, env=own, preexec_fn=lambda: os.login_tty(slave))
        os.close(slave)
        self._bytes = b""
        self._seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """All that was shown, without colours and movements."""
        return _ESCAPES.sub("", self._bytes.decode(errors="replace"))

    def type(self, keys: str) -> None:
        """Press keys; what is shown from now on is what `expect` looks at."""
        self._seen = len(self.text)
        os.write(self._master, keys.encode())

    def expect(self, pattern: str, timeout: float) -> None:
        """Wait until something is shown, within so many seconds."""
        deadline = time.monotonic() + timeout
        while not re.search(pattern, self.text[self._seen :]):
            assert time.monotonic() < deadline, f"{pattern!r} was not shown:\n{self.text[-4000:]}"
            assert self._read(), f"the process ended with {self.process.wait()}:\n{self.text[-4000:]}"

    def end(self, timeout: float) -> int:
        """The exit code of the process, which must come to its end."""
        deadline = time.monotonic() + timeout
        while self._read():  # or it could not write what it has to say
            assert time.monotonic() < deadline, self.text[-4000:]
        return self.process.wait(max(deadline - time.monotonic(), 1))

    def _read(self) -> bool:
        """Read what is there; false when the terminal has no process any more."""
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        try:
            more = os.read(self._master, 65536)
        except OSError:  # so Linux says that nobody has the other side
            return False
        self._bytes += more
        return bool(more)
