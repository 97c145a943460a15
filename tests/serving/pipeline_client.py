"""A client that runs one of Spark's declarative pipelines, as `spark-pipelines run` does, in a process of its own.

python -m tests.serving.pipeline_client sc://host:port FILE STORAGE   runs the pipeline of a SQL file, and prints its events
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run
from pyspark.sql import SparkSession


def main() -> None:
    url, file, storage = sys.argv[1:]
    spark = SparkSession.builder.remote(url).getOrCreate()
    graph = create_dataflow_graph(spark, "spark_catalog", "default", {})
    SparkConnectGraphElementRegistry(spark, graph).register_sql(Path(file).read_text(), Path(file))
    for result in start_run(spark, graph, full_refresh=None, full_refresh_all=False, refresh=None, dry=False, storage=storage):
        if "pipeline_event_result" in result:
            print(result["pipeline_event_result"].event.message)
    spark.stop()


if __name__ == "__main__":
    main()
