"""The statements of script files, in their order, and the exit codes of the commands that run them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

from sqlext.app.output import Printer
from sqlext.app.problems import Problem, report
from sqlext.app.statement_run import StatementRunner
from sqlext.errors import SetupError
from sqlext.extension.results import Result
from sqlext.redaction import of_application
from sqlext.sql.scripts import split

logger = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """The exit codes of `sqlext run`."""

    FINE = 0
    STATEMENT_FAILED = 1
    USAGE = 2
    FLOW_FAILED = 3
    INTERRUPTED = 130


@dataclass(frozen=True)
class ScriptFile:
    """The name and the text of a script file."""

    name: str
    text: str


def exit_code_of(run: Callable[[], ExitCode], printer: Printer, log: str = "") -> ExitCode:
    """Run a command, and return its exit code; an error that ends it is printed.

    Args:
        log: where an unexpected error is described in full; empty: nowhere.
    """
    try:
        return run()
    except SetupError as error:
        printer.error(error.message)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        logger.exception("unexpected")
        see = f"; see {log}" if log else ""
        said = of_application().message(str(error))
        printer.error(f"sqlext failed ({type(error).__name__}: {said}). Please report this error{see}.")
        return ExitCode.STATEMENT_FAILED


class StatementFailed(Exception):  # noqa: N818  # its error is printed already; it only ends the run
    """A statement of a script failed."""


class ScriptRunner:
    """The runner of script files in one session; only the main thread uses it.

    Args:
        watch: shows progress while a statement runs. Its arguments: what runs, and a function that returns whether it is over.
        problem: describes a statement's error to the user.
        echo: whether to print each statement before it runs.
    """

    def __init__(
        self,
        printer: Printer,
        statements: StatementRunner,
        watch: Callable[[str, Callable[[], bool]], None],
        problem: Callable[[BaseException], Problem],
        echo: bool = True,
    ) -> None:
        self._printer = printer
        self._statements = statements
        self._watch = watch
        self._problem = problem
        self._echo = echo

    def run(self, scripts: Sequence[ScriptFile]) -> None:
        """Run the statements of files, and print their results.

        Raises:
            StatementFailed: a statement failed, which is printed; the statements after it were not run.
            KeyboardInterrupt: at an interrupt.
        """
        for script in scripts:
            self._run_script(script)

    def _run_script(self, script: ScriptFile) -> None:
        statements = split(script.text)
        if not statements:
            self._printer.note(f"{script.name} has no statements")
        for statement in statements:
            if self._echo:
                self._printer.line(f"{script.name}:{statement.line}  {_first_words(statement.text)}", "dim")
            try:
                watch = partial(self._watch, f"running {script.name}:{statement.line}")
                result = self._statements.run(statement.text, watch, show=self._printer.live_batch)
            except Exception as error:
                logger.exception("%s:%d failed", script.name, statement.line)
                self._printer.error(report(script.name, script.text, statement, self._problem(error)))
                raise StatementFailed from None
            self._printer.result(_without_secret(statement.text, result))


def _without_secret(text: str, result: Result) -> Result:
    """Redact what Spark answers to SET: keys, with their values."""
    if text.split()[0].upper() != "SET" or [*result.columns[:2]] != ["key", "value"]:
        return result
    show = of_application()
    rows = [(key, show.setting(key, value) if key and value else value, *more) for key, value, *more in result.rows]
    return replace(result, rows=rows)


def _first_words(text: str) -> str:
    line = " ".join(of_application().sql(text).split())
    return line if len(line) <= 100 else line[:97] + "..."
