"""Options: what each text means, who wins, and what is refused with which words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies

from sqlext import options as module
from sqlext.commands.option_levels import levels_in
from sqlext.errors import OptionError, Position
from sqlext.options import (
    BACKLOG_LAG_THRESHOLD,
    CACHE_MAX_ENTRIES,
    CHECKPOINT_INTERVAL,
    CHECKPOINT_INTERVAL_DURING_BACKLOG,
    FLUSH_MAX_INTERVAL,
    FLUSH_MEMORY_BUFFER_ONLY,
    HINTS,
    HOME_KEY,
    JOB_EVENT_FLUSH_INTERVAL,
    JOB_EVENT_WRITE_BUFFER,
    OPTIONS,
    PREVIOUS_WORKER_TIMEOUT,
    RUNTIME_MODE,
    SNAPSHOT_MIN_PAUSE,
    SORTED_SHUFFLES,
    STATE_BACKEND,
    STATE_TTL,
    Level,
    Option,
    Options,
    ValueText,
    is_option_key,
    option,
    parse,
    reference,
    resolve,
)

SECONDS = {"s": 1, "second": 1, "seconds": 1, "min": 60, "minute": 60, "minutes": 60}


def duration(text: str) -> timedelta:
    """Reads `2 min`, `INTERVAL 2 MINUTES` and `-1 second`, and no plain `0`, as Spark's parser does not."""
    found = re.fullmatch(r"(?:interval )?(-?\d+) (\w+)", text.lower())
    if not found or found[2] not in SECONDS:
        raise ValueError(f"no duration in {text!r}")
    return timedelta(seconds=int(found[1]) * SECONDS[found[2]])


def resolved(levels: Mapping[Level, Mapping[Option[Any], str]]) -> Options:
    """`resolve` with options and plain texts."""
    texts = {level: {each.key: ValueText(text) for each, text in pairs.items()} for level, pairs in levels.items()}
    return resolve(texts, duration)


def refusal(levels: Mapping[Level, Mapping[str, ValueText]]) -> OptionError:
    with pytest.raises(OptionError) as caught:
        resolve(levels, duration)
    return caught.value


# The table


def test_every_default_is_the_one_documented() -> None:
    assert {key: each.default for key, each in OPTIONS.items()} == {
        "execution.flush.max-interval": None,
        "execution.flush.memory-buffer-only": False,
        "state.backend.cache.max-entries-num": 1_000_000,
        "state.backend.type": "auto",
        "execution.sorted-shuffles.enabled": True,
        "execution.runtime-mode": "STREAMING",
        "execution.checkpointing.interval": None,
        "execution.checkpointing.interval-during-backlog": None,
        "backlog.lag-threshold": None,
        "execution.batch.job-recovery.enabled": False,
        "job-event.store.write-buffer.size": 1_048_576,
        "job-event.store.write-buffer.flush-interval": timedelta(seconds=1),
        "execution.batch.job-recovery.snapshot.min-pause": timedelta(minutes=3),
        "execution.batch.job-recovery.previous-worker.recovery.timeout": timedelta(seconds=30),
        "execution.batch.job-recovery.retention": timedelta(0),
        "schema-evolution": "none",
        "table.exec.state.ttl": None,
        "table.exec.state.ttl.expired-rows": "keep",
        "auto-cdc.tombstone-retention": None,
        "target-lag": None,
    }


@pytest.mark.parametrize("each", OPTIONS.values(), ids=OPTIONS)
def test_the_default_as_shown_reads_back_as_the_default(each: Option[Any]) -> None:
    assert parse(each, ValueText(each.default_text), duration) == each.default


@pytest.mark.parametrize("each", OPTIONS.values(), ids=OPTIONS)
def test_every_name_of_an_option_lies_in_our_namespaces_and_is_its_own(each: Option[Any]) -> None:
    for name in (each.key, *each.aliases):
        assert is_option_key(name)
        assert option(name) is each


@pytest.mark.parametrize("each", OPTIONS.values(), ids=OPTIONS)
def test_only_an_option_without_a_default_says_what_null_means(each: Option[Any]) -> None:
    assert bool(each.null_means) == (each.default is None)


def test_home_is_a_spark_conf_and_no_option() -> None:
    assert HOME_KEY == "spark.sqlext.home"
    assert HOME_KEY.removeprefix(module.CONF_PREFIX) not in OPTIONS


def test_the_reference_has_a_row_of_four_cells_for_every_option() -> None:
    heading, rule, *rows = reference().splitlines()
    assert heading == "| key | type | default | meaning |"
    assert rule == "|---|---|---|---|"
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[0].strip("`") for row in cells] == list(OPTIONS)
    assert {len(row) for row in cells} == {4}


