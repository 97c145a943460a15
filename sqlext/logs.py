"""Log lines that name the flow, view or job whose work wrote them, and log lines as JSON.

A thread that works for a flow says so once, with `about`, where that work begins; a thread that is made meanwhile goes on with it
by `carried`. All that is logged there, by whichever library, then has the flow's name and epoch.

>>> record = logging.LogRecord("sqlext.demo", logging.INFO, "", 0, "flushed %d rows", (3,), None)
>>> with about(flow="shop.sales", epoch=7):
...     line = json.loads(JsonFormatter().format(record))
>>> line["message"], line["flow"], line["epoch"]
('flushed 3 rows', 'shop.sales', 7)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import wraps
from types import MappingProxyType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlext.redaction import of_application

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="HasSubject")
Subject = Mapping[str, str | int]
"""`flow` and `epoch`, or `view`, or `job`: qualified names, as the metrics have them."""

_NAMES = ("flow", "epoch", "view", "job")
_subject: ContextVar[Subject] = ContextVar("sqlext_log_subject", default=MappingProxyType({}))


@contextmanager
def about(**subject: str | int) -> Iterator[None]:
    """Name what this thread works for within the block, or within a function that this decorates; see `Subject`."""
    before = _subject.set(subject)
    try:
        yield
    finally:
        _subject.reset(before)


class HasSubject(Protocol):
    """An object whose methods work for one subject."""

    @property
    def subject(self) -> Subject: ...


def logged(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return a method that works for its object's subject."""

    @wraps(method)
    def work(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with about(**self.subject):
            return method(self, *args, **kwargs)

    return work


def carried(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that works for what this thread works for now, on whichever thread it is called."""
    return about(**_subject.get())(function)


class WorkFilter(logging.Filter):
    """A filter that lets all records pass and gives them `flow`, `epoch`, `view` and `job`; None: not known.

    For formatters of other libraries, and for handlers that pass records on to another thread.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Give a record its attributes."""
        for name in _NAMES:
            setattr(record, name, _subject.get().get(name))
        return True


class JsonFormatter(logging.Formatter):
    """A formatter that makes one line with a JSON object of each log record, without secrets.

    The object has `time` (ISO 8601, UTC), `level`, `logger`, `thread` and `message`; `flow` and `epoch`, `view`, or `job`, if the
    record was written for one; and `exception`, the traceback, if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        show = of_application()
        exception = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        stack = self.formatStack(record.stack_info) if record.stack_info else None
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": show.message(record.getMessage()),
            **_subject_of(record),
        }
        for name, text in (("exception", exception), ("stack", stack)):
            if text:
                line[name] = show.message(text)
        return json.dumps(line, default=str)


def _subject_of(record: logging.LogRecord) -> Mapping[str, object]:
    """Return what a record is about: by its filter, if it has passed one, else what this thread works for."""
    stamped = {name: getattr(record, name) for name in _NAMES if hasattr(record, name)}
    return {name: value for name, value in stamped.items() if value is not None} if stamped else _subject.get()
