"""The workshop of tests of flows, over the shared session, and a folder where files arrive."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sqlext.spark import sessions
from tests.integration.workshop import LEAN, Workshop, Write


@pytest.fixture
def sql(spark: SparkSession) -> Workshop:
    return Workshop(spark)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    made = tmp_path / "landing"
    made.mkdir()
    return made


@pytest.fixture
def write(tmp_path: Path, landing: Path) -> Write:
    def written(name: str, text: str) -> Path:
        file, complete = tmp_path / "incomplete", landing / name
        complete.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file.rename(complete)

    return written


@pytest.fixture
def lean(spark: SparkSession) -> None:
    """Settings that make work on a few rows cheaper by a quarter; `clean` restores what there was."""
    for key, value in LEAN.items():
        spark.conf.set(key, value)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let flows look at their sources less often: of many side by side, looking takes most of a core."""
    monkeypatch.setitem(sessions._FLOW_SETTINGS, "spark.sql.streaming.pollingDelay", "400ms")
