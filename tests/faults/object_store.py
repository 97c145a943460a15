"""An S3 server on this machine, and a proxy before it that drops, delays and refuses requests, or loses their answers."""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support import eventually, free_port

BUCKET = "lake"
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


class ObjectStore:
    """The server, in a `with` block; it keeps objects in its memory, and holds S3's conditional writes.

    Args:
        folder: for its log.
        faults: the share of requests that something happens to, from 0 to 1.

    Attributes:
        seen: how many requests met each fault.
        latency: the seconds that each request takes at least.
        ignores_conditions: whether it writes over objects where it should refuse, as stores without conditional writes do.
    """

    def __init__(self, folder: Path, faults: float = 0.0) -> None:
        self._log = folder / "s3.txt"
        self.server_port = free_port()
        self.faults = faults
        self.ignores_conditions = False
        self.latency = 0.0
        self.seen: Counter[str] = Counter()
        self._random = random.Random(1)
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._proxy.serve_forever, name="s3-proxy", daemon=True)

    @property
    def endpoint(self) -> str:
        """Where clients connect: the proxy."""
        return f"http://127.0.0.1:{self._proxy.server_port}"

    @property
    def settings(self) -> list[str]:
        """Arguments of the command line that make Hadoop use it."""
        conf = {
            "spark.sqlext.connectors": "s3",
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "key",
            "spark.hadoop.fs.s3a.secret.key": "secret",
            "spark.hadoop.fs.s3a.retry.interval": "50ms",
            "spark.hadoop.fs.s3a.connection.timeout": "5s",
        }
        return [each for key, value in conf.items() for each in ("--conf", f"{key}={value}")]

    @property
    def options(self) -> dict[str, str]:
        """Options of deltalake, which speaks with the server itself."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_CONDITIONAL_PUT": "etag",
        }

    def has_answered(self, requests: int) -> bool:
        """Whether there have been so many requests."""
        return self.seen.total() >= requests

    def __enter__(self) -> ObjectStore:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.server_port)]
        with self._log.open("w") as file:
            self._server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        eventually(self.put, 60, self._log.read_text)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._server.kill()
        self._server.wait()

    def put(self, path: str = "", text: str = "") -> bool:
        """Put an object, or make the bucket, past the proxy; return whether the server has answered that it is there."""
        address = f"http://127.0.0.1:{self.server_port}/{BUCKET}/{path}".removesuffix("/")
        kind = {"Content-Type": "text/plain"}  # else the server takes the text for a form
        request = urllib.request.Request(address, text.encode(), kind, method="PUT")
        with suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == http.HTTPStatus.OK)
        return False

    def _fault(self) -> str:
        """What happens to the next request."""
        kinds = ("refused", "delayed", "dropped", "answer lost")
        found = self._random.choice(kinds) if self._random.random() < self.faults else ""
        self.seen[found] += 1
        return found

    def _handler(store) -> type[BaseHTTPRequestHandler]:  # noqa: N805  # the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def handle_one_request(self) -> None:
                with suppress(ConnectionError):
                    super().handle_one_request()

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fault = store._fault()
                if fault == "dropped":
                    self.close_connection = True
                    return
                if fault == "refused":
                    self._answer(503, [("Content-Type", "application/xml")], b"<Error><Code>SlowDown</Code></Error>")
                    return
                time.sleep(store.latency + (0.3 if fault == "delayed" else 0.0))
                status, headers, text = store._ask(self.command, self.path, dict(self.headers.items()), body)
                if fault == "answer lost":
                    self.close_connection = True
                    return
                self._answer(status, headers, text)

            def _answer(self, status: int, headers: list[tuple[str, str]], text: bytes) -> None:
                self.send_response_only(status)
                length = next((value for name, value in headers if name.lower() == "content-length"), str(len(text)))
                for name, value in headers:
                    if name.lower() not in _HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", length if self.command == "HEAD" else str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815  # names of the base class

        return Handler

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        left_out = _HOP_BY_HOP | ({"if-none-match"} if self.ignores_conditions else set())
        kept = {name: value for name, value in headers.items() if name.lower() not in left_out}
        connection.request(method, path, body=body or None, headers={**kept, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), text
