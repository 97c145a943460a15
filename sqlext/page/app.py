"""The page's web application: read-only except for the trace form; its own threads take the snapshots."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from sqlext.errors import NotFoundError, SetupError, SqlextError, WaitTimeoutError
from sqlext.page.documents import DOCS
from sqlext.page.guard import TRACE, Guard
from sqlext.page.metrics import ProcessFigures, exposition
from sqlext.page.painter import WIDTHS, flushes_chart, refreshes_chart, timeline_chart
from sqlext.page.render import REFRESH_SECONDS, Chart, Detail, Renderer, asset, data_uri
from sqlext.page.snapshot import FlowDetail, JobDetail, Overview, Trace, ViewDetail

logger = logging.getLogger(__name__)
T = TypeVar("T")

_SVG = "image/svg+xml"
_MOST_BYTES = 250_000
"""The largest form: a statement of `trace.MOST_CHARACTERS`, all escaped, and more, so that a refusal can give the reason."""


class Source(Protocol):
    """A source of snapshots, such as `Collector`."""

    def overview(self) -> Overview: ...
    def flow(self, flow_id: str) -> FlowDetail: ...
    def view(self, view_id: str) -> ViewDetail: ...
    def job(self, job_id: str) -> JobDetail: ...
    def trace(self, text: str) -> Trace: ...
    def process(self) -> ProcessFigures: ...


Draw = Callable[[Mapping[str, Any], int], str]
"""Draws a chart of a given width; see `Painter.svg`."""


class PageApp:
    """The routes of the page and their answers.

    Args:
        source: called on one thread, so that readers never use more than one of the process's; for traces, which may take
            seconds, on a second one.
        draw: called on a third thread.
        hosts: the host names, besides IP addresses and localhost, under which the page may be requested.

    Attributes:
        asgi: the application that a server runs.
    """

    def __init__(self, source: Source, draw: Draw, hosts: frozenset[str] = frozenset()) -> None:
        self._source = source
        self._draw = draw
        self._renderer = Renderer()
        self._looks = ThreadPoolExecutor(1, thread_name_prefix="sqlext-page-look")
        self._traces = ThreadPoolExecutor(1, thread_name_prefix="sqlext-page-trace")
        self._draws = ThreadPoolExecutor(1, thread_name_prefix="sqlext-page-draw")
        self._token = secrets.token_urlsafe()  # it is in the form, which no other site can read
        get = ["GET"]  # includes HEAD
        routes = [
            Route("/", self._overview, methods=get),
            *self._routes("/flows", source.flow),
            *self._routes("/views", source.view),
            *self._routes("/jobs", source.job),
            Route(TRACE, self._trace_form, methods=get),
            Route(TRACE, self._trace, methods=["POST"]),
            Route(DOCS, self._documents, methods=get),
            Route(f"{DOCS}/{{topic}}", self._document, methods=get),
            Route("/metrics", self._metrics, methods=get),
            Route("/health", self._health, methods=get),
            Route("/ready", self._ready, methods=get),
            Route("/style.css", _constant(self._renderer.style, "text/css"), methods=get),
            Route("/alerts.yml", _constant(asset("alerts.yml"), "application/yaml"), methods=get),
            Route("/grafana.json", _constant(asset("grafana.json"), "application/json"), methods=get),
            Route("/icon.svg", _constant(asset("icon.svg"), _SVG), methods=get),
        ]
        failures = {HTTPException: self._refused, Exception: self._failed}
        self.asgi = Guard(Starlette(routes=routes, exception_handlers=failures), hosts)

    def close(self) -> None:
        """End the threads, and drop their work."""
        for pool in (self._looks, self._traces, self._draws):
            pool.shutdown(wait=False, cancel_futures=True)

    def _routes(self, folder: str, get: Callable[[str], Detail]) -> list[Route]:
        """Return the routes of the flows, the views or the jobs: their pages, the charts of these, and the reports."""
        answers = {"": self._detail, "/chart-{width}.svg": self._chart, "/report.html": self._report}
        return [Route(f"{folder}/{{id}}{end}", partial(answer, get), methods=["GET"]) for end, answer in answers.items()]

    # Pages.

    async def _overview(self, request: Request) -> Response:
        overview = await self._look(self._source.overview)
        return HTMLResponse(self._renderer.overview(overview, _refresh(request)))

    async def _detail(self, get: Callable[[str], Detail], request: Request) -> Response:
        def made() -> str:
            overview, detail = self._source.overview(), get(request.path_params["id"])
            path = request.url.path.rstrip("/")
            charts = Chart(f"{path}/chart-wide.svg", f"{path}/chart-narrow.svg") if has_chart(detail) else None
            return self._renderer.detail(overview, detail, charts, _refresh(request))

        return HTMLResponse(await self._look(made))

    async def _trace_form(self, request: Request) -> Response:
        """Return the form, which may hold a statement. It is not traced here: any site can link to this path."""
        return HTMLResponse(self._renderer.trace(self._token, request.query_params.get("sql", "")))

    async def _trace(self, request: Request) -> Response:
        form = await _form(request)
        if not secrets.compare_digest(form.get("token", "").encode(), self._token.encode()):
            raise HTTPException(403)
        sql = form.get("sql", "")
        if not sql.strip():
            return HTMLResponse(self._renderer.trace(self._token))
        return HTMLResponse(await self._on(self._traces, lambda: self._renderer.trace(self._token, sql, self._source.trace(sql))))

    async def _documents(self, request: Request) -> Response:
        return HTMLResponse(self._renderer.documents())

    async def _document(self, request: Request) -> Response:
        try:
            return HTMLResponse(self._renderer.document(request.path_params["topic"]))
        except NotFoundError as error:
            raise HTTPException(404, error.message) from None

    # Charts, which are requested after the page that shows them.

    async def _chart(self, get: Callable[[str], Detail], request: Request) -> Response:
        width = WIDTHS.get(request.path_params["width"])
        detail = await self._look(lambda: get(request.path_params["id"]))
        if width is None or not has_chart(detail):
            raise HTTPException(404)
        asked = chart_of(detail)
        etag = f'"{hashlib.sha256(f"{asked}{width}".encode()).hexdigest()[:32]}"'
        headers = {"etag": etag, "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(await self._on(self._draws, lambda: self._draw(asked, width)), media_type=_SVG, headers=headers)

    # Reports: a page as one file.

    async def _report(self, get: Callable[[str], Detail], request: Request) -> Response:
        overview = await self._look(self._source.overview)
        detail = await self._look(lambda: get(request.path_params["id"]))
        html = await self._on(self._draws, lambda: saved(self._renderer, overview, detail, self._draw))
        return HTMLResponse(html, headers={"content-disposition": f'attachment; filename="{detail.summary.id}.html"'})

    # For monitors: what they need is in the status code and the text.

    async def _metrics(self, request: Request) -> Response:
        overview, process = await self._look(lambda: (self._source.overview(), self._source.process()))
        text, content_type = exposition(overview, process, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def _health(self, request: Request) -> Response:
        """Return 200 if Spark lives; 503 else."""
        await self._look(self._source.process)
        return PlainTextResponse("healthy\n")

    async def _ready(self, request: Request) -> Response:
        """Return 200 if statements are answered and every flow that should run has started; 503 else."""
        overview = await self._look(self._source.overview)
        starting = [each.full_name or each.name for each in overview.flows if each.status == "STARTING"]
        text = f"starting: {', '.join(starting)}\n" if starting else "ready\n"
        return PlainTextResponse(text, 503 if starting else 200)

    # Answers.

    async def _look(self, action: Callable[[], T]) -> T:
        return await self._on(self._looks, action)

    async def _on(self, pool: ThreadPoolExecutor, action: Callable[[], T]) -> T:
        """Return the result of `action`, run on a thread of a pool; expected errors are reported without a traceback.

        Raises:
            HTTPException: 404 if something does not exist, 503 if the answer is not available now.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, action)
        except NotFoundError as error:
            raise HTTPException(404, error.message) from None
        except (SetupError, WaitTimeoutError) as error:
            raise HTTPException(503, error.message) from None
        except (SqlextError, PySparkException, Py4JError, OSError, RuntimeError) as error:
            logger.warning("a page could not be rendered: %s: %s", type(error).__name__, error)
            raise HTTPException(503, "The process cannot answer now: Spark is stopping or has ended.") from None

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        heading, message = _REFUSALS.get(error.status_code, (f"Error {error.status_code}", error.detail))
        if error.status_code in (404, 503) and error.detail not in ("Not Found", "Service Unavailable"):
            message = error.detail
        return HTMLResponse(self._renderer.error(heading, message), error.status_code, headers=error.headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        logger.error("a page failed", exc_info=error)
        return HTMLResponse(self._renderer.error("Error", "The page failed. See the log of the process."), 500)


_REFUSALS = {
    403: (
        "Refused",
        "This form is from another process than the page is now. Open “Trace a statement” and send it from there.",
    ),
    413: ("Refused", "The form is too large."),
    404: ("Not found", "There is no such page."),
    503: ("Not now", "The process cannot answer now."),
}


def has_chart(detail: Detail) -> bool:
    """Return whether there is something to draw."""
    match detail:
        case FlowDetail():
            return bool(detail.flushes)
        case ViewDetail():
            return bool(detail.refreshes)
        case JobDetail():
            return bool(detail.spans)


def chart_of(detail: Detail) -> dict[str, Any]:
    """Return the request for a page's chart."""
    match detail:
        case FlowDetail():
            return flushes_chart(detail.summary.name, detail.flushes)
        case ViewDetail():
            return refreshes_chart(detail.summary.name, detail.refreshes)
        case JobDetail():
            return timeline_chart(detail)


def saved(renderer: Renderer, overview: Overview, detail: Detail, draw: Draw) -> str:
    """Render a page as one file that contains its charts.

    Raises:
        SetupError, WaitTimeoutError: a chart cannot be drawn.
    """
    charts = None
    if has_chart(detail):
        asked = chart_of(detail)
        charts = Chart(*(data_uri(draw(asked, WIDTHS[name])) for name in ("wide", "narrow")))
    return renderer.detail(overview, detail, charts, is_saved=True)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        HTTPException: 413 if the form is too large.
    """
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > _MOST_BYTES:
            raise HTTPException(413)
    fields = parse_qs(found.decode("ascii", "replace"), max_num_fields=10)
    return {name: values[0].replace("\r\n", "\n") for name, values in fields.items()}


def _refresh(request: Request) -> int:
    """Return the seconds after which the page refreshes itself, if the reader asked for that; else 0."""
    return REFRESH_SECONDS if request.query_params.get("refresh") == str(REFRESH_SECONDS) else 0


def _constant(text: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(text, media_type=kind, headers={"cache-control": "private, max-age=3600"})

    return answer
