"""A Spark Connect client, in a process of its own: pyspark's two kinds of session do not mix in one.

python -m tests.serving.connect_client sc://host:port statements     a list of SQL texts as JSON on stdin, the answers on stdout
python -m tests.serving.connect_client sc://host:port interrupt FILE  runs one statement, and interrupts it once FILE is there
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.serving.script import row
from tests.support import eventually

_DEADLINE = 120.0


def answer(spark: SparkSession, sql: str) -> str:
    try:
        return "\n".join(row(tuple(found)) for found in spark.sql(sql).collect())
    except PySparkException as error:
        return "ERROR " + str(error).strip()


def main() -> None:
    url, command, *arguments = sys.argv[1:]
    spark = SparkSession.builder.remote(url).getOrCreate()
    texts = json.loads(sys.stdin.read())
    if command == "interrupt":
        started = threading.Thread(target=lambda: print(json.dumps([answer(spark, texts[0])])))
        started.start()
        eventually(Path(arguments[0]).exists, _DEADLINE)
        spark.interruptAll()
        started.join(_DEADLINE)
    else:
        print(json.dumps([answer(spark, text) for text in texts]))
    spark.stop()


if __name__ == "__main__":
    main()