def test_the_reference_shows_defaults_aliases_null_and_the_proposal() -> None:
    text = reference()
    assert "| duration | `3 min` | the shortest pause between coordinator snapshots; also `operator-coordinator-snapshot" in text
    assert "| size | `1 MB` |" in text
    assert "| `STREAMING` or `BATCH` | `STREAMING` |" in text
    assert "null: no buffering, one commit per micro-batch (FLIP-365) |" in text


# Keys


@pytest.mark.parametrize("key", ["execution.flush.x", "EXECUTION.anything", "state.backend.x", "Backlog.x", "job-event.x"])
def test_a_key_in_our_namespaces_is_ours_whatever_its_case(key: str) -> None:
    assert is_option_key(key)


@pytest.mark.parametrize("key", ["delta.appendOnly", "spark.sql.shuffle.partitions", "backlog", "executions.flush.x", ""])
def test_a_key_outside_our_namespaces_is_not_ours(key: str) -> None:
    assert not is_option_key(key)


def test_keys_match_whatever_their_case() -> None:
    assert option("Execution.Flush.MAX-interval") is FLUSH_MAX_INTERVAL


@pytest.mark.parametrize(
    ("alias", "main"),
    [
        ("execution.flush.cache-only", FLUSH_MEMORY_BUFFER_ONLY),
        ("operator-coordinator-snapshot.min-pause", SNAPSHOT_MIN_PAUSE),
        ("execution.batch.job-recovery.operator-coordinator-snapshot.min-pause", SNAPSHOT_MIN_PAUSE),
    ],
)
def test_an_alias_is_the_option_itself(alias: str, main: Option[Any]) -> None:
    assert option(alias.upper()) is main


def test_an_unknown_key_is_refused_with_the_nearest_and_its_place() -> None:
    place = Position(3, 7, 40, 70)
    with pytest.raises(OptionError, match=r"`execution\.flush\.max-intervall`.* Did you mean `execution\.flush\.max-int") as e:
        option("execution.flush.max-intervall", place)
    assert e.value.position == place


def test_an_unknown_key_near_nothing_is_refused_with_the_whole_list() -> None:
    with pytest.raises(OptionError, match=r"`zzz`. Use one of execution\.flush\.max-interval, "):
        option("zzz")


# Values


@pytest.mark.parametrize("text", ["2 min", " 2 minutes ", "INTERVAL 2 MINUTES", "120 s"])
def test_a_duration_is_what_the_parser_reads(text: str) -> None:
    assert parse(FLUSH_MAX_INTERVAL, ValueText(text), duration) == timedelta(minutes=2)


def test_a_plain_zero_is_a_duration() -> None:
    assert parse(CHECKPOINT_INTERVAL_DURING_BACKLOG, ValueText("0"), duration) == timedelta(0)


@pytest.mark.parametrize("text", ["null", "NULL", " Null ", "", "  "])
def test_null_and_nothing_mean_none_where_the_default_is_none(text: str) -> None:
    assert parse(FLUSH_MAX_INTERVAL, ValueText(text), duration) is None


@pytest.mark.parametrize("text", ["null", ""])
@pytest.mark.parametrize("each", [each for each in OPTIONS.values() if each.default is not None], ids=lambda o: o.key)
def test_null_and_nothing_are_refused_where_there_is_a_default(each: Option[Any], text: str) -> None:
    with pytest.raises(OptionError, match=f"`{each.key}` cannot be `{text}`"):
        parse(each, ValueText(text), duration)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("FALSE", False), (" True ", True)])
def test_booleans(text: str, value: bool) -> None:
    assert parse(SORTED_SHUFFLES, ValueText(text), duration) is value


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("10 b", 10),
        ("512kb", 524_288),
        ("1 MB", 1_048_576),
        ("1m", 1_048_576),
        ("2 KiB", 2048),
        ("3 GB", 3_221_225_472),
        ("1 TB", 1_099_511_627_776),
    ],
)
def test_sizes_are_bytes_in_powers_of_1024(text: str, size: int) -> None:
    assert parse(JOB_EVENT_WRITE_BUFFER, ValueText(text), duration) == size


def test_choices_match_whatever_their_case_and_come_back_as_documented() -> None:
    assert parse(RUNTIME_MODE, ValueText("batch"), duration) == "BATCH"
    assert parse(STATE_BACKEND, ValueText("RocksDB"), duration) == "rocksdb"


def test_a_string_is_any_text() -> None:
    free = Option("execution.note", "string", "", 365, "a note")
    assert parse(free, ValueText(" as it is "), duration) == "as it is"


