"""A driver over tables and a home that it shares with others, and with a catalog of its own; it runs until it is killed.

    python -m tests.faults.driver SHARED OWN AHEAD JAVA

Its clock is AHEAD seconds ahead, and JAVA are its options for Java. It tells what SHOW FLOWS says in OWN/flows.txt; at SIGUSR1 it
prints what its threads do.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import sqlext
from sqlext.app.take_over import TakeOver

FLOW = "CREATE FLOW counting AS INSERT INTO counts SELECT sensor, count(*) AS n FROM STREAM readings GROUP BY sensor"
SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sqlext.execution.flush.max-interval": "1 second",
}


def drive(shared: Path, own: Path, ahead: float, java: str) -> None:
    """Register the shared tables, take over what nobody keeps any more, and make the flow if it is not there yet."""
    real = time.time
    time.time = lambda: real() + ahead
    builder = SparkSession.builder.master("local[1]").config(map=SETTINGS).config("spark.driver.extraJavaOptions", java)
    builder = builder.config("spark.sql.warehouse.dir", str(own / "warehouse")).config("spark.sqlext.home", f"file:{shared}/home")
    spark = SparkSession.Builder.getOrCreate(sqlext.configure(builder))  # without sqlext, until its tables are known
    for name, columns in (("readings", "sensor BIGINT"), ("counts", "sensor BIGINT, n BIGINT")):
        spark.sql(f"CREATE TABLE {name} ({columns}) USING delta LOCATION '{shared / name}'")
    spark = sqlext.enable(spark)
    if not spark.sql("SHOW FLOWS").collect():
        spark.sql(FLOW)
    told = own / "flows.txt"
    with TakeOver(spark):
        while True:
            rows = spark.sql("SHOW FLOWS").collect()
            told.with_suffix(".new").write_text("\n".join(f"{row.status} {row.note} {row.error}" for row in rows))
            told.with_suffix(".new").replace(told)
            time.sleep(0.2)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    drive(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
