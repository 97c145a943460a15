"""The records of materialized views: their events add up, names are found, and a status comes back as it was written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sqlext.commands.view_statements import schedule_text
from sqlext.errors import NotFoundError, SetupError, ViewError
from sqlext.execution.coordination.event_log import EventLog
from sqlext.execution.views.registry import (
    ViewEvent,
    ViewEventKind,
    ViewRecord,
    ViewRegistry,
    created,
    find,
    fold,
    of_name,
    shown_names,
)
from sqlext.execution.views.status import StatusFiles, ViewStatus
from sqlext.plan.lineage import shown
from sqlext.plan.view_spec import RefreshPolicy, RefreshReport, Schedule, SourceVersion, ViewSpec
from sqlext.sql.references import references_in

SPEC = ViewSpec(
    id="v-1",
    name=("spark_catalog", "sales", "by_region"),
    location="file:/data/by_region",
    table_id="t-1",
    text="CREATE MATERIALIZED VIEW by_region AS ..",
    query="SELECT region, count(*) AS n FROM orders GROUP BY region",
    columns=("region", "n"),
    policy=RefreshPolicy.STRICT,
    schedule=Schedule(every=600.0),
    settings={"spark.sql.ansi.enabled": "true"},
    variables={"least": "INT DEFAULT 3"},
)
REPORT = RefreshReport(
    version=7,
    number=3,
    done="touched groups",
    because="by region",
    sources={"spark_catalog.sales.orders": SourceVersion("o-1", 12)},
    rows_in=4,
    rows_deleted=2,
    rows_inserted=2,
    seconds=1.25,
)


def reserved(spec: ViewSpec = SPEC, replaces: str = "") -> ViewEvent:
    return ViewEvent(spec.id, ViewEventKind.RESERVED, "h-1", spec.to_json(), replaces, bool(replaces))


def made(spec: ViewSpec = SPEC) -> ViewEvent:
    return ViewEvent(spec.id, ViewEventKind.CREATED, "h-1", spec.to_json())


class Place:
    """A folder or file on this machine, as the log needs it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.location = str(path)

    def child(self, *names: str) -> Place:
        return Place(self._path.joinpath(*names))

    def exists(self) -> bool:
        return self._path.exists()

    def read_text(self) -> str:
        if not self._path.exists():
            raise NotFoundError(f"There is no file {self._path}.")
        try:
            return self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise SetupError(str(error)) from error

    def modified(self) -> float | None:
        return self._path.stat().st_mtime if self._path.exists() else None

    def names(self) -> list[str]:
        return [each.name for each in self._path.iterdir()] if self._path.is_dir() else []

    def create_text(self, text: str) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            return False
        self._path.write_text(text, encoding="utf-8")
        return True

    def write_text(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(text, encoding="utf-8")

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)


# Events


def test_a_reserved_view_is_there_once_it_is_created() -> None:
    records = fold([reserved()])
    assert records["v-1"].is_reserved
    assert created(records) == {}
    assert of_name(records, SPEC.name) is None
    records = fold([reserved(), made()])
    assert records == {"v-1": ViewRecord(SPEC, "h-1", "")}


def test_a_view_that_replaces_another_takes_its_place_when_it_is_created_and_not_before() -> None:
    new = replace(SPEC, id="v-2", table_id="t-2")
    events = [reserved(), made(), reserved(new, replaces="v-1")]
    assert list(created(fold(events))) == ["v-1"]
    assert fold(events)["v-2"].replaces_table
    assert list(fold([*events, made(new)])) == ["v-2"]
    assert list(fold([*events, ViewEvent("v-2", ViewEventKind.DROPPED)])) == ["v-1"]


def test_a_view_is_altered_taken_and_dropped() -> None:
    other = replace(SPEC, schedule=Schedule(on_update=True))
    events = [
        reserved(),
        made(),
        ViewEvent("v-1", ViewEventKind.ALTERED, "h-2", other.to_json()),
        ViewEvent("v-1", ViewEventKind.TAKEN, "h-3"),
    ]
    record = fold(events)["v-1"]
    assert (record.spec, record.host) == (other, "h-3")
    assert fold([*events, ViewEvent("v-1", ViewEventKind.DROPPED)]) == {}


