"""The options: key, type, default, bounds and meaning of each, in one place. Keys are those of the FLIPs.

An option can be given at several levels (`Level`). `resolve` takes the value of the highest level and checks all levels, so that
a mistake is an error even where a higher level hides it. To add an option, add its constant to the table below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Generic, Literal, TypeVar, cast

from sqlext.errors import OptionError, Position, did_you_mean

T = TypeVar("T")
DurationParser = Callable[[str], timedelta]  # raises ValueError with a reason

CONF_PREFIX = "spark.sqlext."
HOME_KEY = "spark.sqlext.home"  # a plain Spark conf: where sqlext keeps its files does not depend on a statement
CONNECTORS_KEY = "spark.sqlext.connectors"  # also a plain Spark conf: the class path is fixed before Spark starts
LOG_FORMAT_KEY = "spark.sqlext.log.format"  # of the log that sqlext keeps of its own processes, begun before Spark starts
LOG_FORMATS = ("text", "json")
DOWNSTREAM = "DOWNSTREAM"
"""The lag of what is brought up to date when something that reads it needs it."""
_FLUSH_SHARE = 0.7
"""The part of a target lag after which a flow flushes: the flush itself takes time, and so does the micro-batch before it."""
_UNASKED_SECONDS = 600.0
"""The interval between flushes of a flow with target lag DOWNSTREAM, unless something that reads it asks for one."""
_SIZE = re.compile(r"(\d+)\s*(?:b|([kmgt])(?:i?b)?)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Option(Generic[T]):
    """One option.

    Attributes:
        key: the name that users write, in any case.
        kind: the type of the value: durations become `timedelta`, as does a lag that is no `DOWNSTREAM`; sizes become a number of
            bytes (1 kB is 1024).
        default: the value when none is given. Only an option whose default is None accepts `null`.
        flip: the number of the Flink proposal that the option comes from; None: it is sqlext's own.
        doc: the meaning, as a phrase.
        shown: the default as a user would write it, where Python writes it differently.
        null_means: the meaning of `null`.
        aliases: other keys of the same option.
        choices: the words of a `choice`, in any case.
        minimum: the lowest value allowed; for durations, None means 0.
    """

    key: str
    kind: Literal["duration", "lag", "boolean", "integer", "size", "choice", "string"]
    default: T
    flip: int | None
    doc: str
    shown: str = ""
    null_means: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: T | None = None

    @property
    def default_text(self) -> str:
        """The default as a user would write it, for example `3 min`, `true` or `null`."""
        text = self.shown or str(self.default)
        return {"None": "null", "True": "true", "False": "false"}.get(text, text)

    @property
    def allowed(self) -> str:
        """The values that are allowed, for error messages."""
        bound, zero = ("longer than 0", "") if self.minimum else ("of 0 or more", ", `0`")
        text = {
            "duration": f"a duration {bound}, for example `2 min`, `INTERVAL 2 MINUTES`, `PT2M`{zero}",
            "lag": f"a duration longer than 0, for example `10 minutes`, or `{DOWNSTREAM}`",
            "boolean": "`true` or `false`",
            "integer": f"a whole number of at least {self.minimum}, for example `{self.default_text}`",
            "size": "a number of bytes, for example `1 MB`, `512kb`, `4096`",
            "choice": " or ".join(f"`{word}`" for word in self.choices),
            "string": "any text",
        }[self.kind]
        return f"{text}; or `null`: {self.null_means}" if self.default is None else text


# fmt: off
FLUSH_MAX_INTERVAL: Option[timedelta | None] = Option(
    "execution.flush.max-interval", "duration", None, 365, "the longest wall-clock time between two flushes",
    null_means="no buffering, one commit per micro-batch", minimum=timedelta.resolution)
TARGET_LAG: Option[timedelta | str | None] = Option(
    "target-lag", "lag", None, None, "how old the table's content may be, against the first sources that it is made of",
    null_means="its own intervals alone decide", minimum=timedelta.resolution)
FLUSH_MEMORY_BUFFER_ONLY = Option(
    "execution.flush.memory-buffer-only", "boolean", False, 365, "buffer in executor memory only; also flush when full",
    aliases=("execution.flush.cache-only",))  # the key in FLIP-365's JavaDoc
CACHE_MAX_ENTRIES = Option(
    "state.backend.cache.max-entries-num", "integer", 1_000_000, 365, minimum=1,
    doc="the number of entries (keys) at which the buffer is full")
STATE_BACKEND = Option(
    "state.backend.type", "choice", "auto", 365, choices=("rocksdb", "delta", "auto"),
    doc="where an aggregate's state lives: in Spark's state store (rocksdb), in a Delta table, the maintained table itself where "
    "possible (delta), or where sqlext chooses (auto)")
STATE_TTL: Option[timedelta | None] = Option(
    "table.exec.state.ttl", "duration", None, None, null_means="state is kept for ever", minimum=timedelta.resolution,
    doc="how long a group of an aggregate keeps its state, at least, after the last micro-batch with a row for it")
EXPIRED_ROWS = Option(
    "table.exec.state.ttl.expired-rows", "choice", "keep", None, choices=("keep", "delete"),
    doc="what becomes of the table's row of a group whose state has ended: it stays and is final, and later rows of its key are "
    "dropped and counted (keep); or it is deleted, and a later row of its key begins a new group (delete)")
TOMBSTONE_RETENTION: Option[timedelta | None] = Option(
    "auto-cdc.tombstone-retention", "duration", None, None, null_means="deletions are kept for ever",
    minimum=timedelta.resolution,
    doc="how long AUTO CDC keeps a deletion, at least, after the last micro-batch with a change of its key; an older change that "
    "comes later brings the row back")
SORTED_SHUFFLES = Option(
    "execution.sorted-shuffles.enabled", "boolean", True, 140,
    doc="whether bounded stages sort their input by key; false: they use Spark's own choice, a hash aggregate")
RUNTIME_MODE = Option(
    "execution.runtime-mode", "choice", "STREAMING", 140, choices=("STREAMING", "BATCH"),
    doc="BATCH: the flow reads its sources as bounded, sorted input, and ends")
CHECKPOINT_INTERVAL: Option[timedelta | None] = Option(
    "execution.checkpointing.interval", "duration", None, 309, null_means="as data arrives",
    doc="time between micro-batches in the live phase")
CHECKPOINT_INTERVAL_DURING_BACKLOG: Option[timedelta | None] = Option(
    "execution.checkpointing.interval-during-backlog", "duration", None, 309, null_means="the base interval",
    doc="the interval while any source reports backlog; 0: no checkpoint during backlog; otherwise at least the base interval")
BACKLOG_LAG_THRESHOLD: Option[timedelta | None] = Option(
    "backlog.lag-threshold", "duration", None, 309, null_means="lag alone does not count as backlog",
    doc="a source is in backlog while its watermark, or its oldest unread record, is older than this")
JOB_RECOVERY = Option(
    "execution.batch.job-recovery.enabled", "boolean", False, 383, "whether a bounded job resumes after the loss of its driver")
JOB_EVENT_WRITE_BUFFER = Option(
    "job-event.store.write-buffer.size", "size", 1024**2, 383, shown="1 MB",
    doc="the size of the buffer for job events; a full buffer is written")
JOB_EVENT_FLUSH_INTERVAL = Option(
    "job-event.store.write-buffer.flush-interval", "duration", timedelta(seconds=1), 383, shown="1 s",
    doc="the longest time before job events are written")
SNAPSHOT_MIN_PAUSE = Option(
    "execution.batch.job-recovery.snapshot.min-pause", "duration", timedelta(minutes=3), 383, shown="3 min",
    doc="the shortest pause between coordinator snapshots", aliases=("operator-coordinator-snapshot.min-pause",
        "execution.batch.job-recovery.operator-coordinator-snapshot.min-pause"))  # the key in FLIP-383's text
PREVIOUS_WORKER_TIMEOUT = Option(
    "execution.batch.job-recovery.previous-worker.recovery.timeout", "duration", timedelta(seconds=30), 383,
    shown="30 s", doc="how long a resuming driver waits for the previous driver's lease to expire")
JOB_RETENTION = Option(
    "execution.batch.job-recovery.retention", "duration", timedelta(0), 383, shown="0 s",
    doc="how long the events and intermediate tables of a finished job are kept")
SCHEMA_EVOLUTION = Option(
    "schema-evolution", "choice", "none", None, choices=("none", "add columns"),
    doc="what a flow that appends `SELECT *` does when its source gains a column: it fails with a message ([files](files.md): "
    "it leaves the column out), or adds the column to its table")
# fmt: on

OPTIONS: Mapping[str, Option[Any]] = {each.key: each for each in list(vars().values()) if isinstance(each, Option)}
_BY_NAME = {name: each for each in OPTIONS.values() for name in (each.key, *each.aliases)}
OF_JOBS = frozenset(
    each.key
    for each in (
        SORTED_SHUFFLES,
        JOB_RECOVERY,
        JOB_EVENT_WRITE_BUFFER,
        JOB_EVENT_FLUSH_INTERVAL,
        SNAPSHOT_MIN_PAUSE,
        PREVIOUS_WORKER_TIMEOUT,
        JOB_RETENTION,
    )
)
"""The keys of the options that decide how a query that ends runs."""
_NAMESPACES = (
    "auto-cdc.",
    "execution.",
    "state.backend.",
    "backlog.",
    "job-event.",
    "operator-coordinator-snapshot.",
    "schema-evolution",
    "table.exec.state.",
    "target-lag",
)


@dataclass(frozen=True)
class HintSpec:
    """A hint that sets an option for the whole flow or, if `per_source`, for the source that its first argument names."""

    name: str
    option: Option[Any]
    per_source: bool


FLUSH_INTERVAL = HintSpec("FLUSH_INTERVAL", FLUSH_MAX_INTERVAL, per_source=False)
BACKLOG_INTERVAL = HintSpec("BACKLOG_INTERVAL", CHECKPOINT_INTERVAL_DURING_BACKLOG, per_source=True)
BACKLOG_THRESHOLD = HintSpec("BACKLOG_THRESHOLD", BACKLOG_LAG_THRESHOLD, per_source=True)
STATE_TTL_HINT = HintSpec("STATE_TTL", STATE_TTL, per_source=True)
PER_SOURCE = frozenset((CHECKPOINT_INTERVAL_DURING_BACKLOG.key, BACKLOG_LAG_THRESHOLD.key, STATE_TTL.key))
"""The keys of the options that a WITH clause or a hint sets for one stream, not for the whole flow."""
HINTS: Mapping[str, HintSpec] = {
    each.name: each for each in (FLUSH_INTERVAL, BACKLOG_INTERVAL, BACKLOG_THRESHOLD, STATE_TTL_HINT)
}


class Level(Enum):
    """The places where a value can be given, highest precedence first; `level.value` is the word for messages."""

    HINT = "hint"
    WITH = "WITH clause"
    PROPERTY = "table property"
    SESSION = "SET"
    CONF = "SparkConf"
    DEFAULT = "default"


@dataclass(frozen=True)
class ValueText:
    """The text of a value; `position` is its place in SQL, None when it was not given in SQL."""

    value: str
    position: Position | None = None


LevelTexts = dict[Level, Mapping[str, ValueText]]


@dataclass(frozen=True)
class Setting:
    """A value that was given at some level; `name` is its name in messages, for example "`FLUSH_INTERVAL` (hint)"."""

    value: Any
    given: ValueText
    level: Level
    name: str


@dataclass(frozen=True)
class Options:
    """All options, resolved: `options[FLUSH_MAX_INTERVAL]` is the value in force.

    Attributes:
        settings: all values given, by level and key.
    """

    settings: Mapping[Level, Mapping[str, Setting]]

    def __post_init__(self) -> None:
        """Check that the interval during backlog is 0 (no checkpoint) or not shorter than the base interval (FLIP-309)."""
        base, backlog = self.setting(CHECKPOINT_INTERVAL), self.setting(CHECKPOINT_INTERVAL_DURING_BACKLOG)
        if base and backlog and base.value and backlog.value and backlog.value < base.value:
            least, place, base_place = base.given.value, backlog.given.position, base.given.position
            at = f" at {base_place}" if place and base_place else ""  # the error itself carries one place
            text = f"{backlog.name} is `{backlog.given.value}`, shorter than {base.name}, which is `{least}`{at}."
            advice = f"Give `0` for no checkpoint during backlog, or at least `{least}`."
            raise OptionError(f"{text} {advice}", place or base_place)

    def __getitem__(self, option: Option[T]) -> T:
        return cast(T, won.value) if (won := self.setting(option)) else option.default

    def setting(self, option: Option[Any]) -> Setting | None:
        """Return the setting that decides the value, or None when the default does."""
        found = (self.settings.get(level, {}).get(option.key) for level in Level)
        return next((setting for setting in found if setting), None)

    def level(self, option: Option[Any]) -> Level:
        """Return the level that decides the value."""
        return won.level if (won := self.setting(option)) else Level.DEFAULT

    def raw(self, option: Option[Any]) -> str | None:
        """Return the deciding text as the user wrote it, or None when the default decides."""
        return won.given.value if (won := self.setting(option)) else None

    def given_at(self, level: Level) -> Mapping[str, ValueText]:
        """Return the values given at one level, by key (aliases resolved), including those that a higher level overrides."""
        return {key: setting.given for key, setting in self.settings.get(level, {}).items()}

    def as_rows(self) -> list[tuple[str, str, str]]:
        """Return (key, value as written, level) of every option that was given, in the order of `OPTIONS`."""
        won = ((key, self.setting(each)) for key, each in OPTIONS.items())
        return [(key, setting.given.value, setting.level.value) for key, setting in won if setting]

    def warnings(self) -> tuple[str, ...]:
        """Return a message for each setting that is valid but has no effect, or an effect that nobody wants."""
        found: list[str] = []
        memory_only, threshold = self.setting(FLUSH_MEMORY_BUFFER_ONLY), self.setting(BACKLOG_LAG_THRESHOLD)
        if memory_only and memory_only.value and not self[FLUSH_MAX_INTERVAL]:
            found.append(f"{memory_only.name} buffers nothing while `{FLUSH_MAX_INTERVAL.key}` is null: set that as well.")
        if threshold and threshold.value is not None:
            base = self[CHECKPOINT_INTERVAL]
            if self[CHECKPOINT_INTERVAL_DURING_BACKLOG] is None:
                found.append(
                    f"{threshold.name} has no effect while `{CHECKPOINT_INTERVAL_DURING_BACKLOG.key}` is null: set that as well."
                )
            elif base and threshold.value <= base:
                found.append(
                    f"{threshold.name} is not longer than `{CHECKPOINT_INTERVAL.key}`: a record that only waits for the next "
                    "micro-batch counts as backlog."
                )
        return tuple(found)


def is_option_key(key: str) -> bool:
    """Return whether a key is in one of our namespaces, where an unknown key is an error."""
    return key.lower().startswith(_NAMESPACES)


def option_named(key: str) -> Option[Any] | None:
    """Return the option of a key or alias, in any case; None: there is none."""
    return _BY_NAME.get(key.lower())


def option(key: str, position: Position | None = None) -> Option[Any]:
    """Return the option of a key or alias, in any case.

    Raises:
        OptionError: there is none; the message names the nearest key.
    """
    if found := option_named(key):
        return found
    advice = did_you_mean(key, _BY_NAME) or f" Use one of {', '.join(OPTIONS)}."
    raise OptionError(f"sqlext has no option `{key}`.{advice}", position)


def parse(option: Option[T], given: ValueText, parse_duration: DurationParser, name: str | None = None) -> T:
    """Return the value that a text gives.

    Args:
        name: the option's name in messages; None: its key.

    Raises:
        OptionError: the text is of another type, or the value is out of range.
    """
    text = given.value.strip()
    if option.default is None and text.lower() in ("", "null"):
        return option.default
    try:
        return cast(T, _read(option, text, parse_duration))
    except ValueError as reason:
        because = f" ({reason})" if str(reason) else ""
        message = f"{name or f'`{option.key}`'} cannot be `{given.value}`{because}. Give {option.allowed}."
        raise OptionError(message, given.position) from reason


def resolve(given: Mapping[Level, Mapping[str, ValueText]], parse_duration: DurationParser) -> Options:
    """Read and check the values of all levels.

    Args:
        given: the values by level and key; the keys of `Level.CONF` lack the prefix `spark.sqlext.`.

    Raises:
        OptionError: a key is unknown, a value is not valid, or two values contradict each other.
    """
    assert Level.DEFAULT not in given, "defaults are in OPTIONS"
    return _with_flush_interval(Options({level: _read_level(level, texts, parse_duration) for level, texts in given.items()}))


def _with_flush_interval(options: Options) -> Options:
    """Return options with the interval between flushes that follows from a target lag.

    Raises:
        OptionError: both are given.
    """
    lag = options.setting(TARGET_LAG)
    if lag is None or lag.value is None:
        return options
    if (given := options.setting(FLUSH_MAX_INTERVAL)) is not None and given.value:
        raise OptionError(
            f"{lag.name} says when the table is brought up to date, and so does {given.name}. Give one of them.",
            lag.given.position or given.given.position,
        )
    interval = timedelta(seconds=_UNASKED_SECONDS) if lag.value == DOWNSTREAM else lag.value * _FLUSH_SHARE
    text = ValueText(f"{interval.total_seconds():g} seconds", lag.given.position)
    made = Setting(interval, text, lag.level, f"`{FLUSH_MAX_INTERVAL.key}`, by {lag.name}")
    return Options({**options.settings, lag.level: {**options.settings[lag.level], FLUSH_MAX_INTERVAL.key: made}})


def with_own(given: Mapping[Level, Mapping[str, ValueText]], own: Mapping[Level, Mapping[str, ValueText]]) -> LevelTexts:
    """Return a flow's options with those of one of its streams; at the same level, the stream's own win."""
    return {**given, **{level: {**given.get(level, {}), **texts} for level, texts in own.items()}}


def texts_by_level(given: Mapping[Level, Mapping[str, ValueText]]) -> dict[str, dict[str, str]]:
    """Return the values of all levels as texts, for a record; empty levels are left out."""
    return {level.name: {key: each.value for key, each in values.items()} for level, values in given.items() if values}


def reference() -> str:
    """Return all options as a Markdown table, for the documentation."""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, each in OPTIONS.items():
        kind = each.allowed if each.kind == "choice" else each.kind
        null = f"; null: {each.null_means}" if each.null_means else ""
        also = "".join(f"; also `{alias}`" for alias in each.aliases)
        flip = f" (FLIP-{each.flip})" if each.flip else ""
        lines.append(f"| `{key}` | {kind} | `{each.default_text}` | {each.doc}{null}{also}{flip} |")
    return "\n".join(lines) + "\n"


def _read(option: Option[Any], text: str, parse_duration: DurationParser) -> Any:
    """Return the value in its Python type.

    Raises:
        ValueError: the text is not a valid value; has a message only when `parse_duration` gave a reason.
    """
    value: Any = None
    match option.kind:
        case "duration":
            value = timedelta(0) if text == "0" else parse_duration(text)  # Spark's own parser requires a unit
        case "lag":
            value = DOWNSTREAM if text.upper() == DOWNSTREAM else parse_duration(text)
        case "boolean":
            value = {"true": True, "false": False}.get(text.lower())
        case "integer":
            value = int(text) if text.isascii() and text.isdigit() else None
        case "size" if found := _SIZE.fullmatch(text):
            value = int(found[1]) * 1024 ** " kmgt".index((found[2] or " ").lower())
        case "choice":
            value = {word.lower(): word for word in option.choices}.get(text.lower())
        case "string":
            value = text
    least = option.minimum or (timedelta(0) if option.kind == "duration" else None)
    if value is None or (least is not None and value != DOWNSTREAM and value < least):
        raise ValueError
    return value


def _read_level(level: Level, texts: Mapping[str, ValueText], parse_duration: DurationParser) -> Mapping[str, Setting]:
    """Return the settings of one level, by key; an option may be given under two keys if the values agree."""
    hints = {hint.option.key: hint.name for hint in HINTS.values()} if level is Level.HINT else {}
    prefix = CONF_PREFIX if level is Level.CONF else ""
    settings: dict[str, Setting] = {}
    for key, given in texts.items():
        found = option(key, given.position)
        name = f"`{prefix}{hints.get(found.key, key)}` ({level.value})"
        new = Setting(parse(found, given, parse_duration, name), given, level, name)
        old = settings.setdefault(found.key, new)
        if old.value != new.value:
            both = f"{old.name} is `{old.given.value}`, but {new.name}, the same option, is `{given.value}`"
            raise OptionError(f"{both}. Keep one of them.", given.position)
    return settings
