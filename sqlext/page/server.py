"""The server of the page, on a thread of the host."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from sqlext.extension.session import host_of
from sqlext.page.address import Address, check_packages

logger = logging.getLogger(__name__)

_STOP_SECONDS = 5.0
_MOST_REQUEST_BYTES = 256 * 1024
"""The largest head of a request, which may contain a trace's statement, escaped."""
_MOST_CONNECTIONS = 64


@contextmanager
def page_server(address: Address | None, note: Callable[[str], None] = logger.info) -> Iterator[PageServer]:
    """Serve the page at an address, for a `with` block: its port is taken at once, and it answers within `showing`.

    with page_server(address, printer.note) as page:  # before Spark starts: a taken port is reported at once
        spark = ..
        with page.showing(spark):
            ..

    Args:
        address: the address; None: no page is served.
        note: called with a line that gives the page's URL.

    Raises:
        SetupError: the port is taken, or the extra `page` is not installed.
    """
    server = PageServer(address, note)
    try:
        yield server
    finally:
        server.close()


class PageServer:
    """The page's socket and server; see `page_server`. Only one thread uses it.

    Attributes:
        url: the page's URL; empty: there is no page.
    """

    def __init__(self, address: Address | None, note: Callable[[str], None]) -> None:
        self._address = address
        self._note = note
        self._socket: socket.socket | None = None
        self.url = ""
        if address is not None:
            check_packages()
            self._socket = address.listen()
            self.url = replace(address, port=self._socket.getsockname()[1]).url

    @contextmanager
    def showing(self, spark: SparkSession) -> Iterator[None]:
        """Answer requests, for a `with` block; Spark must not end within it.

        Args:
            spark: a session of the application whose flows, views and jobs are shown.
        """
        if self._address is None or self._socket is None:
            yield
            return
        serving = _PageService(self._socket, self._address, spark)
        others = "" if self._address.is_loopback else "; anybody who reaches this address can read it"
        self._note(f"the page is at {self.url}{others}")
        try:
            yield
        finally:
            serving.close()

    def close(self) -> None:
        """Release the port."""
        if self._socket is not None:
            self._socket.close()


class _PageService:
    """A running server: its thread, the threads that render pages, and the processes that draw and trace."""

    def __init__(self, listening: socket.socket, address: Address, spark: SparkSession) -> None:
        import uvicorn

        from sqlext.page.app import PageApp
        from sqlext.page.collect import Collector
        from sqlext.page.painter import Painter

        self._painter = Painter()
        self._collector = Collector(spark, host_of(spark))
        self._app = PageApp(self._collector, self._painter.svg, names_of(address))
        config = uvicorn.Config(
            self._app.asgi,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,  # it would contain the statements of traces
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=_MOST_REQUEST_BYTES,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, name="sqlext-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._server.force_exit = True
        self._app.close()
        self._painter.close()
        self._collector.close()
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            logger.error("the page's thread did not end within %.0f s", 2 * _STOP_SECONDS)


def names_of(address: Address) -> frozenset[str]:
    """Return the host names, besides localhost, under which a page may be requested; none if only this machine reaches it."""
    if address.is_loopback:
        return frozenset()
    return frozenset(name.lower() for name in (address.host, socket.gethostname(), socket.getfqdn()))
