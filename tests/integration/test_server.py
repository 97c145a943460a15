"""The servers, from the outside: one process serves Thrift and Spark Connect. For what clients get, see test_server_clients."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyhive import hive
from TCLIService.ttypes import TOperationState
from thrift.transport.TTransport import TTransportException

from tests.serving.clients import DEADLINE, Serving, answer, by_connect, serving_ldap_users
from tests.serving.ldap import PASSWORD, USER
from tests.support import eventually

pytestmark = pytest.mark.timeout(3 * DEADLINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving_ldap_users(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def sales(server: Serving) -> Serving:
    """A table to read."""
    server.run("CREATE TABLE IF NOT EXISTS sales (item STRING, amount INT) USING delta")
    if server.run("SELECT count(*) FROM sales") == "0":
        server.run("INSERT INTO sales VALUES ('tea', 2), ('cocoa', 3)")
    return server


# Errors.


def test_no_error_shows_a_stack_or_a_folder_of_the_server(sales: Serving) -> None:
    failing = [
        "SELECT * FROM nowhere",
        "SELECT item + 1 FROM sales",
        "SELECT assert_true(amount > 5) FROM sales",
        "SELECT divide_by_zero(amount) FROM sales",
        "CREATE STREAMING",
        "STOP FLOW nobody",
        "DROP FLOW boom",
        "SELECT * FROM map_partition(TABLE(sales), 'nothing')",
        f"SELECT * FROM parquet.`{sales.folder}/warehouse/none`",
    ]
    with sales.thrift() as connection, connection.cursor() as cursor:
        told = [answer(cursor, sql) for sql in failing]
        cursor.execute("SELECT item + 1 FROM sales", async_=True)  # as JDBC does: the error comes with the operation's status
        told.append("ERROR " + _end_of(cursor).errorMessage)
    for text in told:
        assert text.startswith("ERROR ")
        assert (
            re.search(r"\bat [\w.$]+\(|Traceback|\w\.java:|\.py\"|Exception: |" + re.escape(str(sales.folder)), text) is None
        ), text
    assert "Path does not exist: file:<warehouse>/none" in told[-2]
    assert "Traceback" in sales.log()
    assert f"RuntimeError: no file {sales.folder / 'notes.txt'}" in sales.log()


def _end_of(cursor: hive.Cursor) -> Any:
    """The status of an operation once it has ended."""
    running = (TOperationState.INITIALIZED_STATE, TOperationState.PENDING_STATE, TOperationState.RUNNING_STATE)
    return eventually(lambda: status if (status := cursor.poll()).operationState not in running else None, DEADLINE)


def test_a_wrong_password_is_refused(server: Serving) -> None:
    for user, password in ((USER, "wrong"), ("eve", PASSWORD)):
        with pytest.raises(TTransportException, match="Error validating the login"):
            server.thrift(user=user, password=password)
    assert server.run("SELECT 1") == "1"


# Statements that are taken back.


def _begin(server: Serving, sql: str) -> tuple[hive.Connection, hive.Cursor]:
    connection = server.thrift()
    cursor = connection.cursor()
    cursor.execute(sql, async_=True)
    return connection, cursor


def _slow_flow(server: Serving, name: str) -> Path:
    """A flow whose first micro-batch waits for a file: this one."""
    file = server.folder / f"{name}_file"
    amount = f"sum(amount * wait_for('{file}')) AS amount"
    server.run(f"CREATE STREAMING TABLE {name} AS SELECT item, {amount} FROM STREAM sales GROUP BY item")
    eventually(_beat(file).exists, DEADLINE)
    return file


def _beat(file: Path) -> Path:
    return file.with_name(file.name + ".beat")


def _is_still(file: Path) -> bool:
    """Whether nothing waits for the file any more."""
    _beat(file).unlink(missing_ok=True)
    time.sleep(0.5)  # ten times as long as it takes to touch it again
    return not _beat(file).exists()


def _has_waiters(server: Serving) -> bool:
    return bool(server.counts()["waiters"])


def test_a_canceled_wait_ends_and_the_flow_goes_on(sales: Serving) -> None:
    file = _slow_flow(sales, "waited_for")
    connection, cursor = _begin(sales, "WAIT FLOW waited_for")
    with connection:
        eventually(lambda: _has_waiters(sales), DEADLINE)
        cursor.cancel()
        assert _end_of(cursor).operationState == TOperationState.CANCELED_STATE
        eventually(lambda: not _has_waiters(sales), DEADLINE)
    interrupted = by_connect_in_background(sales, "WAIT FLOW waited_for", sales.folder / "interrupt")
    eventually(lambda: _has_waiters(sales), DEADLINE)
    (sales.folder / "interrupt").touch()
    assert "OPERATION_CANCELED" in interrupted.result(DEADLINE)[0]
    eventually(lambda: not _has_waiters(sales), DEADLINE)
    file.touch()
    assert sales.run("WAIT FLOW waited_for TIMEOUT 5 minutes") == "flow waited_for is up to date"
    assert sales.run("SELECT * FROM waited_for ORDER BY item") == "cocoa | 3\ntea | 2"
    sales.run("DROP FLOW waited_for")


def by_connect_in_background(server: Serving, sql: str, file: Path) -> Future[list[str]]:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(by_connect, server, "default", [sql], "interrupt", str(file))
    finally:
        pool.shutdown(wait=False)


def test_a_canceled_job_stops_and_leaves_no_table(sales: Serving) -> None:
    file = sales.folder / "job_file"
    query = f"SELECT item, sum(amount * wait_for('{file}')) AS amount FROM STREAM sales GROUP BY item GLOBAL WINDOW END OF STREAM"
    connection, cursor = _begin(sales, f"CREATE TABLE canceled_job USING delta AS {query}")
    with connection:
        eventually(_beat(file).exists, DEADLINE)
        cursor.cancel()
        assert _end_of(cursor).operationState == TOperationState.CANCELED_STATE
    eventually(lambda: _is_still(file), DEADLINE)
    assert sales.run("SHOW TABLES LIKE 'canceled_job'") == ""


def test_a_canceled_recoverable_job_stops_and_can_be_resumed(sales: Serving) -> None:
    file = sales.folder / "recoverable_file"
    query = f"SELECT item, sum(amount * wait_for('{file}')) AS amount FROM STREAM sales GROUP BY item GLOBAL WINDOW END OF STREAM"
    with sales.thrift() as connection, connection.cursor() as cursor:
        answer(cursor, "SET execution.batch.job-recovery.enabled = true")
        cursor.execute(f"CREATE TABLE resumed_job USING delta AS {query}", async_=True)
        eventually(_beat(file).exists, DEADLINE)
        cursor.cancel()
        assert _end_of(cursor).operationState == TOperationState.CANCELED_STATE
    eventually(lambda: _is_still(file), DEADLINE)
    job = eventually(lambda: re.findall(r"(\w+) \| FAILED \| \S+\.resumed_job", sales.run("SHOW JOBS")), DEADLINE)
    file.touch()
    assert "finished" in sales.run(f"RESUME JOB {job[0]}")
    assert sales.run("SELECT * FROM resumed_job ORDER BY item") == "cocoa | 3\ntea | 2"


def test_a_canceled_create_leaves_no_flow(sales: Serving) -> None:
    file = sales.folder / "held"
    connection, cursor = _begin(
        sales, "CREATE STREAMING TABLE held AS SELECT item, count(*) AS n FROM STREAM sales GROUP BY item"
    )
    with connection:
        eventually(_beat(file).exists, DEADLINE)
        cursor.cancel()
        assert _end_of(cursor).operationState == TOperationState.CANCELED_STATE
        file.touch()
    eventually(lambda: "held" not in sales.run("SHOW FLOWS") and sales.run("SHOW TABLES LIKE 'held'") == "", DEADLINE)


def test_a_client_that_goes_in_mid_statement_harms_nobody(sales: Serving) -> None:
    file = sales.folder / "gone_file"
    connection = sales.thrift()
    cursor = connection.cursor()
    statement = threading.Thread(target=_until_gone, args=(cursor, f"SELECT wait_for('{file}') FROM sales"))
    statement.start()
    eventually(_beat(file).exists, DEADLINE)
    raw = connection._transport._trans.handle
    raw.shutdown(socket.SHUT_RDWR)
    raw.close()
    statement.join(DEADLINE)
    file.touch()
    assert sales.run("SELECT sum(amount) FROM sales") == "5"


def _until_gone(cursor: hive.Cursor, sql: str) -> None:
    with pytest.raises((TTransportException, OSError, ValueError)):
        cursor.execute(sql)


# Where a server cannot listen. Nothing is started for it.


@pytest.mark.parametrize("command", ["thriftserver", "connect-server"])
def test_a_taken_port_is_one_sentence(command: str, server: Serving, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sqlext.cli", command, "--port", str(server.thrift_port), "--warehouse", str(tmp_path / "other")],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    kind = {"thriftserver": "Thrift", "connect-server": "Spark Connect"}[command]
    assert ended.stderr == (
        f"The {kind} server cannot listen on 127.0.0.1:{server.thrift_port}: another program uses that port. "
        "Stop it, or choose another port.\n"
    )
    assert not (tmp_path / "other").exists()


# Security: a client can do no more than plain Spark SQL lets it.


def test_statements_run_no_python_that_the_host_did_not_register(sales: Serving) -> None:
    assert "nothing" in sales.run("SELECT * FROM map_partition(TABLE(sales), 'nothing')")
    for call in ("os.system", "__import__", "builtins.eval"):
        told = sales.run(f"SELECT * FROM map_partition(TABLE(sales), '{call}')")
        assert re.match(rf"ERROR There is no .*function.*`{re.escape(call)}`", told), told
        told = sales.run(f"SELECT * FROM process_keyed(TABLE(sales) PARTITION BY item ORDER BY amount, '{call}')")
        assert re.match(rf"ERROR There is no .*function.*`{re.escape(call)}`", told), told


def test_what_is_on_the_class_path_and_where_flows_lie_is_not_for_clients(sales: Serving, tmp_path: Path) -> None:
    assert "before Spark starts" in sales.run("SET spark.sqlext.connectors = kafka")
    with sales.thrift() as connection, connection.cursor() as cursor:
        answer(cursor, f"SET spark.sqlext.home = {tmp_path}")
        answer(cursor, "CREATE STREAMING TABLE at_home AS SELECT item, count(*) AS n FROM STREAM sales GROUP BY item")
        assert str(sales.folder / "warehouse" / "_sqlext") in answer(cursor, "DESCRIBE FLOW at_home")
        answer(cursor, "DROP FLOW at_home")
    assert list(tmp_path.iterdir()) == []


# Many clients, many sessions.


def test_clients_beside_flows_get_right_answers(sales: Serving, clients: int, statements: int) -> None:
    for number in range(3):
        sales.run(
            f"CREATE STREAMING TABLE beside_{number} AS SELECT item, count(*) + {number} AS n FROM STREAM sales GROUP BY item"
        )

    def work(client: int) -> list[str]:
        wrong = []
        with sales.thrift() as connection, connection.cursor() as cursor:
            for number in range(statements):
                sql, expected = _question(client, number)
                found = answer(cursor, sql)
                if re.fullmatch(expected, found, re.DOTALL) is None:
                    wrong.append(f"{sql}: {found}")
        return wrong

    started = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        assert [each for wrong in pool.map(work, range(clients)) for each in wrong] == []
    print(f"{clients} clients x {statements} statements: {time.monotonic() - started:.1f} s")
    for number in range(3):
        assert sales.run(f"WAIT FLOW beside_{number}") == f"flow beside_{number} is up to date"
        assert sales.run(f"SELECT * FROM beside_{number} ORDER BY item") == f"cocoa | {number + 1}\ntea | {number + 1}"
        sales.run(f"DROP FLOW beside_{number}")


def _question(client: int, number: int) -> tuple[str, str]:
    """A statement, and what it answers; every other one is sqlext's."""
    a = 1000 * client + number
    return (
        (f"SELECT {a} + 1", str(a + 1)),
        ("SHOW FLOWS", r"(?:beside_\d \| .*\n?){3}"),
        (f"SELECT sum(amount) + {a} FROM sales", str(a + 5)),
        (f"SELECT count(*) + {a} AS n FROM STREAM sales GLOBAL WINDOW END OF STREAM", str(a + 2)),
        (f"STOP FLOW nobody_{a}", rf"ERROR There is no flow `nobody_{a}` in spark_catalog\.\w+\. SHOW FLOWS lists them\."),
        (f"DESCRIBE FLOW beside_{a % 3}", rf"name \| beside_{a % 3}\n.*"),
    )[number % 6]


def test_sessions_leave_nothing_behind(sales: Serving, sessions: int) -> None:
    def session(number: int) -> None:
        with sales.thrift() as connection, connection.cursor() as cursor:
            assert answer(cursor, f"SELECT {number}") == str(number)
            assert answer(cursor, "STOP FLOW nobody").startswith("ERROR There is no flow")
            cursor.execute("SHOW FLOWS", async_=True)  # on another of the server's threads
            assert _end_of(cursor).operationState == TOperationState.FINISHED_STATE

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(session, range(10)))
        before = sales.counts()
        list(pool.map(session, range(sessions)))
    shown = ("proxies", "threads", "java_threads", "java_objects", "java_megabytes", "files")

    def is_as_before() -> bool:
        counts = sales.counts()
        print({key: counts[key] for key in shown})
        return all(counts[key] <= before[key] + 5 for key in ("parsers", "threads"))

    eventually(is_as_before, DEADLINE, lambda: f"before: {before}, after: {sales.counts()}")
