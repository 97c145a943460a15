"""A few threads that work for the views of a process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from sqlext.clock import Deadline

logger = logging.getLogger(__name__)


class Workers:
    """Runs tasks one after the other on a few threads, which are started when they are needed. Any thread may call it.

    The threads are daemons: a process can end while a task hangs. The lock guards the list of threads and the count of tasks.

    Args:
        most: how many threads there are at most.
        name: what their names begin with.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._pending = 0
        self._is_closed = False

    def submit(self, task: Callable[[], object]) -> bool:
        """Have a task run after those before it; its errors are logged.

        Returns:
            Whether it will be run; False once this is closed.
        """
        with self._lock:
            if self._is_closed:
                return False
            self._pending += 1
            self._tasks.put(task)
            if self._pending > len(self._threads) and len(self._threads) < self._most:
                name = f"{self._name}-{len(self._threads) + 1}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        return True

    def close(self, timeout: float) -> None:
        """Take no more tasks, and wait for the threads to end what they do; queued tasks still run.

        Args:
            timeout: seconds to wait at most, for all of them.
        """
        with self._lock:
            self._is_closed = True
            threads = tuple(self._threads)
        for _ in threads:
            self._tasks.put(None)
        deadline = Deadline(timeout)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(deadline.left)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                logger.exception("a task of %s failed", threading.current_thread().name)
            finally:
                with self._lock:
                    self._pending -= 1
