"""The rules for every answer of the page: which requests are allowed, and what a browser may do with the answer."""

from __future__ import annotations

import ipaddress
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # none for other sites; without any referrer, browsers send a form's origin as `null`
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_IMAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
"""For images, which may be opened on their own: a chart has its colours in an inline style."""
TRACE = "/trace"
"""The only path that takes a form."""
_HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:\[\]]*)(?::\d{1,5})?")


class Guard:
    """A wrapper of an application that refuses forbidden requests and sets the headers of all answers.

    Against DNS rebinding, a request must name an IP address, localhost, or a host name known to be this page's. A request
    through another site's own name is refused, whatever that name resolves to.

    Another site's page may link here, and a user may follow the link; the other page may not send requests itself, under any
    name. Browsers distinguish the two on localhost and over https (W3C's Fetch Metadata Request Headers). To an IP address over
    plain http they name the other site at most, and then a link is refused too. The other site may hide its name, so requests
    that cost work also need a token, which is in the page's own form.

    Args:
        hosts: the known host names, in lower case.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no other protocol is served
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                if headers.get("content-type", "").startswith("image/svg+xml"):
                    headers["content-security-policy"] = _IMAGE_POLICY
            await send(message)

        if not self._is_known(Headers(scope=scope).getlist("host")):
            refusal = PlainTextResponse("This page is not served under that host name.\n", 421)
            await refusal(scope, receive, guarded)
            return
        if not _is_own_or_a_link(scope["method"], Headers(scope=scope)):
            refusal = PlainTextResponse("Another site's page may link to this page, but may not send requests to it.\n", 403)
            await refusal(scope, receive, guarded)
            return
        methods = ("GET", "HEAD", "POST") if scope["path"] == TRACE else ("GET", "HEAD")
        if scope["method"] not in methods:
            allowed = ", ".join(methods)
            refusal = PlainTextResponse(f"This page is read-only: it takes {allowed} only.\n", 405, {"allow": allowed})
            await refusal(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _is_known(self, given: list[str]) -> bool:
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            return False
        name = found["name"].lower()
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.rstrip(".") in self._hosts
        return True


def _is_own_or_a_link(method: str, headers: Headers) -> bool:
    """Return whether a request comes from this page, from a user who typed or followed its address, or from no browser."""
    host = headers.get("host", "").lower()
    if any(origin.lower().partition("://")[2] != host for origin in headers.getlist("origin")):
        return False
    is_from_here = all(referer.lower().partition("://")[2].split("/")[0] == host for referer in headers.getlist("referer"))
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return is_from_here
    if method == "POST":
        return False
    followed = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "sec-fetch-user": "?1"}
    return all(headers.get(name) == value for name, value in followed.items())
