"""Clients of a host before they are connected: addresses, refusals, and what they learn from a warehouse that is in use."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from pyspark.sql import Row

from sqlext.app import connect_address
from sqlext.app.connect_address import ConnectAddress, parse
from sqlext.app.host_flows import HostLooks, flows_of, line_of
from sqlext.app.served import ServedFile, ways_in
from sqlext.app.warehouse_lock import WarehouseLock
from sqlext.cli import cli
from sqlext.errors import SetupError
from sqlext.server.server import Listening
from tests.support import eventually

# Addresses.


@pytest.mark.parametrize(
    ("text", "expected", "shown", "url"),
    [
        ("spark.example.com", ("spark.example.com", 15002), "spark.example.com:15002", "sc://spark.example.com:15002/"),
        (" 127.0.0.1:7 ", ("127.0.0.1", 7), "127.0.0.1:7", "sc://127.0.0.1:7/"),
        ("[::1]:7", ("::1", 7), "[::1]:7", "sc://[::1]:7/"),
        ("[::1]", ("::1", 15002), "[::1]:15002", "sc://[::1]:15002/"),
        ("sc://h:7", ("h", 7), "h:7", "sc://h:7/"),
        ("sc://h/;use_ssl=true;token=s3cret", ("h", 15002), "h:15002", "sc://h:15002/;use_ssl=true;token=s3cret"),
        ("sc://h:443/;token=a%3D%3D;", ("h", 443), "h:443", "sc://h:443/;token=a%3D%3D"),
    ],
)
def test_an_address_is_read(text: str, expected: tuple[str, int], shown: str, url: str) -> None:
    address = parse(text)
    assert (address.host, address.port) == expected
    assert str(address) == shown
    assert address.url == url
    assert "s3cret" not in repr(address)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected HOST[:PORT], such as 127.0.0.1:15002 or [::1]:15002, not ''"),
        (":15002", "not ':15002'"),
        ("h:0", "a port is a number from 1 to 65535, not 0"),
        ("h:99999", "a port is a number from 1 to 65535, not 99999"),
        ("h:port", "not 'h:port'"),
        ("::1:15002", "not '::1:15002'; an IPv6 address stands in brackets"),
        ("jdbc:hive2://h:10000", "jdbc:hive2:// is another protocol"),
        ("http://h", "http:// is another protocol"),
        ("ada:s3cret@h", "a user, a token or another parameter is written sc://HOST:PORT/;name=value"),
        ("h:15002;token=s3cret", "a user, a token or another parameter is written sc://HOST:PORT/;name=value"),
        ("sc://h/path;token=s3cret", "only parameters, each behind a semicolon, may follow the slash"),
        ("sc://h/;token=s3cret==", "parameter 1 after sc://HOST:PORT/ is not name=value; a `=` or `;` in a value is written"),
        ("sc://h/;use_ssl=true;s3cret", "parameter 2 after sc://HOST:PORT/ is not name=value"),
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"expected|parameter") as error:
        parse(text)
    assert message in str(error.value)
    assert "s3cret" not in str(error.value)


# The command.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-", "--warehouse", "w"], "--warehouse cannot be given with --connect: the host has opened its own."),
        (["run", "-", "--conf", "spark.a=b"], "--conf cannot be given with --connect: the host's Spark runs already."),
        (["run", "-", "--page", "8080"], "--page cannot be given with --connect: the host's command has that option."),
        (["run"], "Give a FILE.sql to run with --connect, or --until-idle to wait for the host's flows."),
        (["run", "-", "--timeout", "1 hour"], "--timeout requires --until-idle"),
        (["shell"], "sqlext shell needs a terminal."),
    ],
)
def test_what_makes_no_sense_with_a_host_is_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--connect", "127.0.0.1"])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_wrong_address_is_told_by_the_command() -> None:
    result = CliRunner().invoke(cli, ["run", "-", "--connect", "thrift://h"])
    assert result.exit_code == 2
    assert "thrift:// is another protocol" in " ".join(result.output.split())


def test_without_the_extra_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connect_address._PACKAGES, "grpc_of_another_world.status", "grpcio-status")
    result = CliRunner().invoke(cli, ["run", "-", "--connect", "127.0.0.1"])
    assert result.exit_code == 2
    assert "--connect needs the package grpcio-status. Install it: pip install 'sqlext[connect]'." in result.output


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2 min", 120),
        ("90s", 90),
        ("1500 ms", 1.5),
        ("2 H", 7200),
        ("PT2M", 120),
        ("p1dt2h3m4.5s", 93784.5),
        ("5 minutes", 300),  # which the host reads
    ],
)
def test_a_timeout_is_read_as_without_a_host(text: str, seconds: float) -> None:
    def rows(statement: str, within: float) -> list[tuple[int]]:
        assert "'5 minutes'" in statement
        return [(300_000_000,)]

    assert duration(text, rows) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "P", "PT", "P1DT", "2 moons", "-5 minutes", "it's", "9999999999999 d", "PT9999999999999H"]
)
def test_what_is_no_timeout_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match=f"^--timeout cannot be `{text}`"):
        duration(text, lambda *_: [(None,)])


def duration(text: str, rows: Callable[[str, float], object]) -> timedelta:
    """The length of a --timeout, with a host that answers so."""
    from sqlext.app.connected import ConnectedRunner

    made = object.__new__(ConnectedRunner)
    made._session = cast(Any, SimpleNamespace(rows=rows))
    return made._duration(text)


# Where nothing, or something else, listens.


@pytest.fixture
def closed_at_once() -> Iterator[int]:
    """The port of a server that closes each connection, as Thrift does when it is spoken to in another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(1)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(30)


