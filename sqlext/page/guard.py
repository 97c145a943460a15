"""What holds for every answer of the page: who may ask, and what a browser may do with it."""

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
    "referrer-policy": "no-referrer",  # a statement stands in the address of its trace
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_IMAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
"""A chart has its colours in a style of its own, and matters where it is opened alone."""
_HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:\[\]]*)(?::\d{1,5})?")


class Guard:
    """Wraps an application.

    Against DNS rebinding, a request must be for an IP address, for localhost, or for a name known to be this page's: what another
    site asks for through a name of its own, whatever that points to, is refused.

    Another site's page may link here, and a person may follow the link; it may not ask for anything by itself, under whatever
    name. Browsers say which is which, to localhost and over https (W3C's Fetch Metadata Request Headers); to an IP address over
    plain http they do not.

    Args:
        hosts: the names known, in lower case.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there is no other way in
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
            refusal = PlainTextResponse("This page is not served under that name.\n", 421)
            await refusal(scope, receive, guarded)
            return
        if not _is_own_or_a_link(Headers(scope=scope)):
            refusal = PlainTextResponse("Another site's page may link to this one, and ask for nothing itself.\n", 403)
            await refusal(scope, receive, guarded)
            return
        if scope["method"] not in ("GET", "HEAD"):
            refusal = PlainTextResponse("The page is for reading: GET and HEAD only.\n", 405, {"allow": "GET, HEAD"})
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


def _is_own_or_a_link(headers: Headers) -> bool:
    """Whether a request comes from this page, from a person who typed or followed its address, or from no browser at all."""
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is not None and origin.lower().partition("://")[2] != host.lower():
        return False
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return True
    followed = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "sec-fetch-user": "?1"}
    return all(headers.get(name) == value for name, value in followed.items())
