r"""The shell's own commands, as in psql: `\watch 2`, `\q`, `help`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlext.errors import SyntaxProblem, did_you_mean
from sqlext.sql.tokens import tokens

PATH_COMMAND = "\\i"
LEAVE = "\\q"
COMMANDS = {
    "\\?": "list what can be typed",
    "\\h": "show the syntax of sqlext's statements; \\h FLOW: those about flows",
    PATH_COMMAND: "run the statements of a file: \\i FILE",
    "\\watch": "repeat a statement every 2 seconds: SHOW FLOWS \\watch 2; alone: the last statement",
    "\\timing": "show or hide how long statements take: \\timing on, \\timing off",
    "\\maxrows": "set how many rows of a result are shown: \\maxrows 100",
    LEAVE: "leave, as Ctrl-D does: the flows are flushed and stopped, or go on at the host that the shell is connected to",
}
"""The commands, each with its meaning."""

_WORDS = {"help": "\\?", "quit": LEAVE, "exit": LEAVE}
_WATCH = re.compile(r"\\watch\b([^\n\\]*)$")
_DEFAULT_SECONDS = 2.0


@dataclass(frozen=True)
class Command:
    """A command to the shell.

    Attributes:
        name: one of `COMMANDS`.
        argument: the text after the name.
    """

    name: str
    argument: str = ""


@dataclass(frozen=True)
class Watch:
    """A statement to repeat.

    Attributes:
        text: the statement; empty: the last statement.
        seconds: the time from the start of one run to the start of the next.
    """

    text: str
    seconds: float


def parse(text: str) -> Command | Watch | None:
    """Return the shell command in a typed text; None if the text is statements.

    Raises:
        SyntaxProblem: there is no such command, or its argument is wrong.
    """
    stripped = text.strip()
    bare = stripped.rstrip(";").rstrip()
    if name := _WORDS.get(bare.lower()):
        return Command(name)
    if (match := _WATCH.search(stripped)) is not None and not _is_quoted(stripped[: match.start()]):
        return Watch(stripped[: match.start()].strip(), _seconds(match[1]))
    if not stripped.startswith("\\"):
        return None
    name, _, argument = bare.partition(" ")
    if name not in COMMANDS:
        raise SyntaxProblem(f"There is no command {name}.{did_you_mean(name, COMMANDS)} \\? lists all commands.")
    return Command(name, argument.strip())


def is_command(text: str) -> bool:
    """Return whether a line runs without a `;` at its end."""
    stripped = text.strip()
    if stripped.startswith("\\") or stripped.lower() in _WORDS:
        return True
    match = _WATCH.search(stripped)
    return match is not None and not _is_quoted(stripped[: match.start()])


def _is_quoted(before: str) -> bool:
    """Return whether a quote or comment is open at the end of a text."""
    found = tokens(before)
    is_open = any(token.kind == "symbol" and token.text in "'\"`" for token in found)
    return is_open or not tokens(before + " x")[len(found) :]


def _seconds(text: str) -> float:
    given = text.strip().rstrip(";").strip()
    try:
        seconds = float(given) if given else _DEFAULT_SECONDS
    except ValueError:
        seconds = 0
    if not 0 < seconds < 86_400:
        raise SyntaxProblem(f"\\watch cannot be `{given}`. Give the seconds from one run to the next, such as \\watch 2.")
    return seconds
