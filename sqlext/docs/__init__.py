"""The documentation: pages of Markdown that ship with the package, one a topic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from sqlext.errors import NotFoundError, did_you_mean

TOPICS = (
    "flows",
    "statements",
    "functions",
    "partitions",
    "keyed",
    "bounded",
    "kafka",
    "backlog",
    "options",
    "errors",
    "explain",
    "shell",
    "servers",
    "page",
    "dbt",
    "how-it-works",
    "operations",
    "foreachbatch",
    "flink",
    "benchmarks",
    "limits",
)
"""In the order to read them in; each is the name of a file."""
_MARK = re.compile(r"^<!-- [\w ]+ -->\n", re.MULTILINE)
"""Stands around what tests compare with the code; readers need not see it."""


@dataclass(frozen=True)
class Page:
    """What there is to read about a topic.

    Attributes:
        summary: one sentence.
        text: all of it as Markdown, title and summary too.
    """

    topic: str
    title: str
    summary: str
    text: str


def pages() -> list[Page]:
    """Read all pages, in their order."""
    return [page(topic) for topic in TOPICS]


@cache
def page(topic: str) -> Page:
    """Read the page of a topic.

    Raises:
        NotFoundError: there is no such topic; the message names those that there are.
    """
    if topic not in TOPICS:
        raise NotFoundError(f"There is no topic `{topic}`.{did_you_mean(topic, TOPICS)} The topics are {', '.join(TOPICS)}.")
    text = _MARK.sub("", (resources.files(__name__) / f"{topic}.md").read_text(encoding="utf-8"))
    title, _, summary = text.splitlines()[:3]
    return Page(topic, title.removeprefix("# "), summary, text)
