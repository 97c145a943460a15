"""A server in a process of its own, and the clients that tests use."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyspark
from pyhive import hive

from tests.java import java_options
from tests.serving.ldap import PASSWORD, USER, ldap_server
from tests.serving.script import row
from tests.support import eventually

ROOT = Path(__file__).parents[2]
DEADLINE = 300.0
_MARK = "--8<--"


@dataclass(frozen=True)
class Serving:
    """A server that runs.

    Attributes:
        folder: where its warehouse lies, and the files that `tests.serving.host` looks at.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    thrift_port: int
    connect_port: int

    def thrift(self, database: str = "default", user: str = USER, password: str = PASSWORD) -> Any:
        """A PyHive connection."""
        return hive.connect("127.0.0.1", self.thrift_port, username=user, password=password, database=database, auth="LDAP")

    def run(self, sql: str, database: str = "default") -> str:
        """What a statement answers over a connection of its own."""
        with self.thrift(database) as connection, connection.cursor() as cursor:
            return answer(cursor, sql)

    def counts(self) -> dict[str, Any]:
        """What the server's process holds, after both collectors have run."""
        file = self.folder / "counts.json"
        file.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        eventually(file.exists, DEADLINE)
        counts: dict[str, Any] = json.loads(file.read_text())
        return counts

    def log(self) -> str:
        return (self.folder / "warehouse" / "_sqlext" / "sqlext.log").read_text(errors="replace")


@contextmanager
def serving(folder: Path, arguments: Sequence[str]) -> Iterator[Serving]:
    """`sqlext serve` with a Thrift and a Connect server on free ports; at the end it has ended."""
    command = [sys.executable, "-m", "tests.serving.host", "serve", "--thrift", "--connect", "--thrift-port", "0"]
    command += ["--connect-port", "0", "--warehouse", str(folder / "warehouse"), *arguments]
    command += ["--conf", f"spark.driver.extraJavaOptions={java_options()}"]
    output = folder / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "SQLEXT_TEST_FOLDER": str(folder), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: " on sc://" in output.read_text() or process.poll() is not None, DEADLINE, output.read_text)
        thrift = re.search(r"Thrift server on 127\.0\.0\.1:(\d+), authentication LDAP", output.read_text())
        connect = re.search(r"Spark Connect server on sc://127\.0\.0\.1:(\d+)", output.read_text())
        assert thrift is not None, output.read_text()
        assert connect is not None, output.read_text()
        yield Serving(process, folder, int(thrift[1]), int(connect[1]))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def serving_ldap_users(folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Serving]:
    """A server whose users are an LDAP server's: Hive's own options reach it. It ends without an error."""
    with ldap_server() as url:
        conf = {
            "hive.server2.authentication": "LDAP",
            "hive.server2.authentication.ldap.url": url,
            "hive.server2.authentication.ldap.baseDN": "ou=people",
            **settings,
        }
        arguments = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        with serving(folder, arguments) as found:
            yield found
    assert found.process.returncode == 0, (folder / "output.txt").read_text()


def answer(cursor: Any, sql: str) -> str:
    """Rows as text, or the message of the error as PyHive has it."""
    try:
        cursor.execute(sql)
        return "\n".join(row(found) for found in cursor.fetchall()) if cursor.description else ""
    except hive.OperationalError as error:
        status = error.args[0].status
        return "ERROR " + str(status.errorMessage) + "".join(status.infoMessages or ())


def by_pyhive(server: Serving, database: str, texts: Sequence[str]) -> list[str]:
    with server.thrift(database) as connection, connection.cursor() as cursor:
        return [answer(cursor, text) for text in texts]


def by_beeline(server: Serving, database: str, texts: Sequence[str]) -> list[str]:
    """Over JDBC; of what beeline prints, the frame is taken away."""
    home = Path(pyspark.__file__).parent
    script = server.folder / f"{database}.sql"
    script.write_text("".join(f"{text};\nSELECT '{_MARK}';\n" for text in texts))
    url = f"jdbc:hive2://127.0.0.1:{server.thrift_port}/{database}"
    options = ["--silent=true", "--force=true", "--showHeader=false", "--outputformat=tsv2", "-f", str(script)]
    printed = subprocess.run(
        [str(home / "bin" / "beeline"), "-u", url, "-n", USER, "-p", PASSWORD, *options],
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_BEELINE_OPTS": java_options()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    ).stdout
    printed = re.sub(r"null {20,}\s*null\n?", "", printed)  # its progress bar, erased
    printed = re.sub(r"^WARNING: Using incubator modules.*\n", "", printed, flags=re.MULTILINE)
    pieces = printed.split(f"{_MARK}\n")[:-1]
    assert len(pieces) == len(texts), printed
    return [_of_beeline(piece) for piece in pieces]


def _of_beeline(printed: str) -> str:
    error = re.fullmatch(r"Error: (.*) \(state=\w*,code=0\)\n*(?:Aborting.*)?", printed.strip(), re.DOTALL)
    return f"ERROR {error[1].strip()}" if error else printed.strip("\n\0").replace("\t", " | ")


def by_connect(server: Serving, database: str, texts: Sequence[str], *command: str) -> list[str]:
    """By a Spark Connect client in a process of its own."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.serving.connect_client", f"sc://127.0.0.1:{server.connect_port}"),
            *(command or ("statements",)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=json.dumps([f"USE {database}", *texts] if not command else list(texts)),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert ended.returncode == 0, ended.stderr
    answers: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return answers[1:] if not command else answers
