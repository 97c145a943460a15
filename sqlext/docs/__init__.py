"""The documentation: pages of Markdown that ship with the package, one per topic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from sqlext.errors import NotFoundError, did_you_mean

TOPICS = (
    "flows",
    "statements",
    "materialized-views",
    "chains",
    "changes",
    "constraints",
    "savepoints",
    "functions",
    "partitions",
    "keyed",
    "bounded",
    "files",
    "kafka",
    "backlog",
    "options",
    "errors",
    "explain",
    "shell",
    "servers",
    "cluster",
    "page",
    "dbt",
    "how-it-works",
    "running",
    "operations",
    "foreachbatch",
    "flink",
    "benchmarks",
    "limits",
)
"""The topics, in reading order; each is the name of a file."""
_MARK = re.compile(r"^<!-- [\w ]+ -->\n", re.MULTILINE)
"""A mark around text that tests compare with the code; it is not shown to readers."""


@dataclass(frozen=True)
class Page:
    """The page of a topic.

    Attributes:
        topic: the name of the topic.
        title: the title of the page.
        summary: one sentence on the topic.
        text: the whole page as Markdown, including title and summary.
    """

    topic: str
    title: str
    summary: str
    text: str


def pages() -> list[Page]:
    """Read all pages, in the order of `TOPICS`."""
    return [page(topic) for topic in TOPICS]


@cache
def page(topic: str) -> Page:
    """Read the page of a topic.

    Raises:
        NotFoundError: there is no such topic; the message lists the topics.
    """
    if topic not in TOPICS:
        raise NotFoundError(f"There is no topic `{topic}`.{did_you_mean(topic, TOPICS)} The topics are {', '.join(TOPICS)}.")
    text = _MARK.sub("", (resources.files(__name__) / f"{topic}.md").read_text(encoding="utf-8"))
    title, _, summary = text.splitlines()[:3]
    return Page(topic, title.removeprefix("# "), summary, text)
