"""What a session says of our options, and what is in force of all that is said."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from sqlext.errors import OptionError
from sqlext.options import CONF_PREFIX, OPTIONS, PER_SOURCE, Level, Options, ValueText, resolve, with_own
from sqlext.plan.job_graph import FlowPlan
from sqlext.spark import jvm


def resolve_levels(spark: SparkSession, given: Mapping[Level, Mapping[str, ValueText]]) -> Options:
    """The options in force; durations are read by Spark's parsers."""
    return resolve(given, lambda text: jvm.parse_duration(spark, text))


def session_levels(spark: SparkSession) -> dict[Level, dict[str, ValueText]]:
    """What SET and SparkConf say of our options."""
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


def with_level(plan: FlowPlan) -> dict[str, ValueText]:
    """The WITH options of all streams that are the whole flow's; they must not differ."""
    merged: dict[str, ValueText] = {}
    for source in plan.graph.streams:
        for key, given in source.options.get(Level.WITH, {}).items():
            if key in PER_SOURCE:
                continue
            there = merged.setdefault(key, given)
            if there.value != given.value:
                raise OptionError(
                    f"`{key}` is the whole flow's, and two streams give it differently: `{there.value}` and `{given.value}`.",
                    given.position,
                )
    return merged


def options_of_streams(spark: SparkSession, plan: FlowPlan, given: Mapping[Level, Mapping[str, ValueText]]) -> dict[str, Options]:
    """What is in force for each stream, by its alias; what it has of its own wins at its level."""
    return {source.alias: resolve_levels(spark, with_own(given, source.options)) for source in plan.graph.streams}
