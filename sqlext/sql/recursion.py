"""Python's recursion limit while a statement is read and planned: sqlglot, and the walks of its trees, go as deep as a query."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlext.errors import UnsupportedError

_LIMIT = 10_000
_lock = threading.Lock()
_users: list[int] = []  # for each statement at work, in whatever thread: the limit that it found


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise the recursion limit, which all threads have in common, until the last of the statements at work is done.

    Raises:
        UnsupportedError: the statement is nested too deeply all the same.
    """
    with _lock:
        _users.append(_users[0] if _users else sys.getrecursionlimit())
        sys.setrecursionlimit(max(_LIMIT, _users[0]))
    try:
        yield
    except RecursionError:
        raise UnsupportedError(
            "The statement is nested too deeply to be read and planned. Give inner parts of its query a view of their own."
        ) from None
    finally:
        with _lock:
            before = _users.pop()
            if not _users:
                sys.setrecursionlimit(before)
