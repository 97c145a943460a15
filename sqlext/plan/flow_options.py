"""The options of a flow, resolved once: those of the whole flow, and those of each of its streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlext.errors import OptionError
from sqlext.options import (
    CHECKPOINT_INTERVAL_DURING_BACKLOG,
    PER_SOURCE,
    DurationParser,
    Level,
    LevelTexts,
    Options,
    ValueText,
    resolve,
    with_own,
)
from sqlext.plan.flow_spec import FlowSpec, levels_of
from sqlext.plan.job_graph import FlowPlan, Source
from sqlext.quoting import fold


@dataclass(frozen=True)
class FlowOptions:
    """The options in force for a flow.

    Attributes:
        given: the texts they were resolved from, by level and key.
        own: for each stream, in the plan's order, the texts that are its alone.
        flow: the whole flow's.
        streams: each stream's, by its alias as `quoting.fold` gives it.
        has_hybrids: whether the flow reads a hybrid source, which begins in backlog.
    """

    given: LevelTexts
    own: tuple[LevelTexts, ...]
    flow: Options
    streams: Mapping[str, Options]
    has_hybrids: bool

    @property
    def may_be_in_backlog(self) -> bool:
        """Whether micro-batches grow while a source of the flow is in backlog (FLIP-309)."""
        return self.has_hybrids or any(each[CHECKPOINT_INTERVAL_DURING_BACKLOG] is not None for each in self.streams.values())

    @classmethod
    def of_plan(cls, plan: FlowPlan, given: LevelTexts, parse_duration: DurationParser) -> FlowOptions:
        """Resolve the options of a flow that a statement creates.

        Args:
            given: the texts of the table's properties and of the session; the query's hints and WITH clauses are added.

        Raises:
            OptionError: an option is unknown, has no such value, or is given differently by two streams.
        """
        given = {Level.HINT: plan.hints, Level.WITH: _of_all_streams(plan), **given}
        own = [(fold(source.alias), _of_one_stream(source)) for source in plan.graph.streams]
        return cls._resolved(given, own, bool(plan.hybrids), parse_duration)

    @classmethod
    def of_spec(cls, spec: FlowSpec, parse_duration: DurationParser) -> FlowOptions:
        """Resolve the options that a flow's record holds.

        Raises:
            OptionError: an option is unknown, or has no such value.
        """
        own = [(source.alias, levels_of(source.given)) for source in spec.sources]
        return cls._resolved(levels_of(spec.given), own, bool(spec.hybrids), parse_duration)

    @classmethod
    def _resolved(
        cls, given: LevelTexts, own: Sequence[tuple[str, LevelTexts]], has_hybrids: bool, parse_duration: DurationParser
    ) -> FlowOptions:
        streams = {alias: resolve(with_own(given, texts), parse_duration) for alias, texts in own}
        return cls(given, tuple(texts for _, texts in own), resolve(given, parse_duration), streams, has_hybrids)


def _of_one_stream(source: Source) -> LevelTexts:
    return {level: {k: text for k, text in texts.items() if k in PER_SOURCE} for level, texts in source.options.items()}


def _of_all_streams(plan: FlowPlan) -> dict[str, ValueText]:
    """Return the WITH options of the streams that are the whole flow's; they must not differ."""
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
