"""The documentation as HTML: headings with anchors, links to the page's own paths, tables that scroll."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from sqlext import docs

DOCS = "/docs"
"""The path of the list of topics; the pages of topics are below it."""
_OF_A_TOPIC = re.compile(r"(?P<topic>[\w-]+)\.md(?P<place>#[\w-]+)?")


@cache
def html_of(topic: str) -> Markup:
    """Return the page of a topic as HTML. Tags in its text are shown as text.

    Raises:
        NotFoundError: there is no such topic.
    """
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = list(_fitted(markdown.parse(docs.page(topic).text)))
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))  # noqa: S704  # this package's own text, escaped


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub names it.

    >>> slug("What clients can do: `reflect()`")
    'what-clients-can-do-reflect'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _fitted(tokens: Sequence[Token]) -> Iterator[Token]:
    heading = ""
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[at + 1].content
            token.attrSet("id", slug(heading))
        if token.type == "table_open":
            yield _html(f'<div class="wide" role="region" aria-label="Table of {escape(heading)}" tabindex="0">')
        if token.children:
            token.children = list(_linked(token.children))
        yield token
        if token.type == "table_close":
            yield _html("</div>")


def _html(content: str) -> Token:
    return Token("html_block", "", 0, content=content)


def _linked(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens of a paragraph; links to files that do not ship with the package become plain text."""
    is_left_out = False
    for token in tokens:
        if token.type == "link_open":
            target = str(token.attrGet("href"))
            if found := _OF_A_TOPIC.fullmatch(target):
                token.attrSet("href", f"{DOCS}/{found['topic']}{found['place'] or ''}")
            is_left_out = not found and not target.startswith(("#", "https://"))
        if not (is_left_out and token.type in ("link_open", "link_close")):
            yield token
