"""Results and progress as they are printed."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from sqlext.app.output import Printer, aligned
from sqlext.app.progress import FlowStatus, JobStatus, LineDisplay, LiveDisplay, Statuses, line_of, print_summary
from sqlext.execution.flows.status import FlowPhase, FlowProgress
from sqlext.execution.jobs.execution_graph import VertexCounts
from sqlext.extension.results import Result

PAGES = Result(["page", "views"], [False, True], [("home", "12"), (None, "3")])
FLOW = FlowStatus("pages", FlowPhase.RUNNING, FlowProgress(micro_batches=4, rows_in=1200, buffered_rows=31), "")
JOB = JobStatus("a.b.t", VertexCounts(done=1, running=1, left=3, parts=7, skipped=4), "1: 2 of 5")


class Sheet:
    """What a printer has put on a page of a given width."""

    def __init__(self, width: int, is_live: bool) -> None:
        self._text = io.StringIO()
        self.printer = Printer()
        self.printer.console = Console(file=self._text, width=width, force_terminal=is_live, color_system=None)
        self.printer.is_live = is_live

    @property
    def text(self) -> str:
        return self._text.getvalue()


def test_columns_are_aligned_numbers_on_the_right() -> None:
    assert aligned(PAGES) == ["page  views", "----  -----", "home     12", "NULL      3"]


def test_a_cell_of_several_lines_stays_in_its_column() -> None:
    result = Result(["a", "b"], [False, False], [("x\nlonger", "1"), ("y", "2")])
    assert aligned(result) == ["a       b", "------  -", "x       1", "longer", "y       2"]


def test_a_command_s_answer_and_a_plan_are_printed_as_they_are() -> None:
    sheet = Sheet(20, is_live=True)
    sheet.printer.result(Result(["command_output"], [False], [("flow f started",)]))
    sheet.printer.result(Result(["plan"], [False], [("== Plan ==\n+- Scan",)]))
    sheet.printer.result(Result([], [], []))
    assert sheet.text == "flow f started\n== Plan ==\n+- Scan\n"


def test_a_terminal_gets_a_frame_where_the_table_fits_and_records_where_it_does_not() -> None:
    wide, narrow = Sheet(80, is_live=True), Sheet(12, is_live=True)
    wide.printer.result(PAGES)
    narrow.printer.result(PAGES)
    assert "│ home │    12 │" in wide.text
    assert narrow.text == "-- row 1\npage   home\nviews  12\n-- row 2\npage   NULL\nviews  3\n"


def test_a_long_value_beside_its_name_goes_over_lines() -> None:
    sheet = Sheet(20, is_live=True)
    sheet.printer.result(Result(["name", "value"], [False, False], [("home", "a/long/place/to/be")]))
    assert "│ home │ a/long/pl │\n│      │ ace/to/be │\n" in sheet.text


@pytest.mark.parametrize(
    ("result", "note"),
    [
        (replace(PAGES, has_more=True), "(the first 2 rows; there are more)"),
        (replace(PAGES, rows=[]), "(no rows)"),
        (PAGES.first(1), "(the first 1 rows; 1 left out)"),
        (replace(PAGES, rows=[*PAGES.rows] * 700, has_more=True).first(100), "(the first 100 rows; more than 1,300 left out)"),
    ],
)
def test_what_is_not_shown_is_said(result: Result, note: str) -> None:
    sheet = Sheet(80, is_live=False)
    sheet.printer.result(result)
    assert sheet.text.splitlines()[-1] == note


def times(number: int) -> Callable[[], bool]:
    """False so many times, then true."""
    left = iter(range(number))
    return lambda: next(left, None) is None


def test_a_line_is_printed_only_when_something_has_changed() -> None:
    sheet = Sheet(200, is_live=False)
    display = LineDisplay(sheet.printer, Statuses(lambda: [FLOW], lambda: [JOB]))
    display.watch("", times(3))
    display.watch("", times(3))
    assert len(sheet.text.splitlines()) == 2
    assert (
        "job into a.b.t: vertices 1 done, 1 running (1: 2 of 5), 3 left, parts 7 done (4 of them by an earlier driver)"
        in sheet.text
    )
    assert "pages RUNNING, rows in 1,200, micro-batches 4, buffered 31, flushes 0, rows flushed 0" in sheet.text


def test_a_terminal_gets_a_table_that_moves() -> None:
    sheet = Sheet(120, is_live=True)
    LiveDisplay(sheet.printer, Statuses(lambda: [FLOW], lambda: [JOB])).watch("waiting", times(3))
    assert "micro-batches" in sheet.text
    assert "1,200" in sheet.text
    assert "vertices 1 done" in sheet.text
    assert "waiting" in sheet.text


def test_the_last_flush_and_an_error_are_in_the_line() -> None:
    moment = datetime(2024, 5, 1, 12, 30, 5, tzinfo=UTC)
    progress = replace(FLOW.progress, flushes=2, rows_flushed=60, last_flush=moment, last_reason="interval")
    failed = FlowStatus("pages", FlowPhase.FAILED, progress, "the disk\nis full")
    assert line_of(failed).endswith(
        f"last flush {moment.astimezone():%H:%M:%S} (interval), 0.0 micro-batches per flush, error: the disk is full"
    )


@pytest.mark.parametrize("is_live", [False, True])
def test_a_summary_tells_in_full_what_went_wrong(is_live: bool, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = Sheet(120, is_live)
    print_summary(sheet.printer, [FLOW, FlowStatus("clicks", FlowPhase.FAILED, FlowProgress(), "the disk is full")])
    assert "pages" in sheet.text
    assert capsys.readouterr().err == "flow clicks has failed: the disk is full\n"


def test_a_flows_name_is_shown_as_it_is() -> None:
    sheet = Sheet(120, is_live=True)
    flow = replace(FLOW, name="t[/x][red]y", error="no [/b]")
    print_summary(sheet.printer, [flow])
    LiveDisplay(sheet.printer, Statuses(lambda: [flow], lambda: [replace(JOB, table="j[/x]")])).watch("waits [/]", times(3))
    assert sheet.text.count("t[/x][red]y") >= 2
    assert "job into j[/x]" in sheet.text


def test_what_is_too_wide_to_be_watched_loses_empty_columns_and_then_is_turned() -> None:
    rows = [("pages", None, "stop", "1,200"), ("clicks", None, "idle", "7")]
    flows = Result(["name", "lag", "last_reason", "rows_in"], [False, False, False, True], rows)
    sheets = {width: Sheet(width, is_live=True) for width in (41, 34, 32)}
    for sheet in sheets.values():
        sheet.printer.console.print(sheet.printer.drawn(flows))
    assert "│ name   │ lag  │ last_reason │ rows_in │" in sheets[41].text
    assert "│ name   │ last_reason │ rows_in │" in sheets[34].text
    assert "│ last_reason │ stop  │ idle   │" in sheets[32].text


def test_a_plan_is_watched_as_it_is() -> None:
    sheet = Sheet(20, is_live=True)
    sheet.printer.console.print(sheet.printer.drawn(Result(["plan"], [False], [("== Plan ==\n+- Scan",)])))
    assert sheet.text == "== Plan ==\n+- Scan\n"
