"""What a session says of our options, and what is in force of all that is said."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from sqlext import jvm
from sqlext.options import CONF_PREFIX, OPTIONS, Given, Level, Options, resolve


def resolve_levels(spark: SparkSession, given: Mapping[Level, Mapping[str, Given]]) -> Options:
    """The options in force; durations are read by Spark's parsers."""
    return resolve(given, lambda text: jvm.parse_duration(spark, text))


def session_levels(spark: SparkSession) -> dict[Level, dict[str, Given]]:
    """What SET and SparkConf say of our options."""
    conf = spark.sparkContext.getConf()
    of_session = {key: Given(str(value)) for key in OPTIONS if (value := spark.conf.get(key, None)) is not None}
    of_conf: dict[str, Given] = {}
    for key in OPTIONS:
        name = CONF_PREFIX + key
        value = spark.conf.get(name, None)
        if value is not None and conf.get(name) == value:
            of_conf[key] = Given(str(value))
        elif value is not None and key not in of_session:
            of_session[key] = Given(str(value))
    return {Level.SESSION: of_session, Level.CONF: of_conf}
