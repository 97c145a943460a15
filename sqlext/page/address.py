"""The address of the page: the command line's option, and the socket. Needs none of the extra's packages."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from importlib.util import find_spec

import click

from sqlext.errors import SetupError

_PACKAGES = ("starlette", "uvicorn", "jinja2", "markdown_it", "prometheus_client", "altair", "vl_convert")
_LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):)?(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Address:
    """The address at which the page is served.

    Attributes:
        host: a name or an IP address, without brackets.
        port: 0: any free one.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def listen(self) -> socket.socket:
        """Take the port; requests wait until a server accepts them.

        Raises:
            SetupError: the port is taken or not allowed, or the host is not this machine's.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise SetupError(f"The page cannot be served at {self.host}: {error.strerror or error}.") from None
        family, kind, protocol, _, place = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen(64)
        except OSError as error:
            made.close()
            if error.errno == errno.EADDRINUSE:
                raise SetupError(
                    f"The page's port {self.port} is taken on {self.host}. Give another port with --page, or 0 for any free one."
                ) from None
            raise SetupError(f"The page cannot be served at {self.host}:{self.port}: {error.strerror}.") from None
        return made


def parse(text: str) -> Address:
    """Parse an address such as `8080`, `0.0.0.0:8080` or `[::1]:8080`.

    Raises:
        ValueError: the text is not an address.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"expected [HOST:]PORT, such as 8080 or [::1]:8080, not {text!r}")
    return Address((found["host"] or _LOOPBACK).strip("[]"), int(found["port"]))


def check_packages() -> None:
    """Raise SetupError when the extra `page` is not installed."""
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise SetupError(f"The page needs the package {name}. Install it: pip install 'sqlext[page]'.")


def _read(context: click.Context, parameter: click.Parameter, value: str | None) -> Address | None:
    try:
        return None if value is None else parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


PAGE = click.option(
    "--page",
    metavar="[HOST:]PORT",
    callback=_read,
    help="Serve a read-only page that shows flows, jobs and how statements are rewritten. It asks for no password and listens on "
    "the loopback address unless HOST is given. Needs the extra `page`.",
)
"""The option of every command that hosts flows; its value is for `server.page_server`."""