def test_another_protocol_is_told(closed_at_once: int) -> None:
    from sqlext.app.connection import ConnectedSession

    with pytest.raises(SetupError) as error:
        ConnectedSession(ConnectAddress("127.0.0.1", closed_at_once))
    assert error.value.message.startswith(f"The server at 127.0.0.1:{closed_at_once} does not serve Spark Connect; Thrift")
    with pytest.raises(SetupError, match="does not serve Spark Connect with TLS") as error:
        ConnectedSession(ConnectAddress("127.0.0.1", closed_at_once, (("token", "s3cret"),)))
    assert "s3cret" not in error.value.message


def test_a_port_without_a_server_is_told() -> None:
    from sqlext.app.connection import ConnectedSession

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(SetupError, match=rf"^No server listens at 127\.0\.0\.1:{free.getsockname()[1]}\. Start one: "):
            ConnectedSession(ConnectAddress("127.0.0.1", free.getsockname()[1]))


# A warehouse that is in use.


CONNECT = Listening("Spark Connect", "127.0.0.1", 15002, "none")
THRIFT = Listening("Thrift", "0.0.0.0", 10000, "NONE")


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ([THRIFT, CONNECT], "It serves Spark Connect: sqlext shell --connect 127.0.0.1:15002, or sqlext run FILE.sql --connect"),
        ([Listening("Spark Connect", "0.0.0.0", 7, "none")], "sqlext shell --connect 127.0.0.1:7,"),
        ([Listening("Spark Connect", "::1", 7, "none")], "sqlext shell --connect [::1]:7,"),
        ([Listening("Spark Connect", "db7", 7, "none")], "sqlext shell --connect db7:7,"),
        (
            [Listening("Spark Connect", "127.0.0.1", 7, "token")],
            "--connect localhost:7, with the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN as the host has it.",
        ),
        ([THRIFT], "It serves only Thrift, at 127.0.0.1:10000 (JDBC, beeline, PyHive). For shells, a process serves Spark"),
        ([], "It serves no clients; a process that was started by sqlext connect-server does"),
    ],
)
def test_who_uses_a_warehouse_is_told_with_its_address(servers: list[Listening], expected: str, tmp_path: Path) -> None:
    (tmp_path / "_metastore").mkdir()
    file = ServedFile(tmp_path)
    with WarehouseLock(tmp_path):
        file.write(os.getpid(), servers)
        assert stat.S_IMODE((tmp_path / "_metastore" / "servers.json").stat().st_mode) == 0o600
        with pytest.raises(SetupError) as error, WarehouseLock(tmp_path):
            pass
    assert f"is in use by process {os.getpid()}. " in error.value.message
    assert expected in error.value.message


def test_addresses_of_a_process_that_was_killed_are_not_told(tmp_path: Path) -> None:
    (tmp_path / "_metastore").mkdir()
    file = ServedFile(tmp_path)
    file.write(os.getpid(), [CONNECT])  # as a process with this id has left it
    assert file.read(str(os.getpid() + 1)) == []
    assert file.read(str(os.getpid())) == [CONNECT]
    with WarehouseLock(tmp_path):
        assert file.read(str(os.getpid())) == []
    (tmp_path / "_metastore" / "servers.json").write_text('{"version": 1, "pid"')
    assert file.read(str(os.getpid())) == []
    assert "serves no clients" in ways_in([])


# What runs at the host.


def _flow(**values: object) -> Row:
    usual = {"name": "a", "full_name": "c.d.a", "kind": "streaming table", "status": "RUNNING", "rows_in": 3, "buffered": 0}
    return Row(**{**usual, "error": None, **values})


def test_the_flows_of_the_host_are_those_of_show_flows() -> None:
    rows = [
        _flow(buffered=700),
        _flow(name="b", status="FAILED", error="the disk is full", rows_in=None, buffered=None),
        _flow(name="v", kind="materialized view", status="UP TO DATE", rows_in=None),
        _flow(name="elsewhere", rows_in=None, buffered=None),
    ]
    flows = flows_of(rows)
    assert [(each.name, each.has_failed, each.can_be_waited_for) for each in flows] == [
        ("a", False, True),
        ("b", True, False),
        ("elsewhere", False, False),
    ]
    assert line_of(rows) == "flows: 1 failed, 2 running  700 rows buffered"


class _Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)


def test_the_host_is_asked_now_and_then_and_never_waited_for() -> None:
    clock, may_answer, asked = _Clock(), threading.Event(), list[float]()

    def look() -> str:
        asked.append(clock.time)
        may_answer.wait(30)
        if len(asked) == 2:
            raise ConnectionError("gone")
        return f"answer {len(asked)}"

    looks = HostLooks(look, clock)
    assert looks.line() == ""
    clock.time = 20.0
    assert looks.line() == "no answer"
    may_answer.set()
    eventually(lambda: looks.line() == "answer 1", 30)
    clock.time = 29.0
    assert looks.line() == "answer 1"
    assert asked == [0.0]
    clock.time = 1_000.0
    eventually(lambda: looks.line() == "no answer", 30)
    clock.time = 2_000.0
    eventually(lambda: looks.line() == "answer 3", 30)
    assert asked == [0.0, 1_000.0, 2_000.0]
