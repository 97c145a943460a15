"""What differs on a cluster: the JARs' way to executors, the settings of a driver, and the package in a Python worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

import sqlext
from sqlext.app.embedded import _settings
from sqlext.extension import jars
from sqlext.extension import session as sqlext_session
from tests.faults.cluster import zipped_package

OF_WORKERS = (
    "functions.scalar",
    "functions.partition",
    "functions.keyed",
    "udfs",
    "execution.partitions.partition_worker",
    "execution.partitions.cogroup",
    "execution.keyed.keyed_worker",
    "execution.keyed.keyed_stream",
)
"""The modules whose classes and functions Spark's Python workers unpickle."""
WITHOUT_A_DRIVERS_PACKAGES = """
import sys
for name in ("delta", "sqlglot", "click", "rich", "pandas"):
    sys.modules[name] = None  # importing it fails
sys.path.insert(0, sys.argv[1])
import importlib
found = importlib.import_module("sqlext." + sys.argv[2])
assert found.__file__.startswith(sys.argv[1]), found.__file__
"""


class Builder:
    """A session builder as `configure` uses it."""

    def __init__(self, **options: str) -> None:
        self._options = {name.replace("_", "."): value for name, value in options.items()}

    def config(self, key: str, value: str) -> None:
        self._options[key] = value

    def getOrCreate(self) -> None:
        raise AssertionError("nobody starts Spark here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of JARs."""
    for name in ("b.jar", "a.jar", "complete"):
        (tmp_path / name).touch()
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(jars, "delta_class_path", lambda *_: str(tmp_path / "*"))
    monkeypatch.setattr(jars, "delta_on_class_path", lambda _: False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    return tmp_path


def configured(**options: str) -> dict[str, Any]:
    found: dict[str, Any] = sqlext_session.configure(Builder(**options))._options
    return found


@pytest.mark.parametrize("master", ["spark://one:7077,two:7077", "yarn", "k8s://https://kubernetes.default.svc"])
def test_on_a_cluster_the_driver_sends_the_jars(folder: Path, master: str) -> None:
    found = configured(spark_master=master, spark_jars="/mine.jar")
    assert found["spark.jars"] == f"/mine.jar,{folder}/a.jar,{folder}/b.jar"
    assert found["spark.driver.extraClassPath"] == f"{folder}/*"
    assert "spark.executor.extraClassPath" not in found
    assert "PYSPARK_PYTHON" not in os.environ, "this environment's Python is not on another machine"


@pytest.mark.parametrize("options", [{}, {"spark_master": "local[4]"}, {"spark_master": "local-cluster[2,1,1024]"}])
def test_on_one_machine_executors_have_the_drivers_class_path(folder: Path, options: dict[str, str]) -> None:
    found = configured(**options)
    assert found["spark.driver.extraClassPath"] == found["spark.executor.extraClassPath"] == f"{folder}/*"
    assert "spark.jars" not in found
    assert os.environ.pop("PYSPARK_PYTHON") == sys.executable


def test_nothing_of_one_machine_is_set_on_a_cluster(tmp_path: Path) -> None:
    here, there = _settings(tmp_path, on_cluster=False), _settings(tmp_path, on_cluster=True)
    of_here = {"spark.master", "spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"}
    assert here.keys() - there.keys() == of_here | {"spark.databricks.delta.snapshotPartitions"}
    assert there.items() <= here.items()
    assert here["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize("name", sqlext.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(sqlext, name) is not None
    assert name in dir(sqlext)


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'sqlext' has no attribute 'configured'"):
        _ = sqlext.configured


def test_workers_need_none_of_a_drivers_packages(tmp_path: Path) -> None:
    package = zipped_package(tmp_path / "sqlext.zip")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for module in OF_WORKERS:
        command = [sys.executable, "-c", WITHOUT_A_DRIVERS_PACKAGES, str(package), module]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
        assert ended.returncode == 0, f"{module}: {ended.stderr}"
