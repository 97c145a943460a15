"""The workshop of tests of flows, over the shared session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.integration.workshop import Workshop


@pytest.fixture
def sql(spark: SparkSession) -> Workshop:
    return Workshop(spark)
