"""The address of a host's Spark Connect server: the command line's option. Needs none of the extra's packages."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec

import click

from sqlext.errors import SetupError

DEFAULT_PORT = 15002
_SCHEME = "sc://"
_PACKAGES = {"grpc": "grpcio", "grpc_status": "grpcio-status", "google.rpc": "googleapis-common-protos", "zstandard": "zstandard"}
_PLACE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?\.?)(?::(?P<port>\d{1,5}))?")
_PARAMETER = re.compile(r"([A-Za-z_][\w.-]*)=([^=;]*)")
_EXPECTED = f"expected HOST[:PORT], such as 127.0.0.1:{DEFAULT_PORT} or [::1]:{DEFAULT_PORT}"


@dataclass(frozen=True)
class ConnectAddress:
    """The address of a Spark Connect server.

    Attributes:
        host: a name or an IP address, without brackets.
        parameters: of Spark's connection string, such as use_ssl and token, as they were written; they may be secrets.
    """

    host: str
    port: int = DEFAULT_PORT
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Return the address for messages: host and port, and nothing that may be secret."""
        return f"{self._written_host}:{self.port}"

    @property
    def url(self) -> str:
        """Spark's connection string; it may have secrets."""
        return f"{_SCHEME}{self}/{''.join(f';{key}={value}' for key, value in self.parameters)}"

    @property
    def _written_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def parse(text: str) -> ConnectAddress:
    """Parse an address such as `127.0.0.1`, `[::1]:15002` or `sc://spark.example.com:443/;use_ssl=true`.

    Raises:
        ValueError: the text is no address. The message has no value of a parameter.
    """
    bare, given = text.strip(), ""
    if bare.lower().startswith(_SCHEME):
        bare, _, given = bare[len(_SCHEME) :].partition("/")
    elif "://" in bare:
        raise ValueError(f"{_EXPECTED}, of a Spark Connect server; {bare.partition('://')[0]}:// is another protocol")
    parameters = _parameters(given)
    if "@" in bare or ";" in bare:
        raise ValueError(f"{_EXPECTED}; a user, a token or another parameter is written sc://HOST:PORT/;name=value")
    found = _PLACE.fullmatch(bare)
    if found is None:
        brackets = "; an IPv6 address stands in brackets" if bare.count(":") > 1 and "[" not in bare else ""
        raise ValueError(f"{_EXPECTED}, not {bare!r}{brackets}")
    port = DEFAULT_PORT if found["port"] is None else int(found["port"])
    if not 0 < port < 65536:
        raise ValueError(f"{_EXPECTED}; a port is a number from 1 to 65535, not {found['port']}")
    return ConnectAddress(found["host"].strip("[]"), port, parameters)


def _parameters(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    head, *parts = text.split(";")
    if head:
        raise ValueError("expected sc://HOST:PORT/;name=value: only parameters, each behind a semicolon, may follow the slash")
    for number, part in enumerate(filter(None, parts), 1):
        match = _PARAMETER.fullmatch(part)
        if match is None:
            raise ValueError(
                f"parameter {number} after sc://HOST:PORT/ is not name=value; a `=` or `;` in a value is written %3D or %3B"
            )
        found.append((match[1], match[2]))
    return tuple(found)


def check_packages() -> None:
    """Raise SetupError when the extra `connect` is not installed."""
    for module, package in _PACKAGES.items():
        if not _is_installed(module):
            raise SetupError(f"--connect needs the package {package}. Install it: pip install 'sqlext[connect]'.")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _read(context: click.Context, parameter: click.Parameter, value: str | None) -> ConnectAddress | None:
    if value is None:
        return None
    try:
        found = parse(value)
        check_packages()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    except SetupError as error:
        raise click.UsageError(error.message) from None
    return found


CONNECT = click.option(
    "--connect",
    "host",
    metavar="HOST[:PORT]",
    callback=_read,
    help="Run the statements at a host that serves Spark Connect (sqlext connect-server, or serve --connect), instead of opening "
    f"a warehouse here; its flows go on when this ends. The port is {DEFAULT_PORT} unless given. Needs the extra `connect`.",
)
"""The option of the commands that can be clients of a host."""
