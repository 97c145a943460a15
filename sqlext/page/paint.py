"""A process that draws charts as SVG: `python -P paint.py`, one JSON request per line in, one JSON answer per line out.

vl-convert holds Python's global lock while it draws (a tenth of a second, three seconds the first time) and takes 150 MB; a host
of flows can afford neither. So this file imports nothing of sqlext, and altair only when there is something to draw.

A request is `{"kind": a key of _KINDS, "width": pixels, "title": text, "rows": [..]}`; an answer `{"svg": text}`, or
`{"error": text}`. Colours are CSS classes, so that a chart is readable in light and dark.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from xml.etree import ElementTree

Row = Mapping[str, Any]

_IDLE_SECONDS = 600
"""The idle time, in seconds, after which the process ends and frees its memory; the next request starts another one."""
_SVG = "http://www.w3.org/2000/svg"
_INK, _LINE, _MUTED, _STRONG = "#a10001", "#a10002", "#a10003", "#a10004"
"""Placeholders of CSS classes; nothing else in a chart has these colours."""
_PADDING = {"left": 14, "top": 4, "right": 10, "bottom": 4}  # the reader's font may be wider than the one measured
_CLASSES = {_INK: "ink", _LINE: "line", _MUTED: "muted", _STRONG: "strong"}
STYLE = (
    ".fill-ink{fill:#24292f}.fill-muted{fill:#9aa5b1}.fill-strong{fill:#0b6bcb}"
    ".stroke-line{stroke:#d5dae0}.stroke-ink{stroke:#24292f}.stroke-muted{stroke:#9aa5b1}.stroke-strong{stroke:#0b6bcb}"
    "@media(prefers-color-scheme:dark){.fill-ink{fill:#d7dde4}.fill-muted{fill:#6f7b88}.fill-strong{fill:#62aef5}"
    ".stroke-line{stroke:#3a424b}.stroke-ink{stroke:#d7dde4}.stroke-muted{stroke:#6f7b88}.stroke-strong{stroke:#62aef5}}"
)
"""The style of every chart. An image with it follows the reader's colour scheme."""


def svg_of(request: Row) -> str:
    """Draw one chart.

    Args:
        request: see the module's docstring.

    Returns:
        A whole SVG document, without scripts, links or inline style attributes.
    """
    import vl_convert

    chart = _KINDS[request["kind"]](request["rows"], int(request["width"]))
    return _finished(vl_convert.vegalite_to_svg(chart.to_dict()), str(request["title"]))


