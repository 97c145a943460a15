"""`read_kafka(..)`: topics of Kafka as a relation, from SQL.

`SELECT .. FROM read_kafka(..)` reads what the topics hold now; `FROM STREAM read_kafka(..)`, in a flow, has no end. Columns are
those of Spark's Kafka source: key, value, topic, partition, offset, timestamp, timestampType. Keys and values are bytes: decode
them with `from_json(CAST(value AS STRING), ..)` or `from_avro(value, ..)`.

Relies on Spark's private side.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from sqlext.errors import SchemaError, SetupError, did_you_mean
from sqlext.options import CONNECTORS_KEY
from sqlext.quoting import STREAMED
from sqlext.spark.arguments import each_once, named
from sqlext.sql.tokens import tokens

FUNCTION = "read_kafka"
FUNCTIONS = (FUNCTION, STREAMED + FUNCTION)
"""The function for bounded reads, and the one that `STREAM read_kafka(..)` in a flow becomes."""

_BOOTSTRAP = "bootstrapServers"
_WHICH = ("subscribe", "subscribePattern", "assign")
_OPTIONS = (
    *_WHICH,
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss", "includeHeaders", "groupIdPrefix"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs"),
)
_USAGE = f"{FUNCTION}(bootstrapServers => 'host:9092', subscribe => 'topic')"


def is_called_in(text: str) -> bool:
    """Return whether statements call the function, and so need the connector."""
    found = tokens(text)
    return any(name.upper == FUNCTION.upper() and bracket.text == "(" for name, bracket in itertools.pairwise(found))


def plan_of_call(spark: SparkSession, operator: str, arguments: Sequence[Any]) -> Any:
    """Return the relation of one call.

    Args:
        spark: the session that analyses the query.
        operator: one of `FUNCTIONS`.
        arguments: the arguments, as Catalyst expressions.

    Raises:
        SchemaError: an argument is unknown, unnamed, not constant, given twice or missing.
        SetupError: Spark's Kafka source is not on the class path.
    """
    options = _options(arguments)
    _check_class_path(spark)
    reader: Any = spark.read if operator == FUNCTION else spark.readStream
    return reader.format("kafka").options(**options).load()._jdf.queryExecution().analyzed()


def _option_named(name: str) -> str:
    known = {each.lower(): each for each in (_BOOTSTRAP, *_OPTIONS)}
    key = known.get(name.lower(), name if name.lower().startswith("kafka.") else None)
    if key is None:
        raise SchemaError(
            f"{FUNCTION} has no argument `{name}`.{did_you_mean(name, known.values())} It takes {', '.join(known.values())}, "
            "and settings of Kafka's consumer, in backticks, such as `kafka.security.protocol`."
        )
    return key


def _options(arguments: Sequence[Any]) -> dict[str, str]:
    found = each_once(FUNCTION, named(FUNCTION, arguments, _USAGE), _option_named)
    if _BOOTSTRAP not in found or sum(key in found for key in _WHICH) != 1:
        raise SchemaError(f"{FUNCTION} needs {_BOOTSTRAP} and one of {', '.join(_WHICH)}. Write {_USAGE}.")
    return {("kafka.bootstrap.servers" if key == _BOOTSTRAP else key): value for key, value in found.items()}


def _check_class_path(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    if not callable(context._jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider):
        raise SetupError(
            f"Spark's Kafka source is not on the class path. Set `{CONNECTORS_KEY}` to `kafka` on the builder given to "
            "sqlext.configure, or with --conf; `sqlext run` sets it by itself if the file calls read_kafka."
        )
