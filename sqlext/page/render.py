"""Snapshots as HTML. The template engine escapes every value; only templates write HTML."""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sqlext import docs
from sqlext.page.documents import html_of
from sqlext.page.snapshot import FlowDetail, JobDetail, OperatorView, Overview, Trace, VertexView, ViewDetail
from sqlext.plan.job_graph import Firing

Detail = FlowDetail | ViewDetail | JobDetail

REFRESH_SECONDS = 5
"""The refresh interval that a reader may choose."""
_TONES = {
    "RUNNING": "good",
    "FINISHED": "good",
    "SCHEDULED": "good",
    "STARTING": "wait",
    "BOUNDED STAGES": "wait",
    "RESERVED": "wait",
    "REFRESHING": "wait",
    "LOST": "bad",
    "FAILED": "bad",
    "RETRYING": "bad",
    "FENCED": "bad",
}
_KINDS: Mapping[type[Detail], str] = {FlowDetail: "flow", ViewDetail: "view", JobDetail: "job"}
"""The name of each kind of detail in its template and, in the plural, in its path."""
_WORD = re.compile(r"\w+|\s+|.", re.DOTALL)
_MOST_COMPARISONS = 250_000
"""The product of two texts' numbers of words, without common beginnings and ends, beyond which comparing them takes seconds."""


class Chart(NamedTuple):
    """The URLs of a chart, one for each width of the page: paths, or `data:` URIs that contain the image."""

    wide: str
    narrow: str


class Changes(NamedTuple):
    """Two texts in pieces, each with whether it is in this text only."""

    before: list[tuple[bool, str]]
    after: list[tuple[bool, str]]


def data_uri(svg: str) -> str:
    """Return the URI of an image that is part of the page."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def asset(name: str) -> str:
    """Read a file that the page serves as it is, such as `style.css` and `alerts.yml`."""
    return (resources.files("sqlext.page") / "templates" / name).read_text(encoding="utf-8")


class Renderer:
    """The renderer of all pages. Any thread may call any method; it keeps nothing but the templates."""

    def __init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader("sqlext.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "local": lambda at: f"{at.astimezone():%Y-%m-%d %H:%M:%S}",
            "zone": lambda at: f"{at.astimezone():%Z}",
            "iso": lambda text: f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}" if text else "not known",
            "number": number,
            "ratio": lambda value: "none yet" if value is None else f"{value:.1f}",
            "seconds": lambda value: "not known" if value is None else f"{value:,.1f} s",
            "duration": duration,
            "age": lambda since, at: duration(max(at - since, timedelta())),
            "tone": lambda status: _TONES.get(status, "quiet"),
            "short": lambda job: job[:9],
            "by_id": _by_id,
            "changes": changes,
            "pointed": pointed,
            "state": state_of,
        }
        self.style = asset("style.css")
        self._inline_style = Markup(self.style)  # noqa: S704  # a file of this package, without user data

    def overview(self, overview: Overview, refresh: int = 0, is_saved: bool = False) -> str:
        """Render the overview of flows, views and jobs."""
        values = {"overview": overview, "refresh": refresh, "path": "/", **_seen(overview)}
        return self._page("overview.html", "overview", is_saved, **values)

    def detail(self, overview: Overview, detail: Detail, charts: Chart | None, refresh: int = 0, is_saved: bool = False) -> str:
        """Render the page of a flow, view or job; `overview` has the time and place of the snapshot."""
        kind = _KINDS[type(detail)]
        values = {kind: detail, "charts": charts, "refresh": refresh, "path": f"/{kind}s/{detail.summary.id}"}
        return self._page(f"{kind}.html", "", is_saved, **values, **_seen(overview))

    def trace(self, token: str, text: str = "", trace: Trace | None = None) -> str:
        """Render the trace form, and the trace of its statement if there is one.

        Args:
            token: the token that the form sends.
            text: the statement in the form.
        """
        return self._page("trace.html", "trace", token=token, text=text, trace=trace)

    def documents(self) -> str:
        """Render the list of the documentation's topics."""
        return self._page("docs.html", "docs", pages=docs.pages())

    def document(self, topic: str) -> str:
        """Render the page of a topic.

        Raises:
            NotFoundError: there is no such topic.
        """
        return self._page("document.html", "", title=docs.page(topic).title, html=html_of(topic))

    def error(self, heading: str, message: str) -> str:
        """Render an error page."""
        return self._page("error.html", "", heading=heading, message=message)

    def _page(self, template: str, here: str, is_saved: bool = False, **values: object) -> str:
        known: dict[str, object] = {
            "refresh": 0,
            "refreshable": False,
            "path": "/",
            "taken_at": None,
            "place": "",
            "is_live": True,
        }
        known |= {"here": here, "is_saved": is_saved, "policy": self._policy, "style": self._inline_style}
        known |= values
        known["refreshable"] = "refresh" in values and not is_saved
        return self._templates.get_template(template).render(known)

    @property
    def _policy(self) -> str:
        """The content policy of a saved page: it loads nothing, and has only its own style and charts."""
        style = base64.b64encode(hashlib.sha256(self.style.encode()).digest()).decode()
        return f"default-src 'none'; img-src data:; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"


def _seen(overview: Overview) -> dict[str, Any]:
    return {"taken_at": overview.taken_at, "place": overview.place, "is_live": overview.is_live}


def _by_id(operators: Iterable[OperatorView]) -> Mapping[int, OperatorView]:
    return {operator.id: operator for operator in operators}


def number(value: int | None) -> str:
    """Format a number: 1234567 as 1,234,567."""
    return "not known" if value is None else f"{value:,}"


def duration(span: timedelta | None) -> str:
    """Format a span of time for readers.

    >>> duration(timedelta(seconds=75))
    '1 min 15 s'
    """
    if span is None:
        return "none"
    seconds = span.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    said = [f"{count} {unit}" for count, unit in units if count]
    return " ".join(said[:2])


def state_of(vertex: VertexView) -> str:
    """Return the state of a job vertex: waits, runs, skipped or finished."""
    if vertex.parts is None:
        return "waits"
    if vertex.done < vertex.parts:
        return "runs"
    return "skipped" if vertex.skipped == vertex.parts else "finished"


def pointed(trace: Trace) -> str:
    """Return the line of a statement that has the error, with a mark below the place."""
    lines = trace.text.split("\n")
    if not 0 < trace.line <= len(lines):
        return trace.text
    line = lines[trace.line - 1].rstrip("\r")
    return line + "\n" + "".join("\t" if c == "\t" else " " for c in line[: trace.column - 1]) + "^"


def changes(firing: Firing) -> Changes:
    """Compare a query before and after a rule, word by word."""
    before, after = _WORD.findall(firing.before), _WORD.findall(firing.after)
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    left = [(False, "".join(before[:head]))]
    right = [(False, "".join(after[:head]))]
    for kind, a, b, c, d in _steps(old, new):
        left += [(kind != "equal", "".join(old[a:b]))] if a < b else []
        right += [(kind != "equal", "".join(new[c:d]))] if c < d else []
    left.append((False, "".join(before[len(before) - tail :])))
    right.append((False, "".join(after[len(after) - tail :])))
    return Changes([piece for piece in left if piece[1]], [piece for piece in right if piece[1]])


def _steps(old: list[str], new: list[str]) -> Sequence[tuple[str, int, int, int, int]]:
    """Return the steps that turn one list of words into the other, as `difflib` codes them."""
    if len(old) * len(new) > _MOST_COMPARISONS:
        return [("replace", 0, len(old), 0, len(new))]
    return difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _common(one: list[str], other: list[str]) -> int:
    """Return the number of words that two lists have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
