"""The options that a session gives, and the options in force."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from sqlext.options import CONF_PREFIX, OPTIONS, Level, Options, ValueText, resolve
from sqlext.spark import jvm


def resolve_levels(spark: SparkSession, given: Mapping[Level, Mapping[str, ValueText]]) -> Options:
    """Return the options in force; durations are parsed by Spark."""
    return resolve(given, lambda text: jvm.parse_duration(spark, text))


def session_levels(spark: SparkSession) -> dict[Level, dict[str, ValueText]]:
    """Return the options that SET and SparkConf give."""
    application, settings = jvm.application_settings(spark), jvm.all_settings(spark)
    of_session = {key: ValueText(settings[key]) for key in OPTIONS if key in settings}
    of_conf: dict[str, ValueText] = {}
    for key in OPTIONS:
        name = CONF_PREFIX + key
        value = settings.get(name)
        if value is not None and application.get(name) == value:
            of_conf[key] = ValueText(value)
        elif value is not None and key not in of_session:
            of_session[key] = ValueText(value)
    return {Level.SESSION: of_session, Level.CONF: of_conf}