def test_events_of_views_that_are_gone_have_no_effect() -> None:
    assert fold([made(), ViewEvent("v-9", ViewEventKind.TAKEN, "h-1")]) == {}


def test_a_spec_comes_back_as_it_was_and_another_format_is_refused() -> None:
    assert ViewSpec.from_json(SPEC.to_json()) == SPEC
    with pytest.raises(ViewError, match="recorded in version 99"):
        ViewSpec.from_json(SPEC.to_json().replace('"version": 2', '"version": 99'))


def test_two_processes_see_each_other_s_views(tmp_path: Path) -> None:
    one, other = ViewRegistry(Place(tmp_path)), ViewRegistry(Place(tmp_path))
    one.append(reserved())
    assert other.read()["v-1"].is_reserved
    other.append(made())
    assert list(created(one.read())) == ["v-1"]
    assert EventLog(Place(tmp_path / "views" / "registry")).location.endswith("registry")


# Names


def test_a_view_is_found_whatever_its_case() -> None:
    records = fold([reserved(), made()])
    assert find(records, ("SPARK_CATALOG", "Sales", "BY_REGION")).spec == SPEC


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (("spark_catalog", "sales", "by_regoin"), r"in spark_catalog\.sales\. Did you mean `by_region`\? SHOW MATERIALIZED"),
        (
            ("spark_catalog", "default", "by_region"),
            r"There is `spark_catalog\.sales\.by_region`\. SHOW MATERIALIZED VIEWS lists",
        ),
        (("spark_catalog", "sales", "zzz"), r"There is no materialized view `zzz` in spark_catalog\.sales\. SHOW MATERIALIZED"),
    ],
)
def test_a_name_that_is_not_there_is_told_with_the_nearest(name: tuple[str, ...], advice: str) -> None:
    with pytest.raises(NotFoundError, match=advice):
        find(fold([reserved(), made()]), name)


def test_names_are_shown_with_as_much_schema_as_they_need() -> None:
    specs = [
        SPEC,
        replace(SPEC, id="v-2", name=("spark_catalog", "web", "BY_REGION")),
        replace(SPEC, id="v-3", name=("spark_catalog", "web", "visits")),
    ]
    assert shown_names(specs) == {"v-1": "sales.by_region", "v-2": "web.BY_REGION", "v-3": "visits"}
    assert shown(SPEC.name) == "sales.by_region"
    assert shown(("lake", "sales", "t")) == "lake.sales.t"


# Status


def test_a_status_comes_back_as_it_was(tmp_path: Path) -> None:
    files = StatusFiles(Place(tmp_path))
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for status in (ViewStatus(REPORT, at), ViewStatus(REPORT, at, "no space", at), ViewStatus(error="no such table")):
        files.write("v-1", status)
        assert files.read("v-1") == status
    files.delete("v-1")
    assert files.read("v-1") == ViewStatus()


def test_of_a_torn_status_nothing_is_known(tmp_path: Path) -> None:
    files = StatusFiles(Place(tmp_path))
    for text in ("", "{", "[]", '{"report": {"sources": {}}, "at": null, "error": "", "next_try": null}'):
        Place(tmp_path).child("views", "status", "v-1.json").write_text(text)
        assert files.read("v-1") == ViewStatus()


def test_the_names_in_a_query_are_found_by_its_tokens() -> None:
    found = references_in("SELECT f(x), g.h(1), 'quoted' -- note\n, session.least FROM `my t` AS a WHERE a.b > 1 /* z */")
    assert found.functions == ("f",)
    assert {"x", "least", "my t", "a"} <= set(found.columns)
    assert {"h", "quoted", "note", "b", "z", "1"}.isdisjoint(found.columns)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (Schedule(), None),
        (Schedule(every=1.0), "EVERY 1 SECOND"),
        (Schedule(every=0.5), "EVERY 0.5 SECONDS"),
        (Schedule(every=7200.0), "EVERY 2 HOURS"),
        (Schedule(every=5400.0), "EVERY 90 MINUTES"),
        (Schedule(every=86400.0), "EVERY 1 DAY"),
        (Schedule(on_update=True), "TRIGGER ON UPDATE AT MOST EVERY 1 MINUTE"),
    ],
)
def test_a_schedule_is_shown_as_its_clause(schedule: Schedule, text: str | None) -> None:
    assert schedule_text(schedule) == text