def _flushes(rows: Sequence[Row], width: int) -> Any:
    """Draw rows, violations, seconds and micro-batches of each flush, in panels; each row has `version` and the known figures."""
    import altair as alt

    plot = width - 60
    size = max(2, min(28, int(0.85 * plot / len(rows))))
    versions = [row["version"] for row in rows]
    names = {"buffered": "rows buffered", "changed": "rows changed in the table"}
    legend = alt.Legend(title=None, orient="top", direction="vertical")
    what = alt.Color("what:N", legend=legend, scale=alt.Scale(domain=list(names.values()), range=[_MUTED, _STRONG]))

    def bars(key: str, size: float, color: Any, step: float = 0, is_last: bool = False) -> Any:
        values = [{"version": row["version"], key: row[key], "what": names.get(key, "")} for row in rows if row[key] is not None]
        below = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=6, title="table version")
        x = alt.X("version:O", axis=below if is_last else None, scale=alt.Scale(domain=versions))
        y = alt.Y(f"{key}:Q", title=None, axis=alt.Axis(tickCount=4, tickMinStep=step, format="~s"), stack=None)
        return alt.Chart({"values": values}).mark_bar(size=size).encode(x=x, y=y, color=color)

    one = alt.value(_STRONG)
    counts = bars("buffered", size, what, 1) + bars("changed", max(1, size // 2), what, 1)  # the second within the first
    panels = [counts.properties(title="Rows")]
    if any(row["violations"] is not None for row in rows):
        panels.append(bars("violations", size, one, 1).properties(title="Violations of constraints"))
    if any(row["seconds"] is not None for row in rows):
        panels.append(bars("seconds", size, one).properties(title="Seconds"))
    panels.append(bars("micro_batches", size, one, 1, is_last=True).properties(title="Micro-batches"))
    return _configured(alt.vconcat(*(panel.properties(width=plot, height=90) for panel in panels), spacing=12))


def _refreshes(rows: Sequence[Row], width: int) -> Any:
    """Draw the seconds of each refresh over time; each row has `at`, in local time, `seconds` and `is_full`."""
    import altair as alt

    kinds = ["incremental", "in full"]
    values = [{**row, "what": kinds[row["is_full"]]} for row in rows]
    times = [datetime.fromisoformat(row["at"]) for row in rows]
    span = max(times) - min(times)
    margin = max(span / 30, timedelta(seconds=30))
    domain = [(min(times) - margin).isoformat(), (max(times) + margin).isoformat()]
    axis = alt.Axis(format=_time_format(span), tickCount=max(2, width // 120), labelOverlap="greedy", labelSeparation=6)
    x = alt.X("at:T", title="committed at", axis=axis, scale=alt.Scale(domain=domain))
    y = alt.Y("seconds:Q", title=None, axis=alt.Axis(tickCount=4, format="~s"), scale=alt.Scale(zero=True))
    legend = alt.Legend(title=None, orient="top", direction="vertical")
    color = alt.Color("what:N", legend=legend, scale=alt.Scale(domain=kinds, range=[_STRONG, _INK]))
    shape = alt.Shape("what:N", legend=legend, scale=alt.Scale(domain=kinds, range=["circle", "diamond"]))
    points = alt.Chart({"values": values}).mark_point(filled=True, opacity=1, size=70).encode(x=x, y=y, color=color, shape=shape)
    return _configured(points.properties(title="Seconds", width=width - 60, height=160))


def _time_format(span: timedelta) -> str:
    """Return the format of the times on an axis, as D3 has it."""
    if span < timedelta(minutes=5):
        return "%H:%M:%S"
    if span < timedelta(hours=12):
        return "%H:%M"
    return "%m-%d %H:%M" if span < timedelta(days=4) else "%Y-%m-%d"


def _timeline(rows: Sequence[Row], width: int) -> Any:
    """Draw when each vertex ran; each row has `vertex`, `start` and `end` in seconds, `parts`, `is_skipped`."""
    import altair as alt

    kinds = ["skipped by a later driver", "run by the last driver"]
    values = [{**row, "what": kinds[not row["is_skipped"]]} for row in rows]
    order = list(dict.fromkeys(row["vertex"] for row in rows))
    labels = [
        {"vertex": vertex, "start": 0, "label": _label([row for row in rows if row["vertex"] == vertex])} for vertex in order
    ]
    y = alt.Y("vertex:N", sort=order, title=None, axis=alt.Axis(labelLimit=width // 3))
    x = alt.X("start:Q", title="seconds of drivers' work", axis=alt.Axis(tickCount=6))
    legend = alt.Legend(title=None, orient="top", direction="vertical")
    color = alt.Color("what:N", legend=legend, scale=alt.Scale(domain=kinds, range=[_MUTED, _STRONG]))
    bars = alt.Chart({"values": values}).mark_bar(height=12, minBandSize=2).encode(y=y, x=x, x2="end:Q", color=color)
    mark = alt.Chart({"values": labels}).mark_text(align="left", dx=3, dy=-12, fontSize=10, color=_INK)
    texts = mark.encode(y=y, x=x, text="label:N")
    return _configured((bars + texts).properties(width=width - width // 3 - 30, height=max(36 * len(order), 40)))


def _label(spans: Sequence[Row]) -> str:
    """Describe how many of a vertex's parts were skipped and run."""
    skipped = sum(span["parts"] for span in spans if span["is_skipped"])
    run = sum(span["parts"] for span in spans if not span["is_skipped"])
    said = [f"{skipped} skipped"] if skipped else []
    said += [f"{run} run"] if run else []
    return f"parts: {', '.join(said)}"


_KINDS: Mapping[str, Callable[[Sequence[Row], int], Any]] = {"flushes": _flushes, "refreshes": _refreshes, "timeline": _timeline}


def _configured(chart: Any) -> Any:
    axis = {"labelColor": _INK, "titleColor": _INK, "gridColor": _LINE, "domainColor": _LINE, "tickColor": _LINE}
    return (
        chart.configure(background="transparent", font="Arial, Liberation Sans, sans-serif", padding=_PADDING)
        .configure_axis(**axis, labelFontSize=11, titleFontSize=11, titleFontWeight="normal")
        .configure_title(color=_INK, anchor="start", fontSize=12, fontWeight="normal")
        .configure_legend(labelColor=_INK, labelFontSize=11, labelLimit=300)
        .configure_view(stroke="transparent")
    )


def _finished(svg: str, title: str) -> str:
    """Add a title, and replace colours by CSS classes."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg)  # noqa: S314  # vl-convert has just written it
    for node in root.iter():
        node.attrib.pop("style", None)
        for kind in ("fill", "stroke"):
            if (name := _CLASSES.get(node.get(kind, ""))) is not None:
                del node.attrib[kind]
                node.set("class", f"{node.get('class', '')} {kind}-{name}".strip())
    root.set("role", "img")
    for at, (tag, text) in enumerate((("title", title), ("style", STYLE))):
        node = ElementTree.Element(f"{{{_SVG}}}{tag}")
        node.text = text
        root.insert(at, node)
    return ElementTree.tostring(root, encoding="unicode")


def main() -> None:
    """Answer requests until standard input ends, as it does when the requesting process ends, or until the idle time is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the requesting process
    signal.alarm(_IDLE_SECONDS)
    for line in sys.stdin:
        signal.alarm(0)
        try:
            answer = {"svg": svg_of(json.loads(line))}
        except Exception as error:  # noqa: BLE001  # the next chart may succeed
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        signal.alarm(_IDLE_SECONDS)


if __name__ == "__main__":
    main()
