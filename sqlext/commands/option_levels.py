"""The options that a session gives, and the options in force."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from sqlext.options import CONF_PREFIX, OPTIONS, Level, Options, ValueText, option_named, resolve
from sqlext.spark import jvm


def resolve_levels(spark: SparkSession, given: Mapping[Level, Mapping[str, ValueText]]) -> Options:
    """Return the options in force; durations are parsed by Spark."""
    return resolve(given, lambda text: jvm.parse_duration(spark, text))


def session_levels(spark: SparkSession) -> dict[Level, dict[str, ValueText]]:
    """Return the options that SET and SparkConf give; see `levels_in`."""
    return levels_in(jvm.all_settings(spark), jvm.application_settings(spark))


def levels_in(settings: Mapping[str, str], application: Mapping[str, str]) -> dict[Level, dict[str, ValueText]]:
    """Return the options among a session's settings, by level and key.

    A setting may have any case and any alias of its option; Spark keeps it as it was written. Where two that are one option
    differ, both stay, and `resolve` refuses them. A setting with the prefix counts for the session only where none is without.

    Args:
        settings: all settings of the session, those of its application included.
        application: the settings of SparkConf.
    """
    of_session: dict[str, ValueText] = {}
    of_conf: dict[str, ValueText] = {}
    prefixed: dict[str, ValueText] = {}
    read = [(name, _unprefixed(name)) for name in sorted(settings)]
    for name, written in sorted(read, key=lambda each: each[1] not in OPTIONS):  # an option's own key comes first
        if (found := option_named(written)) is None:
            continue
        has_prefix, value = written != name, settings[name]
        is_conf = has_prefix and application.get(name) == value
        level = of_conf if is_conf else prefixed if has_prefix else of_session
        key = found.key if level.get(found.key, ValueText(value)).value == value else written
        level[key] = ValueText(value)
    given = {key: value for key, value in prefixed.items() if not any(_is_one(key, each) for each in of_session)}
    return {Level.SESSION: {**of_session, **given}, Level.CONF: of_conf}


def _unprefixed(name: str) -> str:
    return name[len(CONF_PREFIX) :] if name.lower().startswith(CONF_PREFIX) else name


def _is_one(key: str, other: str) -> bool:
    return option_named(key) is option_named(other)
