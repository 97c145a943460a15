"""`sqlext doctor`, as users start it; and what it says where something is wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqlext.app import doctor
from sqlext.app.doctor import Finding, State
from sqlext.app.output import Printer
from sqlext.app.warehouse_lock import holder_of
from sqlext.errors import SetupError
from sqlext.execution.coordination.lease import Lease
from sqlext.extension import jars
from sqlext.spark.storage import HadoopPath
from tests.java import java_options

DEADLINE = 600.0


def test_a_sound_warehouse_with_a_flow(tmp_path: Path) -> None:
    """All is well, nothing is left behind, and the flow that is recorded is not started."""
    script = tmp_path / "a.sql"
    script.write_text(
        "CREATE TABLE ev (k STRING) USING delta; INSERT INTO ev VALUES ('a');"
        "CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k;"
    )
    common = ["--warehouse", str(tmp_path / "w"), "--conf", f"spark.driver.extraJavaOptions={java_options()}"]
    ran(0, "run", str(script), "--until-idle", *common)
    registry = tmp_path / "w" / "_sqlext" / "registry"
    before = sorted(file.name for file in registry.iterdir())
    said = ran(0, "doctor", *common)
    assert "ok       home: file:" in said
    assert "of writers that create one file at once, one succeeds" in said
    assert "ok       flows, views and jobs: 1 flows (1 RUNNING), 0 materialized views, 0 jobs" in said
    assert "wrong" not in said
    assert sorted(file.name for file in registry.iterdir()) == before
    assert not [file.name for file in (tmp_path / "w" / "_sqlext").iterdir() if "doctor" in file.name]


def ran(expected: int, *arguments: str) -> str:
    ended = subprocess.run([sys.executable, "-m", "sqlext.cli", *arguments], capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == expected, ended.stdout + ended.stderr
    return ended.stdout


def test_without_java_spark_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = {each.what: each for each in doctor.examine(tmp_path / "w", {})}
    assert found["Java"].state is State.WRONG
    assert "there is no program `bin/java` in it" in found["Java"].text
    assert found["Spark"].state is State.WARNING
    assert "home" not in found


def test_a_warehouse_in_use_is_named(tmp_path: Path) -> None:
    (tmp_path / "_metastore").mkdir()
    with (tmp_path / "_metastore" / "lock").open("w") as lock:
        import fcntl

        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert holder_of(tmp_path) == "4711"
        assert doctor._warehouse(tmp_path).text.endswith("is in use by process 4711")
    assert holder_of(tmp_path) is None


def test_a_storage_that_lets_two_create_one_file(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an object store without conditional writes: each looks whether the file is there, and writes it."""
    home = HadoopPath(spark, str(tmp_path / "home"))
    assert doctor._home(home).state is State.GOOD
    monkeypatch.setattr(HadoopPath, "create_text", lambda self, text: self.write_text(text) or True)
    found = doctor._home(home)
    assert found.state is State.WRONG
    assert "8, 8, 8 were told that they did" in found.text


def test_clocks_that_differ(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = HadoopPath(spark, str(tmp_path / "home"))
    home.make()
    assert doctor._clocks(home) == Finding("clocks", State.GOOD, "the storage's clock differs by 0 s")
    Lease(home).beat()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 100)  # this machine's clock is behind
    found = doctor._clocks(home)
    assert found.state is State.WRONG
    assert "differs by 100 s" in found.text
    assert "is ahead by" in found.text


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LEAST_DISK", 1 << 62)
    found = doctor._disk(tmp_path / "not" / "there")
    assert found.state is State.WRONG
    assert str(tmp_path) in found.text


def test_jars_are_looked_for_where_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def delta_class_path(progress: object, ivy_settings: object) -> str:
        asked.append(ivy_settings)
        return "there/*"

    monkeypatch.setattr(jars, "delta_class_path", delta_class_path)
    assert doctor._jars({"spark.jars.ivySettings": "mirror.xml"}).text == "there/*, with the digests that sqlext knows"
    assert asked == ["mirror.xml"]
    (tmp_path / "delta-spark_4.2_2.13-4.3.0.jar").touch()
    for given in ({"spark.driver.extraClassPath": f"{tmp_path}/*"}, {"spark.jars.packages": "io.delta:delta-spark_2.13:4.3.0"}):
        found = doctor._jars(given)
        assert found.state is State.GOOD
        assert found.text.startswith("given by")
    assert asked == ["mirror.xml"]


def test_settings_of_hive_are_taken_as_servers_take_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Mapping[str, str]] = []

    def examine(_: Path, conf: Mapping[str, str]) -> Iterator[Finding]:
        seen.append(conf)
        return iter(())

    monkeypatch.setattr(doctor, "examine", examine)
    assert doctor.run_doctor(Printer(), tmp_path, {"hive.server2.authentication": "NONE"}) == 0
    assert seen == [{"spark.hadoop.hive.server2.authentication": "NONE"}]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise SetupError("The JARs are gone.")

    monkeypatch.setattr(jars, "delta_class_path", refuse)


@pytest.mark.usefixtures("broken")
def test_the_exit_code_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run_doctor(Printer(), tmp_path / "w", {}) == 1
    assert "wrong    Delta's JARs: The JARs are gone." in capsys.readouterr().out
