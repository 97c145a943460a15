"""What Java's own beans say of the process, and which catalog it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sqlext.errors import SetupError


@dataclass(frozen=True)
class JavaFigures:
    """Java's figures.

    Attributes:
        heap_used, heap_most: the bytes of its heap that are in use, and those that may be.
        threads: the number of its threads.
    """

    heap_used: int
    heap_most: int
    threads: int


def java_figures(spark: SparkSession) -> JavaFigures:
    """Return Java's figures, as `java.lang.management` has them.

    Raises:
        SetupError: Spark has ended, though Java may still answer.
    """
    if spark.sparkContext._jsc is None or spark.sparkContext._jsc.sc().isStopped():
        raise SetupError("Spark has ended.")
    java: Any = spark._jvm
    factory = java.java.lang.management.ManagementFactory
    heap = factory.getMemoryMXBean().getHeapMemoryUsage()
    return JavaFigures(int(heap.getUsed()), int(heap.getMax()), int(factory.getThreadMXBean().getThreadCount()))


def metastores(spark: SparkSession) -> str:
    """Return the addresses of the Hive metastores that keep Spark's catalog, comma-separated; empty: it has none."""
    return str(spark._jsparkSession.sessionState().newHadoopConf().get("hive.metastore.uris") or "")
