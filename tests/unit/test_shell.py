"""The shell, typed at through a pipe, over statements that no Spark runs."""

from __future__ import annotations

import io
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from pygments.token import Comment, Keyword, String
from rich.console import Console

from sqlext.app.interrupts import Interrupts
from sqlext.app.output import Printer
from sqlext.app.problems import problem_of
from sqlext.app.progress import TaskCounts, status_line
from sqlext.app.script_run import ExitCode
from sqlext.cli import cli
from sqlext.errors import SyntaxProblem
from sqlext.execution.flows.status import FlowPhase
from sqlext.extension.results import Result
from sqlext.shell import meta
from sqlext.shell.history import PrivateHistory, history_path
from sqlext.shell.lexer import SqlextLexer
from sqlext.shell.loop import Shell
from sqlext.shell.prompt import is_done
from sqlext.shell.runner import ShellRunner

ENTER, CTRL_C, CTRL_D, ESCAPE = "\r", "\x03", "\x04", "\x1b"
ONE = Result(["n"], [True], [("1",)])


class Statements:
    """In place of Spark: notes what it is asked to run, and answers from a list of wrong statements and results."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self.ran: list[str] = []
        self.answers: dict[str, Result | BaseException] = {}
        self.interrupt_after: int | None = None

    def run(self, text: str, watch: Callable[[Callable[[], bool]], None], limit: int, show: object = None) -> Result:
        self.ran.append(text)
        if len(self.ran) == self.interrupt_after:
            self._interrupts.asked.set()
        answer = self.answers.get(text, ONE)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def tasks(self) -> TaskCounts:
        return TaskCounts()


class Desk:
    """A shell, what is typed at it, and what it prints."""

    def __init__(self, pipe: PipeInput, state: Path) -> None:
        self._pipe = pipe
        self._text = io.StringIO()
        self.interrupts = Interrupts()
        self.statements = Statements(self.interrupts)
        self.is_stopped = False
        printer = Printer()
        printer.console = Console(file=self._text, width=100, force_terminal=True, color_system=None)
        printer.is_live = True
        printer._errors = Console(file=self._text, width=100, soft_wrap=True)
        self.runner = SimpleNamespace(
            printer=printer,
            interrupts=self.interrupts,
            statements=self.statements,
            leaving="the flows go on",
            open=self._open,
            database=lambda: "default",
            rows=lambda _: [],
            running=str,
            jobs=list,
            failures=list,
            problem=problem_of,
            has_ended=lambda: False,
            stop=self._stop,
        )
        self.environment: Mapping[str, str] = {"XDG_STATE_HOME": str(state)}

    def _open(self) -> str:
        self.runner.printer.note("resumed flows: pages")
        return "Spark 4.2.0"

    def _stop(self) -> ExitCode:
        self.is_stopped = True
        return ExitCode.FINE

    def type(self, *keys: str) -> str:
        """What the shell prints while these are typed; it must leave, with its flows stopped."""
        self._pipe.send_text("".join(keys))
        shell = Shell(cast(ShellRunner, self.runner), self.environment, self._pipe, DummyOutput())
        assert shell.run() is ExitCode.FINE
        assert self.is_stopped
        return self._text.getvalue()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield Desk(pipe, tmp_path)


# Statements as they are typed.


def test_a_statement_goes_over_lines_until_its_semicolon(desk: Desk) -> None:
    printed = desk.type("SELECT 1", ENTER, "  AS n", ENTER, ";", ENTER, CTRL_D)
    assert desk.statements.ran == ["SELECT 1\n  AS n"]
    assert "resumed flows: pages" in printed
    assert "│ 1 │" in printed
    assert re.search(r"\b1 row, \d+\.\d\d s\n", printed)


def test_statements_of_one_input_run_in_their_order(desk: Desk) -> None:
    desk.type("SELECT 1; SELECT ';';", ENTER, CTRL_D)
    assert desk.statements.ran == ["SELECT 1", "SELECT ';'"]


def test_escape_enter_runs_what_is_there(desk: Desk) -> None:
    desk.type("SELECT 1", ESCAPE, ENTER, CTRL_D)
    assert desk.statements.ran == ["SELECT 1"]


def test_ctrl_c_drops_what_was_typed(desk: Desk) -> None:
    desk.type("DROP TABLE t", ENTER, CTRL_C, "SELECT 1;", ENTER, CTRL_D)
    assert desk.statements.ran == ["SELECT 1"]


@pytest.mark.parametrize("goodbye", ["\\q", "quit", "exit;", "EXIT"])
def test_there_are_words_to_leave_by(desk: Desk, goodbye: str) -> None:
    desk.type(goodbye, ENTER)
    assert desk.statements.ran == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1;", True),
        ("SELECT 1; -- and so on", True),
        ("", True),
        ("-- nothing", True),
        ("SELECT 1", False),
        ("SELECT 'a;", False),
        ("SELECT `a;", False),
        ("SELECT 1; /* to be ;", False),
        ("BEGIN SELECT 1;", False),
        ("BEGIN SELECT 1; END;", True),
        ("SELECT /*+ BROADCAST(t) ;", False),
        ("help", True),
        ("\\?", True),
        ("SHOW FLOWS \\watch 2", True),
        ("SHOW FLOWS\n\\watch", True),
        ("SELECT '\\watch 2", False),
        ("SELECT 1 -- \\watch 2", False),
    ],
)
def test_enter_ends_what_is_whole(text: str, expected: bool) -> None:
    assert is_done(text) is expected


# What comes of them.


def test_an_error_shows_its_place_and_the_rest_is_not_run(desk: Desk) -> None:
    desk.statements.answers["SHOW FLOW"] = SyntaxProblem("[PARSE_SYNTAX_ERROR] Syntax error at or near 'FLOW'.")
    printed = desk.type("SHOW FLOW; SELECT 1;", ENTER, CTRL_D)
    assert desk.statements.ran == ["SHOW FLOW"]
    assert "[PARSE_SYNTAX_ERROR] Syntax error at or near 'FLOW'. Did you mean `SHOW FLOWS`?" in printed


def test_rows_that_are_not_shown_are_counted(desk: Desk) -> None:
    desk.statements.answers["SELECT many"] = Result(["n"], [True], [(str(at),) for at in range(250)])
    printed = desk.type("SELECT many;", ENTER, "\\maxrows 3", ENTER, "SELECT many;", ENTER, CTRL_D)
    assert re.search(r"\(the first 100 rows; 150 left out\)\n250 rows, \d+\.\d\d s\n", printed)
    assert "(the first 3 rows; 247 left out)" in printed


def test_a_statement_that_was_canceled_is_told_and_the_shell_goes_on(desk: Desk) -> None:
    desk.statements.answers["WAIT FLOW f"] = KeyboardInterrupt("The statement was canceled.")
    printed = desk.type("WAIT FLOW f;", ENTER, "SELECT 1;", ENTER, CTRL_D)
    assert "The statement was canceled.\n" in printed
    assert desk.statements.ran == ["WAIT FLOW f", "SELECT 1"]


def test_a_watch_runs_until_ctrl_c(desk: Desk) -> None:
    desk.statements.interrupt_after = 3
    printed = desk.type("SHOW FLOWS \\watch 0.01", ENTER, "SELECT 1;", ENTER, CTRL_D)
    assert desk.statements.ran == ["SHOW FLOWS"] * 3 + ["SELECT 1"]
    assert "every 0.01 s" in printed


def test_a_command_without_columns_can_be_watched(desk: Desk) -> None:
    desk.statements.answers["USE default"] = Result([], [], [])
    desk.statements.interrupt_after = 2
    assert "every 0.01 s" in desk.type("USE default \\watch 0.01", ENTER, "SELECT 1;", ENTER, CTRL_D)
    assert desk.statements.ran == ["USE default"] * 2 + ["SELECT 1"]


def test_a_watch_alone_repeats_the_last_statement(desk: Desk) -> None:
    desk.statements.interrupt_after = 3
    desk.type("SELECT 1;", ENTER, "\\watch 0.01", ENTER, CTRL_D)
    assert desk.statements.ran == ["SELECT 1"] * 3


def test_a_watch_ends_at_an_error(desk: Desk) -> None:
    desk.statements.answers["SELECT x"] = SyntaxProblem("there is no x")
    assert "there is no x" in desk.type("SELECT x \\watch", ENTER, CTRL_D)
    assert desk.statements.ran == ["SELECT x"]


def test_a_file_is_run(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "two.sql").write_text("SELECT 1;\nSELECT 2;")
    desk.type(f"\\i {tmp_path}/two.sql", ENTER, CTRL_D)
    assert desk.statements.ran == ["SELECT 1", "SELECT 2"]


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("\\wacht", "There is no command \\wacht. Did you mean `\\watch`? \\? lists all commands."),
        ("\\watch soon", "\\watch cannot be `soon`. Give the seconds"),
        ("\\watch", "\\watch repeats one statement, and there is none yet."),
        ("SELECT 1; SELECT 2; \\watch", "\\watch repeats one statement, and there are 2."),
        ("\\maxrows all", "\\maxrows cannot be `all`. Give a number of rows from 1 to 1,000."),
        ("\\timing perhaps", "\\timing cannot be `perhaps`."),
        ("\\timing", "timing is off"),
        ("\\i nowhere.sql", "nowhere.sql cannot be read: No such file or directory. Write \\i FILE."),
        ("\\i ~nosuchuser/x.sql", "~nosuchuser/x.sql cannot be read: there is no such user. Write \\i FILE."),
        ("\\h FLUSH", "FLUSH FLOW f\n    write what is buffered to the target now"),
        ("\\h PARTITIONS", "No statement of sqlext has `PARTITIONS`."),
        ("help", "\\watch"),
    ],
)
def test_what_the_shell_itself_is_told(desk: Desk, typed: str, printed: str) -> None:
    assert printed in desk.type(typed, ENTER, CTRL_D)
    assert desk.statements.ran == []


def test_help_tells_every_command(desk: Desk) -> None:
    printed = desk.type("\\?", ENTER, CTRL_D)
    assert set(meta.COMMANDS) - set(printed.split()) == set()
    assert "leave, as Ctrl-D does: the flows go on" in printed


def test_a_signal_that_ends_the_process_ends_the_prompt(desk: Desk) -> None:
    def end_soon() -> str:  # asked for the line below the prompt, so while it is read
        desk.interrupts.must_end = True
        desk.interrupts.on_end()
        return ""

    desk.runner.running = end_soon
    desk.type("SELECT 1")
    assert desk.statements.ran == []


def test_what_failed_beside_the_statements_is_told_once(desk: Desk) -> None:
    desk.runner.failures = lambda: [
        "flow clicks has failed: the disk is full",
        "job 7f3a cannot be resumed: its input has changed",
    ]
    printed = desk.type("SELECT 1;", ENTER, "SELECT 2;", ENTER, CTRL_D)
    assert printed.count("flow clicks has failed: the disk is full") == 1
    assert printed.count("job 7f3a cannot be resumed: its input has changed") == 1


# History.


def test_history_is_its_owner_s_alone(desk: Desk, tmp_path: Path) -> None:
    desk.type("SELECT 1;", ENTER, "SELECT 1;", ENTER, " SET secret = 1;", ENTER, "SELECT", ENTER, "2;", ENTER, CTRL_D)
    path = tmp_path / "sqlext" / "history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(PrivateHistory(path).load_history_strings()) == ["SELECT\n2;", "SELECT 1;"]


def test_a_history_that_others_could_read_no_longer_can_be(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.touch(0o644)
    PrivateHistory(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_place_for_the_history_the_shell_works(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "sqlext").touch()
    printed = desk.type("SELECT 1;", ENTER, CTRL_D)
    assert f"the history is not kept: {tmp_path}/sqlext/history cannot be written" in "".join(printed.splitlines())
    assert desk.statements.ran == ["SELECT 1"]


def test_where_the_history_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert history_path({"XDG_STATE_HOME": "/state"}) == Path("/state/sqlext/history")
    assert history_path({}) == Path("/home/ada/.local/state/sqlext/history")
    assert history_path({"XDG_STATE_HOME": "relative"}) == Path("/home/ada/.local/state/sqlext/history")


# Colours, and the line below.


def kinds(text: str) -> dict[str, Any]:
    return {value: kind for kind, value in SqlextLexer().get_tokens(text) if value.strip()}


def test_our_words_hints_and_strings_have_their_colours() -> None:
    found = kinds("CREATE STREAMING TABLE t AS SELECT /*+ FLUSH_INTERVAL('1 min') */ \"a\" FROM STREAM ev WATERMARK at")
    assert all(found[word] in Keyword for word in ("CREATE", "STREAMING", "SELECT", "STREAM", "WATERMARK"))
    assert found["t"] not in Keyword
    assert found['"a"'] in String
    assert "".join(value for value, kind in found.items() if kind is Comment.Special).startswith("/*")


def test_the_line_below_says_what_runs() -> None:
    phases = [FlowPhase.RUNNING, FlowPhase.FAILED, FlowPhase.RUNNING]
    assert status_line(phases, 1400, 1) == "flows: 1 failed, 2 running  1,400 rows buffered  1 job running"
    assert status_line([], 0, 0) == ""


# The command.


def test_without_a_terminal_the_shell_names_what_to_use() -> None:
    result = CliRunner().invoke(cli, ["shell"], input="SELECT 1;")
    assert result.exit_code == 2
    assert "sqlext shell needs a terminal. To run statements from a file or pipe, use: sqlext run -" in result.output
