"""Where the page is served: the option of the command line, and the socket. Needs none of the extra's packages."""

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

_PACKAGES = ("starlette", "uvicorn", "jinja2", "markdown_it", "altair", "vl_convert")
_LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):)?(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Address:
    """Where the page is served.

    Attributes:
        host: a name or an IP address, without brackets.
        port: 0: any free one.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can see it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def listen(self) -> socket.socket:
        """Take the port; requests wait until somebody answers them.

        Raises:
            SetupError: it is taken, not allowed, or the host is not this machine's.
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
                    f"The page's port {self.port} is taken on {self.host}. Give another one with --page, or 0 for any."
                ) from None
            raise SetupError(f"The page cannot be served at {self.host}:{self.port}: {error.strerror}.") from None
        return made


def parse(text: str) -> Address:
    """An address as written: `8080`, `0.0.0.0:8080`, `[::1]:8080`.

    Raises:
        ValueError: it is none.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"expected [HOST:]PORT, such as 8080 or [::1]:8080, not {text!r}")
    return Address((found["host"] or _LOOPBACK).strip("[]"), int(found["port"]))


def check_packages() -> None:
    """Raise SetupError when the extra `page` is not installed."""
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise SetupError(f"The page needs the package {name}: pip install 'sqlext[page]'.")


def _read(context: click.Context, parameter: click.Parameter, value: str | None) -> Address | None:
    try:
        return None if value is None else parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


PAGE = click.option(
    "--page",
    metavar="[HOST:]PORT",
    callback=_read,
    help="Serve a page that shows flows, jobs and what becomes of a statement, for reading only. On this machine's own address "
    "unless HOST says otherwise: nobody is asked for a password. Needs the extra `page`.",
)
"""The option of every command that hosts flows; `server.page_server` takes what it gives."""
