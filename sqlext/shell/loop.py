"""The shell: it reads what is typed, runs it and prints the result, until Ctrl-D."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output
from rich.console import Group
from rich.live import Live
from rich.text import Text

from sqlext.app import reference
from sqlext.app.problems import Problem, report
from sqlext.app.progress import Statuses, display
from sqlext.app.script_run import ExitCode
from sqlext.errors import SyntaxProblem, did_you_mean
from sqlext.extension.results import LiveBatch, Result
from sqlext.redaction import of_application
from sqlext.shell import meta
from sqlext.shell.completion import StatementCompleter
from sqlext.shell.history import PrivateHistory, history_path
from sqlext.shell.meta import LEAVE, Command, Watch
from sqlext.shell.names import SessionNames
from sqlext.shell.prompt import Prompt
from sqlext.shell.runner import ShellRunner
from sqlext.sql.scripts import ScriptStatement, split

logger = logging.getLogger(__name__)

FETCHED = 1_000
"""The most rows of a result that are fetched; those that are not shown are counted."""
_SHOWN = 100
_NO_TABLE = re.compile(r"(\[TABLE_OR_VIEW_NOT_FOUND\] The table or view (`.*?`) cannot be found\.)")


class Shell:
    """The shell of a session; only the main thread uses it.

    Args:
        environment: the environment variables of the process, which say where the history lies.
        source, sink: replacements of the terminal, for tests.
    """

    def __init__(
        self, runner: ShellRunner, environment: Mapping[str, str], source: Input | None = None, sink: Output | None = None
    ) -> None:
        self._runner = runner
        self._printer = runner.printer
        self._interrupts = runner.interrupts
        self._names = SessionNames(runner.rows)
        self._display = display(runner.printer, Statuses(list, runner.jobs, runner.statements.tasks))
        self._prompt = Prompt(
            StatementCompleter(self._names),
            self._history(environment),
            runner.running,
            lambda: runner.interrupts.must_end,
            source,
            sink,
        )
        self._last = ""
        self._told: set[str] = set()
        self._shown = _SHOWN
        self._tells_time = True
        self._commands: Mapping[str, Callable[[str], None]] = {
            "\\?": self._help,
            "\\h": self._syntax,
            "\\i": self._run_file,
            "\\timing": self._set_timing,
            "\\maxrows": self._set_shown,
        }

    def run(self) -> ExitCode:
        """Read and run until Ctrl-D or a signal that ends the process; then end the session."""
        self._printer.line(
            f"sqlext {version('sqlext')} on {self._runner.open()}. "
            f"A statement ends with ;  \\? shows help  Ctrl-D leaves: {self._runner.leaving}.",
            "dim",
        )
        self._interrupts.is_forgiving, self._interrupts.on_end = True, self._prompt.end
        try:
            while not self._interrupts.must_end and not self._runner.has_ended():
                self._interrupts.asked.clear()
                self._tell_failures()
                try:
                    text = self._prompt.read(f"sqlext ({self._database()})> ")
                except KeyboardInterrupt:
                    continue
                except EOFError:
                    break
                if self._take(text):
                    break
        finally:
            self._interrupts.is_forgiving = False
        return self._runner.stop()

    def _take(self, text: str) -> bool:
        """Run what was typed.

        Returns:
            Whether to leave the shell.
        """
        try:
            told = meta.parse(text)
            if isinstance(told, Command) and told.name == LEAVE:
                return True
            if isinstance(told, Command):
                self._commands[told.name](told.argument)
            elif isinstance(told, Watch):
                self._watch(told)
            else:
                self._run_statements("", text)
        except SyntaxProblem as problem:
            self._printer.error(problem.message)
        return False

    # Statements.

    def _run_statements(self, name: str, text: str) -> None:
        """Run the statements of a text, up to the first one that fails or is canceled."""
        for statement in split(text):
            self._last = statement.text
            began = time.monotonic()
            result = self._result(name, text, statement, partial(self._display.watch, "Ctrl-C cancels"), self._show)
            if result is None:
                return
            self._printer.result(result.first(self._shown))
            if self._tells_time:
                self._printer.line(_summary(result, time.monotonic() - began), "dim")

    def _result(
        self,
        name: str,
        text: str,
        statement: ScriptStatement,
        watch: Callable[[Callable[[], bool]], None],
        show: Callable[[LiveBatch], None] | None = None,
    ) -> Result | None:
        """Return a statement's result; None if it fails or is canceled, which is printed.

        Args:
            show: called with each micro-batch of a SELECT over a stream; None: such a SELECT is refused.
        """
        try:
            return self._runner.statements.run(statement.text, watch, FETCHED, show)
        except KeyboardInterrupt as interrupt:
            self._printer.note(str(interrupt))
        except Exception as error:
            logger.exception("statement failed: %s", of_application().sql(statement.text))
            self._printer.error(report(name, text, statement, self._with_near_table(self._runner.problem(error))))
        finally:
            self._names.forget()
        return None

    def _show(self, batch: LiveBatch) -> None:
        self._printer.live_batch(replace(batch, result=batch.result.first(self._shown)))

    def _with_near_table(self, problem: Problem) -> Problem:
        """Add the nearest name to an error on a table that does not exist; Spark suggests none."""
        if (match := _NO_TABLE.match(problem.message)) is None:
            return problem
        name = [part.strip("`") for part in match[2].split("`.`")]
        near = did_you_mean(name[-1], self._names.relations(name[-2] if len(name) > 1 else ""))
        return replace(problem, message=f"{match[1]}{near}{problem.message[match.end() :]}")

    def _watch(self, watch: Watch) -> None:
        """Repeat a statement until Ctrl-C, each result in place of the one before."""
        statements = split(watch.text or self._last)
        if len(statements) != 1:
            many = "there is none yet" if not statements else f"there are {len(statements)}"
            raise SyntaxProblem(f"\\watch repeats one statement, and {many}. Write the statement first: SHOW FLOWS \\watch 2")
        statement = statements[0]
        self._last = statement.text
        asked = self._interrupts.asked
        with Live(console=self._printer.console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            while not asked.is_set():
                began = time.monotonic()
                result = self._result("", statement.text, statement, _wait_until)
                if result is None:
                    return
                title = Text(f"every {watch.seconds:g} s, {time.strftime('%H:%M:%S')}, Ctrl-C ends it", "dim")
                live.update(Group(title, self._printer.drawn(result.first(self._shown))), refresh=True)
                asked.wait(max(watch.seconds - (time.monotonic() - began), 0))

    # The shell's own commands.

    def _help(self, _: str) -> None:
        commands = {**meta.COMMANDS, LEAVE: f"leave, as Ctrl-D does: {self._runner.leaving}"}
        rows = [*commands.items(), ("Esc Enter", "run what is typed, even without ;"), ("Ctrl-C", "cancel the statement")]
        rows += [("Tab", "complete statements, options, names"), ("Ctrl-X Ctrl-E", "edit what is typed in $EDITOR")]
        self._printer.result(Result(["typed", "what it does"], [False, False], rows))

    def _syntax(self, words: str) -> None:
        found = reference.statements_like(words)
        if not found:
            raise SyntaxProblem(f"No statement of sqlext has `{words}`. \\h alone lists all.")
        for each in found:
            self._printer.line(each.syntax)
            self._printer.line(f"    {each.meaning}", "dim")

    def _run_file(self, name: str) -> None:
        try:
            path = Path(name.strip("'\"")).expanduser()
            text = path.read_text(encoding="utf-8-sig")
        except (UnicodeDecodeError, OSError, RuntimeError) as error:  # pathlib's, for an account without a home
            other = "there is no such user" if isinstance(error, RuntimeError) else "it is not UTF-8 text"
            reason = error.strerror if isinstance(error, OSError) else other
            raise SyntaxProblem(f"{name or 'A file without a name'} cannot be read: {reason}. Write \\i FILE.") from None
        self._run_statements(str(path), text)

    def _set_timing(self, argument: str) -> None:
        if argument.lower() not in ("", "on", "off"):
            raise SyntaxProblem(f"\\timing cannot be `{argument}`. Write \\timing on, or \\timing off.")
        self._tells_time = argument.lower() == "on" if argument else not self._tells_time
        self._printer.note(f"timing is {'on' if self._tells_time else 'off'}")

    def _set_shown(self, argument: str) -> None:
        if not (argument.isascii() and argument.isdigit() and 0 < int(argument) <= FETCHED):
            raise SyntaxProblem(f"\\maxrows cannot be `{argument}`. Give a number of rows from 1 to {FETCHED:,}.")
        self._shown = int(argument)

    # Pieces.

    def _tell_failures(self) -> None:
        """Print each flow and job that has failed in the background, once."""
        for text in self._runner.failures():
            if text not in self._told:
                self._told.add(text)
                self._printer.error(text)

    def _database(self) -> str:
        try:
            return self._runner.database()
        except Exception:  # noqa: BLE001  # the next statement shows what is wrong
            return "?"

    def _history(self, environment: Mapping[str, str]) -> History:
        path = history_path(environment)
        try:
            return PrivateHistory(path)
        except OSError as error:
            self._printer.note(f"the history is not kept: {path} cannot be written ({error.strerror})")
            return InMemoryHistory()


def _wait_until(is_over: Callable[[], bool]) -> None:
    while not is_over():
        time.sleep(0.05)


def _summary(result: Result, seconds: float) -> str:
    if not result.columns or result.text is not None:
        return f"{seconds:.2f} s"
    count = f"{len(result.rows):,} {'row' if len(result.rows) == 1 else 'rows'}"
    return f"{'more than ' * result.has_more}{count}, {seconds:.2f} s"


def run_shell(runner: ShellRunner) -> ExitCode:
    """Run the shell on this process's terminal."""
    return Shell(runner, os.environ).run()
