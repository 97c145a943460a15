"""The workshop of tests of flows, over the shared session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sqlext.spark import sessions
from tests.integration.workshop import LEAN, Workshop


@pytest.fixture
def sql(spark: SparkSession) -> Workshop:
    return Workshop(spark)


@pytest.fixture
def lean(spark: SparkSession) -> None:
    """Settings that make work on a few rows cheaper by a quarter; `clean` restores what there was."""
    for key, value in LEAN.items():
        spark.conf.set(key, value)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let flows look at their sources less often: of many side by side, looking takes most of a core."""
    monkeypatch.setitem(sessions._FLOW_SETTINGS, "spark.sql.streaming.pollingDelay", "400ms")