@pytest.mark.parametrize(
    ("each", "text", "allowed"),
    [
        (FLUSH_MAX_INTERVAL, "0", "a duration longer than 0"),
        (FLUSH_MAX_INTERVAL, "-1 second", "a duration longer than 0"),
        (CHECKPOINT_INTERVAL, "-1 second", "a duration of 0 or more"),
        (PREVIOUS_WORKER_TIMEOUT, "soon", "a duration of 0 or more"),
        (SORTED_SHUFFLES, "yes", "`true` or `false`"),
        (CACHE_MAX_ENTRIES, "0", "a whole number of at least 1, for example `1000000`"),
        (CACHE_MAX_ENTRIES, "-5", "a whole number of at least 1"),
        (CACHE_MAX_ENTRIES, "1e6", "a whole number of at least 1"),
        (JOB_EVENT_WRITE_BUFFER, "1.5 MB", "a number of bytes, for example `1 MB`"),
        (JOB_EVENT_WRITE_BUFFER, "10 parsecs", "a number of bytes"),
        (JOB_EVENT_WRITE_BUFFER, "-1", "a number of bytes"),
        (STATE_BACKEND, "hashmap", "`rocksdb` or `delta` or `auto`"),
        (RUNTIME_MODE, "AUTOMATIC", "`STREAMING` or `BATCH`"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(each: Option[Any], text: str, allowed: str) -> None:
    place = Position(1, 9, 8, 12)
    with pytest.raises(OptionError) as caught:
        parse(each, ValueText(text, place), duration)
    assert f"`{each.key}` cannot be `{text}`" in caught.value.message
    assert f"Give {allowed}" in caught.value.message
    assert caught.value.position == place


def test_a_bad_duration_is_refused_with_the_parsers_reason_and_examples() -> None:
    with pytest.raises(OptionError) as caught:
        parse(PREVIOUS_WORKER_TIMEOUT, ValueText("soon"), duration)
    assert str(caught.value) == (
        "`execution.batch.job-recovery.previous-worker.recovery.timeout` cannot be `soon` (no duration in 'soon'). "
        "Give a duration of 0 or more, for example `2 min`, `INTERVAL 2 MINUTES`, `PT2M`, `0`."
    )


def test_a_flush_interval_of_zero_is_refused_with_the_way_to_switch_buffering_off() -> None:
    with pytest.raises(OptionError, match=r"longer than 0, .*`PT2M`; or `null`: no buffering, one commit per micro-batch"):
        parse(FLUSH_MAX_INTERVAL, ValueText("0"), duration)


# Precedence


def test_with_nothing_given_everything_is_default() -> None:
    options = resolve({}, duration)
    assert all(options[each] == each.default for each in OPTIONS.values())
    assert options.level(FLUSH_MAX_INTERVAL) is Level.DEFAULT
    assert options.raw(FLUSH_MAX_INTERVAL) is None
    assert options.as_rows() == []
    assert options.warnings() == ()


def test_the_levels_and_their_words_in_order_of_precedence() -> None:
    assert [level.value for level in Level] == ["hint", "WITH clause", "table property", "SET", "SparkConf", "default"]


GIVABLE = [level for level in Level if level is not Level.DEFAULT]
COUNTS = strategies.dictionaries(strategies.sampled_from(GIVABLE), strategies.integers(1, 10**9), min_size=1)


@given(COUNTS)
def test_the_highest_level_given_wins(counts: dict[Level, int]) -> None:
    options = resolved({level: {CACHE_MAX_ENTRIES: str(count)} for level, count in counts.items()})
    highest = next(level for level in GIVABLE if level in counts)
    assert options[CACHE_MAX_ENTRIES] == counts[highest]
    assert options.level(CACHE_MAX_ENTRIES) is highest
    assert options.raw(CACHE_MAX_ENTRIES) == str(counts[highest])


def test_null_at_a_higher_level_wins_over_a_value_below() -> None:
    options = resolved({Level.PROPERTY: {FLUSH_MAX_INTERVAL: "null"}, Level.SESSION: {FLUSH_MAX_INTERVAL: "2 min"}})
    assert options[FLUSH_MAX_INTERVAL] is None
    assert options.level(FLUSH_MAX_INTERVAL) is Level.PROPERTY


def test_rows_show_what_was_given_as_written_and_where() -> None:
    options = resolved(
        {
            Level.CONF: {SNAPSHOT_MIN_PAUSE: "1 min"},
            Level.SESSION: {FLUSH_MAX_INTERVAL: "1 min"},
            Level.HINT: {FLUSH_MAX_INTERVAL: "INTERVAL 2 MINUTES"},
        }
    )
    assert options.as_rows() == [
        ("execution.flush.max-interval", "INTERVAL 2 MINUTES", "hint"),
        ("execution.batch.job-recovery.snapshot.min-pause", "1 min", "SparkConf"),
    ]


def test_given_at_a_level_is_by_main_key_even_where_it_lost() -> None:
    lost = ValueText("true", Position(1, 2, 1, 5))
    options = resolve(
        {
            Level.HINT: {"execution.flush.memory-buffer-only": ValueText("false")},
            Level.PROPERTY: {"Execution.Flush.Cache-Only": lost},
        },
        duration,
    )
    assert options.given_at(Level.PROPERTY) == {"execution.flush.memory-buffer-only": lost}
    assert options.given_at(Level.SESSION) == {}


# Refused together


def test_a_mistake_is_refused_even_where_a_higher_level_hides_it() -> None:
    bad, good = ValueText("soon"), ValueText("2 min")
    key = FLUSH_MAX_INTERVAL.key
    assert "`execution.flush.max-interval` (SET) cannot be `soon`" in str(
        refusal({Level.HINT: {key: good}, Level.SESSION: {key: bad}})
    )


def test_a_message_names_a_hint_by_its_own_name_and_a_conf_with_its_prefix() -> None:
    bad = {FLUSH_MAX_INTERVAL.key: ValueText("soon")}
    assert str(refusal({Level.HINT: bad})).startswith("`FLUSH_INTERVAL` (hint) cannot be `soon`")
    assert str(refusal({Level.CONF: bad})).startswith("`spark.sqlext.execution.flush.max-interval` (SparkConf) cannot")


def test_an_unknown_key_is_refused_wherever_it_is_given() -> None:
    place = Position(2, 5, 30, 50)
    error = refusal({Level.WITH: {"backlog.lag-treshold": ValueText("5 min", place)}})
    assert "Did you mean `backlog.lag-threshold`?" in error.message
    assert error.position == place


def test_a_key_and_its_alias_that_disagree_are_refused_with_both_names() -> None:
    place = Position(2, 5, 30, 50)
    error = refusal(
        {
            Level.PROPERTY: {
                "execution.flush.memory-buffer-only": ValueText("true"),
                "execution.flush.cache-only": ValueText("false", place),
            }
        }
    )
    assert error.message == (
        "`execution.flush.memory-buffer-only` (table property) is `true`, but `execution.flush.cache-only` "
        "(table property), the same option, is `false`. Keep one of them."
    )
    assert error.position == place


def test_a_key_and_its_alias_may_say_the_same_in_other_words() -> None:
    same = {SNAPSHOT_MIN_PAUSE.key: ValueText("2 min"), SNAPSHOT_MIN_PAUSE.aliases[0]: ValueText("120 s")}
    assert resolve({Level.SESSION: same}, duration)[SNAPSHOT_MIN_PAUSE] == timedelta(minutes=2)


def test_a_key_and_its_alias_at_two_levels_follow_precedence() -> None:
    options = resolve(
        {
            Level.WITH: {"execution.flush.cache-only": ValueText("true")},
            Level.SESSION: {"execution.flush.memory-buffer-only": ValueText("false")},
        },
        duration,
    )
    assert options[FLUSH_MEMORY_BUFFER_ONLY] is True


@pytest.mark.parametrize("text", ["0", "30 s", "30 min", "null"])
def test_the_interval_during_backlog_may_be_zero_null_or_at_least_the_base_interval(text: str) -> None:
    resolved({Level.SESSION: {CHECKPOINT_INTERVAL: "30 s", CHECKPOINT_INTERVAL_DURING_BACKLOG: text}})


def test_without_a_base_interval_any_interval_during_backlog_is_fine() -> None:
    options = resolved({Level.SESSION: {CHECKPOINT_INTERVAL_DURING_BACKLOG: "1 s"}})
    assert options[CHECKPOINT_INTERVAL_DURING_BACKLOG] == timedelta(seconds=1)


def test_an_interval_during_backlog_below_the_base_interval_is_refused_with_both_values_and_places() -> None:
    error = refusal(
        {
            Level.HINT: {CHECKPOINT_INTERVAL_DURING_BACKLOG.key: ValueText("10 s", Position(4, 12, 90, 96))},
            Level.PROPERTY: {CHECKPOINT_INTERVAL.key: ValueText("30 s", Position(2, 3, 20, 26))},
        }
    )
    assert str(error) == (
        "`BACKLOG_INTERVAL` (hint) is `10 s`, shorter than `execution.checkpointing.interval` (table property), "
        "which is `30 s` at line 2, column 3. Give `0` for no checkpoint during backlog, or at least `30 s`. "
        "(line 4, column 12)"
    )


def test_the_base_intervals_place_stands_in_when_the_other_has_none() -> None:
    base = Position(2, 3, 20, 26)
    error = refusal(
        {
            Level.SESSION: {CHECKPOINT_INTERVAL_DURING_BACKLOG.key: ValueText("10 s")},
            Level.PROPERTY: {CHECKPOINT_INTERVAL.key: ValueText("30 s", base)},
        }
    )
    assert error.position == base
    assert str(error).count(str(base)) == 1


# Warnings and hints


def test_memory_buffer_only_without_a_flush_interval_is_warned_about() -> None:
    assert resolved({Level.SESSION: {FLUSH_MEMORY_BUFFER_ONLY: "true"}}).warnings() == (
        "`execution.flush.memory-buffer-only` (SET) buffers nothing while `execution.flush.max-interval` is null: "
        "set that as well.",
    )


@pytest.mark.parametrize(
    "session",
    [
        {FLUSH_MEMORY_BUFFER_ONLY: "true", FLUSH_MAX_INTERVAL: "2 min"},
        {FLUSH_MEMORY_BUFFER_ONLY: "false"},
        {JOB_EVENT_FLUSH_INTERVAL: "2 s"},
    ],
    ids=["with an interval", "switched off", "another option"],
)
def test_nothing_to_warn_about(session: dict[Option[Any], str]) -> None:
    assert resolved({Level.SESSION: session}).warnings() == ()


def test_hints_set_these_options_for_the_flow_or_for_one_source() -> None:
    assert {name: (hint.name, hint.option, hint.per_source) for name, hint in HINTS.items()} == {
        "FLUSH_INTERVAL": ("FLUSH_INTERVAL", FLUSH_MAX_INTERVAL, False),
        "BACKLOG_INTERVAL": ("BACKLOG_INTERVAL", CHECKPOINT_INTERVAL_DURING_BACKLOG, True),
        "BACKLOG_THRESHOLD": ("BACKLOG_THRESHOLD", BACKLOG_LAG_THRESHOLD, True),
        "STATE_TTL": ("STATE_TTL", STATE_TTL, True),
    }


# The settings of a session


RUNTIME, MEMORY, ALIAS = "execution.runtime-mode", "execution.flush.memory-buffer-only", "execution.flush.cache-only"
CONF = "spark.sqlext."


@pytest.mark.parametrize(
    ("settings", "application", "of_session", "of_conf"),
    [
        ({RUNTIME: "BATCH", "execution.foo": "1", "spark.app.name": "x"}, {}, {RUNTIME: "BATCH"}, {}),
        ({RUNTIME.upper(): "BATCH"}, {}, {RUNTIME: "BATCH"}, {}),
        ({ALIAS: "true"}, {}, {MEMORY: "true"}, {}),
        ({CONF + ALIAS: "true"}, {CONF + ALIAS: "true"}, {}, {MEMORY: "true"}),
        ({CONF + ALIAS: "true"}, {CONF + ALIAS: "false"}, {MEMORY: "true"}, {}),
        ({CONF + ALIAS: "true", MEMORY: "false"}, {}, {MEMORY: "false"}, {}),
        ({ALIAS: "true", MEMORY: "true"}, {}, {MEMORY: "true"}, {}),
    ],
)
def test_a_setting_may_be_an_alias_in_any_case(
    settings: dict[str, str], application: dict[str, str], of_session: dict[str, str], of_conf: dict[str, str]
) -> None:
    found = levels_in(settings, application)
    assert {key: given.value for key, given in found[Level.SESSION].items()} == of_session
    assert {key: given.value for key, given in found[Level.CONF].items()} == of_conf


@pytest.mark.parametrize(
    ("settings", "application"),
    [
        ({ALIAS: "true", MEMORY: "false"}, {}),
        ({RUNTIME.upper(): "BATCH", RUNTIME: "STREAMING"}, {}),
        ({RUNTIME.upper(): "BATCH", RUNTIME.title(): "STREAMING"}, {}),
        (dict.fromkeys([CONF + MEMORY], "true") | {CONF + ALIAS: "false"}, {CONF + MEMORY: "true", CONF + ALIAS: "false"}),
    ],
)
def test_settings_that_are_one_option_must_agree(settings: dict[str, str], application: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"the same option, is `.*`\. Keep one of them\."):
        resolve(levels_in(settings, application), duration)
