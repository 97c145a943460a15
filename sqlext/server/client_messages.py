"""Error messages for the clients of a server.

They are without Java's classes and stacks, Python's tracebacks, Spark's plans and the folders of this machine. The server's own
log keeps all of that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_CLASS = r"(?:[a-z_]\w*\.)+[A-Z][\w$]*(?:Exception|Error|Throwable)"
_FRAMES = re.compile(
    r"\n\s*(?:at [\w.$/<>]+\(|\.\.\. \d+ more\b|(?:Caused by|Suppressed): |Driver stacktrace:|JVM stacktrace:).*", re.DOTALL
)
_RUNNING = re.compile(r"^Error (?:running query|operating \w+):? ")
_CONDITION = re.compile(rf"^\[[A-Z_][A-Z0-9_.]*\] (?={_CLASS}: )")
_CLASS_AT_START = re.compile(rf"^{_CLASS}: ?\s*")
_FREE_TEXT = re.compile(r"\[_LEGACY_ERROR_TEMP_3100\] ?")  # the condition that our own messages travel under
_PLAN = re.compile(r"(;\s*line \d+ pos \d+);?\n['+*!]?[A-Z(].*", re.DOTALL)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)*", re.MULTILINE)
_FRAME_OF_PYTHON = re.compile(r'^ *File "([^"]*/)?([^"/]+)", line', re.MULTILINE)


def for_client(text: str, hidden: Mapping[str, str]) -> str:
    r"""Return an error's text as a client may see it.

    >>> for_client('Error running query: [X] org.apache.spark.SparkException: [X] Too bad.\n\tat a.B.c(D.scala:1)', {})
    '[X] Too bad.'

    Args:
        text: the error's text.
        hidden: the folders to hide, longer ones first, with the text that replaces each.
    """
    text = _FRAMES.sub("", text)
    for _ in range(3):  # an exception of Hive's may wrap one of Spark's, each with its prefix
        text = _CONDITION.sub("", _RUNNING.sub("", _CLASS_AT_START.sub("", text)))
    text = _TRACEBACK.sub("", _PLAN.sub(r"\1", _FREE_TEXT.sub("", text)))
    text = _FRAME_OF_PYTHON.sub(r'  File "\2", line', text)
    for folder, name in hidden.items():
        text = text.replace(folder, name)
    return text.strip() or "The statement failed; the server's log says why."


def hidden_folders(warehouse: str) -> dict[str, str]:
    """Return the folders of this machine that messages may contain, longer ones first, with the text that replaces each.

    Args:
        warehouse: the warehouse's path or `file:` URI.
    """
    package = Path(__file__).parents[1]
    found = {
        re.sub("^file:/+", "/", warehouse).rstrip("/"): "<warehouse>",
        str(package.parent): "<python>",
        sys.prefix: "<python>",
        sys.base_prefix: "<python>",
    }
    found |= {str(Path.cwd()): "<server>", str(Path.home()): "<home>"}
    return {folder: found[folder] for folder in _longest_first(found) if folder not in ("", "/", "/usr")}


def _longest_first(folders: Iterable[str]) -> list[str]:
    return sorted(folders, key=lambda folder: (-len(folder), folder))
