"""A flow's record: its JSON comes back whole or is refused, and the events of a flow add up to what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlext.errors import FlowError, NotFoundError
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRecord, FlowState, all_by_end, find, fold, shown_names
from sqlext.options import Level, ValueText
from sqlext.plan.flow_spec import SPEC_VERSION, Column, FlowSpec, StateTtl, StreamSpec, key_columns, levels_of
from sqlext.plan.job_graph import Key, OutputMode

SPEC = FlowSpec(
    id="f-1",
    name="views",
    target=("spark_catalog", "default", "page_views"),
    target_location="file:/data/page_views",
    target_id="0b1c",
    text="CREATE FLOW views AS ..",
    streams=(
        StreamSpec(
            relation="",
            sql="SELECT page, count(*) AS n FROM STREAM events GROUP BY page",
            output_mode=OutputMode.UPDATE,
            key=("page",),
            columns=(Column("page", "page", "STRING"), Column("n", "views", "BIGINT")),
        ),
    ),
    given={"HINT": {"execution.flush.max-interval": "2 min"}},
)

# The record as JSON

TEXTS = st.text(max_size=8)
NAMES = st.lists(TEXTS, max_size=3).map(tuple)
SETTINGS = st.dictionaries(TEXTS, TEXTS, max_size=3)
COLUMNS = st.lists(st.builds(Column, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple)
SPECS = st.builds(
    FlowSpec,
    id=TEXTS,
    name=TEXTS,
    target=NAMES,
    target_location=TEXTS,
    target_id=TEXTS,
    text=TEXTS,
    streams=st.lists(
        st.builds(
            StreamSpec,
            relation=TEXTS,
            sql=TEXTS,
            output_mode=st.sampled_from(OutputMode),
            key=NAMES,
            columns=COLUMNS,
            has_qualifies=st.booleans(),
            durable_because=TEXTS,
            ttl=st.none() | st.builds(StateTtl, TEXTS, st.floats(0.001, 1e9), st.booleans(), st.booleans()),
        ),
        max_size=2,
    ).map(tuple),
    above=TEXTS,
    above_by=COLUMNS,
    columns=COLUMNS,
    not_idempotent_because=TEXTS,
    given=st.dictionaries(st.sampled_from([level.name for level in Level]), SETTINGS, max_size=3),
    catalog=TEXTS,
    database=TEXTS,
    settings=SETTINGS,
    session_bound=NAMES,
    variables=SETTINGS,
)


def test_an_instant_of_earlier_versions_is_one_whatever_the_session_says() -> None:
    columns = (Column("at", "at", "STRUCT<TIMESTAMP: ARRAY<TIMESTAMP>>"), Column("day", "day", "TIMESTAMP_NTZ"))
    spec = replace(SPEC, columns=columns, streams=(replace(SPEC.streams[0], columns=columns),))
    read = FlowSpec.from_json(spec.to_json())
    for found in (read.columns, read.streams[0].columns):
        assert [each.type for each in found] == ["STRUCT<TIMESTAMP: ARRAY<TIMESTAMP_LTZ>>", "TIMESTAMP_NTZ"]


@given(SPECS)
def test_a_spec_comes_back_as_it_was(spec: FlowSpec) -> None:
    assert FlowSpec.from_json(spec.to_json()) == spec


@given(SPECS)
def test_a_spec_is_one_line_of_json_with_a_version(spec: FlowSpec) -> None:
    text = spec.to_json()
    assert "\n" not in text
    assert json.loads(text)["version"] == SPEC_VERSION
    recorded = {"prerequisites": "stages", "text": "statement"}
    assert set(json.loads(text)) == {"version", *(recorded.get(field.name, field.name) for field in fields(FlowSpec))}


def test_what_a_spec_need_not_say_has_a_default() -> None:
    data = json.loads(SPEC.to_json())
    for name in (
        "above",
        "above_by",
        "columns",
        "not_idempotent_because",
        "given",
        "catalog",
        "database",
        "settings",
        "variables",
    ):
        del data[name]
    read = FlowSpec.from_json(json.dumps(data))
    assert (read.catalog, read.database, read.settings, read.given) == ("spark_catalog", "default", {}, {})


@given(st.integers(0, len(SPEC.to_json()) - 1))
def test_a_torn_spec_is_refused(length: int) -> None:
    with pytest.raises(FlowError, match="cannot be read"):
        FlowSpec.from_json(SPEC.to_json()[:length])


def changed(**values: Any) -> str:
    """The JSON of a spec with some values changed; None takes one out."""
    data = {**json.loads(SPEC.to_json()), **values}
    return json.dumps({key: value for key, value in data.items() if value is not None})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "1",
        "[1]",
        '"spec"',
        "{}",
        changed(version=None),
        changed(id=None),
        changed(streams=None),
        changed(output_mode="complete"),
        changed(streams=[{"output": "a"}]),
        changed(columns=3),
        changed(unheard_of=1),
    ],
)
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(FlowError, match="The record of a flow in the registry cannot be read: "):
        FlowSpec.from_json(text)


def test_a_spec_of_another_version_is_refused_with_both() -> None:
    with pytest.raises(FlowError) as caught:
        FlowSpec.from_json(changed(version=7, unheard_of=1))
    message = f"A flow was recorded in version 7 of the registry's format; this sqlext reads version {SPEC_VERSION}. Use the "
    assert caught.value.message.startswith(message)


def test_options_are_given_by_level() -> None:
    spec = replace(SPEC, given={"HINT": {"a": "1"}, "CONF": {"b": "2", "c": "3"}})
    assert levels_of(spec.given) == {Level.HINT: {"a": ValueText("1")}, Level.CONF: {"b": ValueText("2"), "c": ValueText("3")}}


def test_altering_sets_properties_and_leaves_the_rest() -> None:
    before = replace(SPEC, given={"HINT": {"a": "1"}, "PROPERTY": {"b": "2", "c": "3"}})
    after = before.with_properties({"c": "4", "d": "5"})
    assert after.given == {"HINT": {"a": "1"}, "PROPERTY": {"b": "2", "c": "4", "d": "5"}}
    assert replace(after, given=before.given) == before
    assert SPEC.with_properties({"x": "y"}).given["PROPERTY"] == {"x": "y"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (Key(("page",)), ("page",)),
        (Key(("PAGE", "n")), ("page", "views")),
        (Key(("n",), all_but=True), ("page",)),
        (Key((), all_but=True), ("page", "views")),
        (Key(), ()),
    ],
)
def test_a_key_lands_in_the_targets_columns(key: Key, expected: tuple[str, ...]) -> None:
    columns = (*SPEC.streams[0].columns, Column("__sqlext_qualifies", "", "BOOLEAN"))
    assert key_columns(key, columns) == expected


# The record as the sum of its events


def event(kind: EventKind, flow: str = "f-1", **values: Any) -> FlowEvent:
    return FlowEvent(flow, kind, **values)


RESERVED = event(EventKind.RESERVED, spec=SPEC.to_json(), host="h0", at="t0")
STARTED = event(EventKind.STARTED, epoch=1, host="h1", at="t1")
STOPPED = event(EventKind.STOPPED, epoch=1, host="h1", at="t2")
FAILED = event(EventKind.FAILED, epoch=1, host="h1", detail="disk full", at="t3")
DROPPED = event(EventKind.DROPPED, at="t4")


def the_record(*events: FlowEvent) -> FlowRecord:
    (record,) = fold(events).values()
    return record


def test_without_events_there_are_no_flows() -> None:
    assert fold([]) == {}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([RESERVED], FlowRecord(SPEC, FlowState.RESERVED, 0, "h0", "", "t0")),
        ([RESERVED, STARTED], FlowRecord(SPEC, FlowState.RUNNING, 1, "h1", "", "t1")),
        ([RESERVED, STARTED, STOPPED], FlowRecord(SPEC, FlowState.STOPPED, 1, "h1", "", "t2")),
        ([RESERVED, STARTED, FAILED], FlowRecord(SPEC, FlowState.FAILED, 1, "h1", "disk full", "t3")),
    ],
)
def test_a_flow_is_what_its_last_event_says(events: list[FlowEvent], expected: FlowRecord) -> None:
    assert fold(events) == {"f-1": expected}


def test_starting_again_clears_the_error() -> None:
    again = event(EventKind.STARTED, epoch=2, host="h2", at="t5")
    assert the_record(RESERVED, STARTED, FAILED, again) == FlowRecord(SPEC, FlowState.RUNNING, 2, "h2", "", "t5")


def test_stopping_a_failed_flow_clears_the_error() -> None:
    assert the_record(RESERVED, STARTED, FAILED, STOPPED).error == ""


def test_the_epoch_never_goes_back() -> None:
    newer = event(EventKind.STARTED, epoch=5, host="h2")
    assert the_record(RESERVED, newer, STOPPED).epoch == 5
    assert the_record(RESERVED, STARTED, newer).epoch == 5


def test_a_dropped_flow_is_gone_whatever_follows() -> None:
    assert fold([RESERVED, STARTED, DROPPED]) == {}
    assert fold([RESERVED, DROPPED, STARTED, FAILED, DROPPED]) == {}


def test_a_start_may_bring_the_spec_that_is_now_complete() -> None:
    complete = replace(SPEC, target_id="new")
    started = replace(STARTED, spec=complete.to_json())
    assert the_record(RESERVED, started).spec == complete
    assert the_record(RESERVED, started, STOPPED).spec == complete


def test_altering_changes_the_spec_and_nothing_else() -> None:
    altered = SPEC.with_properties({"execution.flush.max-interval": "5 min"})
    after = the_record(RESERVED, STARTED, event(EventKind.ALTERED, spec=altered.to_json(), at="t9", host="h9"))
    assert after == replace(the_record(RESERVED, STARTED), spec=altered)


def test_events_of_unknown_flows_do_not_count() -> None:
    assert fold([STARTED, STOPPED, FAILED, DROPPED, event(EventKind.ALTERED, spec=SPEC.to_json())]) == {}


def test_flows_do_not_mix() -> None:
    other = replace(SPEC, id="f-2", name="other")
    records = fold([RESERVED, replace(RESERVED, flow_id="f-2", spec=other.to_json()), STARTED, replace(FAILED, flow_id="f-2")])
    assert {flow: (record.spec.name, record.state) for flow, record in records.items()} == {
        "f-1": ("views", FlowState.RUNNING),
        "f-2": ("other", FlowState.FAILED),
    }


KINDS = st.sampled_from(EventKind)
EVENTS = st.builds(
    FlowEvent,
    flow_id=st.sampled_from(["f-1", "f-2"]),
    kind=KINDS,
    epoch=st.integers(0, 5),
    host=st.sampled_from(["a", "b"]),
    spec=st.sampled_from(["", SPEC.to_json()]),
)


@given(st.lists(EVENTS, max_size=12))
def test_any_order_of_events_adds_up_to_something(events: list[FlowEvent]) -> None:
    records: Mapping[str, FlowRecord] = fold(events)
    for flow, record in records.items():
        kinds = [each.kind for each in events if each.flow_id == flow]
        assert EventKind.RESERVED in kinds
        assert kinds[-1] is not EventKind.DROPPED
        assert record.epoch <= max(each.epoch for each in events)
        assert record.error == ""  # no failure here has a message


def test_a_flow_is_found_by_its_name_in_any_case() -> None:
    assert find(fold([RESERVED]), ("spark_catalog", "Default", "VIEWS")).spec == SPEC


def test_a_name_that_no_flow_has_gets_the_nearest() -> None:
    with pytest.raises(NotFoundError) as caught:
        find(fold([RESERVED]), ("spark_catalog", "default", "vews"))
    assert caught.value.message == (
        "There is no flow `vews` in spark_catalog.default. Did you mean `views`? SHOW FLOWS lists them."
    )
    with pytest.raises(NotFoundError, match=r"There is no flow `x` in c\.d\. SHOW FLOWS lists them\."):
        find({}, ("c", "d", "x"))


def test_a_flow_in_another_schema_is_named() -> None:
    with pytest.raises(NotFoundError, match=r"There is no flow `views` in c\.d\. There is `spark_catalog\.default\.views`\."):
        find(fold([RESERVED]), ("c", "d", "views"))


def test_records_of_earlier_versions_have_the_name_of_their_table_or_of_their_session() -> None:
    dotted = replace(SPEC, name="Default.page_views", catalog="c", database="d")
    assert dotted.qualified_name == ("spark_catalog", "default", "page_views")
    assert replace(SPEC, catalog="c", database="d").qualified_name == ("c", "d", "views")
    assert replace(SPEC, full_name=("a", "b", "views")).qualified_name == ("a", "b", "views")


def test_names_are_shown_with_as_much_of_their_schemas_as_tells_them_apart() -> None:
    names = [("c", "s", "t"), ("c", "r", "T"), ("c", "s", "u"), ("d", "s", "t")]
    specs = [replace(SPEC, id=str(at), full_name=name) for at, name in enumerate(names)]
    assert shown_names(specs) == {"0": "c.s.t", "1": "r.T", "2": "u", "3": "d.s.t"}


def test_the_end_of_a_name_is_enough_where_no_schema_is_current() -> None:
    specs = [replace(SPEC, id=str(at), full_name=("c", schema, "t")) for at, schema in enumerate("rs")]
    records = {spec.id: replace(the_record(RESERVED), spec=spec) for spec in specs}
    assert [record.spec for record in all_by_end(records, "S.t")] == specs[1:]
    assert [record.spec for record in all_by_end(records, "t")] == specs
    assert all_by_end(records, "u") == []
