"""The addresses of a process's servers, in a file beside the lock of its warehouse: others that find it in use tell them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from sqlext.private_files import make_private_file
from sqlext.server.server import ConnectServer, Listening

_VERSION = 1
_TOKEN = "the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN as the host has it"  # noqa: S105  # no token itself


class ServedFile:
    """The file with the addresses of the process that holds the lock of a warehouse.

    Only the holder writes and deletes it; it is bound to the holder by its process id. What a killed process has left is deleted
    by the next holder (`WarehouseLock`), so that an id that is used again does not revive it.
    """

    def __init__(self, warehouse: Path) -> None:
        self._path = warehouse.absolute() / "_metastore" / "servers.json"

    def write(self, pid: int, servers: Sequence[Listening]) -> None:
        """Write the addresses, in one step.

        Raises:
            OSError: the file cannot be written.
        """
        new = self._path.with_suffix(".new")
        make_private_file(new)
        content = {"version": _VERSION, "pid": pid, "servers": [asdict(each) for each in servers]}
        new.write_text(json.dumps(content), encoding="utf-8")
        new.replace(self._path)

    def delete(self) -> None:
        """Delete the file if there is one."""
        with suppress(OSError):
            self._path.unlink()

    def read(self, pid: str) -> list[Listening]:
        """Return the servers of a process; none if the file is another process's, or cannot be read."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            if content["version"] != _VERSION or str(content["pid"]) != pid:
                return []
            return [Listening(**each) for each in content["servers"]]
        except (OSError, ValueError, TypeError, KeyError):
            return []


def ways_in(servers: Sequence[Listening]) -> str:
    """Say in a sentence how to reach a process that uses a warehouse.

    Args:
        servers: its servers.
    """
    for server in servers:
        if server.what == ConnectServer.what:
            has_token = server.authentication != "none"
            # without TLS, Spark's client sends a token only to a host of this name
            address = f"localhost:{server.port}" if has_token and server.is_reached_by_localhost else server.reached_at
            with_token = f", with {_TOKEN}" if has_token else ""
            commands = f"sqlext shell --connect {address}, or sqlext run FILE.sql --connect {address}"
            return f"It serves Spark Connect: {commands}{with_token}."
    if servers:
        only = f"{servers[0].what}, at {servers[0].reached_at} (JDBC, beeline, PyHive)"
        return f"It serves only {only}. For shells, a process serves Spark Connect, too: sqlext serve --thrift --connect."
    return "It serves no clients; a process that was started by sqlext connect-server does: sqlext shell --connect HOST:PORT."
