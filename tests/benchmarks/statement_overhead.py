"""What sqlext adds to a statement that is not ours: its parser against Delta's and Spark's alone, in one run.

python tests/benchmarks/statement_overhead.py
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import sqlext
from sqlext.sql.tokens import is_ours
from tests.corpus import load

ROUNDS = 5
RESULT = Path(__file__).with_suffix(".json")


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    spark = sqlext.configure(builder.config("spark.sql.warehouse.dir", tempfile.mkdtemp())).getOrCreate()
    jvm: Any = spark._jvm
    ours = spark._jsparkSession.sessionState().sqlParser()
    alone = jvm.io.delta.sql.parser.DeltaSqlParser(jvm.org.apache.spark.sql.execution.SparkSqlParser())
    texts = [statement.text for statement in load() if statement.kind not in ("errors", "scripting", "parameters")]
    median: dict[str, float] = {}
    for name in ("warm-up", "alone", "sqlext") * ROUNDS:  # in turn, so that the machine's moods meet both sides
        parser = ours if name == "sqlext" else alone
        median[name] = min(median.get(name, 1e9), statistics.median(timed(parser.parsePlan, texts)))
    own = statistics.median(timed(is_ours, texts))
    result = {
        "statements": len(texts),
        "alone_ms": round(median["alone"], 3),
        "sqlext_ms": round(median["sqlext"], 3),
        "added_ms": round(median["sqlext"] - median["alone"], 3),
        "ratio": round(median["sqlext"] / median["alone"], 2),
        "own_ms": round(own, 4),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
    print(json.dumps(result, indent=2))
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def timed(action: Any, texts: list[str]) -> list[float]:
    """Milliseconds for each text."""
    taken = []
    for text in texts:
        start = time.perf_counter()
        action(text)
        taken.append((time.perf_counter() - start) * 1000)
    return taken


if __name__ == "__main__":
    main()
