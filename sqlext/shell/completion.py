"""Completion at the cursor: statements, options, hints, and names of the session."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from sqlext.app.reference import FUNCTIONS, HEADS, PHRASES, STATEMENTS
from sqlext.functions.scalar import AGGREGATES
from sqlext.options import HINTS, OPTIONS, Option, is_option_key
from sqlext.options import option as option_of
from sqlext.quoting import quote
from sqlext.shell.meta import COMMANDS, PATH_COMMAND
from sqlext.shell.names import Names
from sqlext.sql.tokens import Token, tokens

_WORD = re.compile(r"[\w.`]*$")
_KEY = re.compile(r"[\w.`-]*$")
_FLOW_VERBS = frozenset(each.head.split()[0] for each in STATEMENTS if each.head.endswith(" FLOW")) - {"CREATE"} | {"DESC"}
_BEFORE_RELATIONS = frozenset("FROM JOIN INTO TABLE STREAM DESCRIBE DESC VIEW UPDATE OPTIMIZE VACUUM DETAIL HISTORY".split())
_MEANINGS = {each.head: each.meaning for each in STATEMENTS}
_EXAMPLES = {"duration": ("1 minute", "10 minutes"), "boolean": ("true", "false"), "size": ("1 MB",)}


@dataclass(frozen=True)
class _Place:
    """The place of a completion.

    Attributes:
        before: the statement's tokens before the word that is being typed.
        word: the part of that word before the cursor.
    """

    before: tuple[Token, ...]
    word: str

    def upper(self, back: int) -> str:
        """Return a token before the word, in upper case; `back` is 1 for the last one. Empty: there is none."""
        return self.before[-back].upper if back <= len(self.before) else ""


class StatementCompleter(Completer):
    """The completer of the shell. It reads names only where they can stand."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if text.lstrip().startswith("\\"):
            yield from self._of_command(text.lstrip(), complete_event)
            return
        found = _of_last_statement(tokens(text))
        if found and found[-1].kind == "hint" and not found[-1].text.endswith("*/"):
            yield from _matching(text, _WORD, {name: HINTS[name].option.key for name in HINTS})
        elif (quoted := _open_quote(found)) is not None:
            yield from self._in_quotes(found[:quoted], text[found[quoted].start + 1 :])
        else:
            yield from self._of_statement(found, text)

    def _of_command(self, text: str, event: CompleteEvent) -> Iterator[Completion]:
        command, blank, rest = text.partition(" ")
        if not blank:
            yield from _matching(text, re.compile(r"\\\w*$"), COMMANDS)
        elif command == PATH_COMMAND:
            yield from self._paths.get_completions(Document(rest), event)

    # Inside quotes: keys and values of options.

    def _in_quotes(self, before: list[Token], word: str) -> Iterator[Completion]:
        if before and before[-1].text == "=":
            if (option := _option_of(before[:-1])) is not None:
                yield from _starting(word, dict.fromkeys(_values_of(option), option.doc))
        elif before and before[-1].text in ("(", ","):
            yield from _starting(word, _option_keys())

    # Elsewhere.

    def _of_statement(self, found: list[Token], text: str) -> Iterator[Completion]:
        if len(found) > 0 and found[0].upper == "SET" and "=" not in text[found[0].start :]:
            yield from _matching(text[found[0].stop :].lstrip(), _KEY, _option_keys())
            return
        if len(found) > 1 and found[0].upper == "SET" and found[-1].text == "=":
            key = text[found[0].stop : found[-1].start].strip().strip("`")
            if is_option_key(key):
                yield from _starting("", dict.fromkeys(_values_of(option_of(key)), key))
            return
        word = _WORD.search(text)[0]  # type: ignore[index]  # it matches everywhere
        start = len(text) - len(word)
        place = _Place(tuple(token for token in found if token.start < start), word)
        last = place.upper(1)
        if (last == "FLOW" and place.upper(2) in _FLOW_VERBS) or (last == "EXISTS" and place.upper(3) == "FLOW"):
            yield from _starting(word, self._names.flows(), is_name=True)
        elif (place.upper(2), last) in (("RESUME", "JOB"), ("CANCEL", "JOB"), ("JOB", "EVENTS")):
            yield from _starting(word, self._names.jobs())
        else:
            yield from self._relations(place)
            yield from self._phrases(place)

    def _relations(self, place: _Place) -> Iterator[Completion]:
        if place.upper(1) in _BEFORE_RELATIONS or self._is_in_from_list(place):
            database, dot, name = place.word.rpartition(".")
            relations = self._names.relations(database.strip("`"))
            yield from _starting(name if dot else place.word, relations, is_name=True)

    def _is_in_from_list(self, place: _Place) -> bool:
        """Return whether the word follows a comma in a FROM list, as in `FROM a, b`."""
        if not place.before or place.before[-1].text != ",":
            return False
        words = [token.upper for token in place.before]
        clauses = ("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "SET", "VALUES")
        return next((word for word in reversed(words) if word in clauses), "") == "FROM"

    def _phrases(self, place: _Place) -> Iterator[Completion]:
        """Complete a statement's first words; later in a statement, keywords and functions of Spark and sqlext."""
        words = [token.upper for token in place.before]
        if rest := list(_starting(place.word, _rest_of_heads(words), is_word=True)):
            yield from rest
        elif words and place.word:
            yield from _starting(place.word, dict.fromkeys((*PHRASES, *self._names.words()), ""), is_word=True)
            functions = dict.fromkeys((*FUNCTIONS, *sorted(AGGREGATES), *self._names.functions()), "function")
            yield from _starting(place.word, functions)


def _of_last_statement(found: list[Token]) -> list[Token]:
    ends = [at for at, token in enumerate(found) if token.text == ";"]
    return found[ends[-1] + 1 :] if ends else found


def _open_quote(found: list[Token]) -> int | None:
    """Return the index of a quote that is not closed; None: there is none."""
    return next((at for at, token in enumerate(found) if token.kind == "symbol" and token.text in "'\""), None)


def _option_keys() -> Mapping[str, str]:
    return {key: f"{each.doc} [{each.default_text}]" for key, each in OPTIONS.items()}


def _option_of(before: list[Token]) -> Option[object] | None:
    """Return the option whose quoted key is the last token."""
    key = before[-1].text.strip("'\"") if before else ""
    return OPTIONS.get(key)


def _values_of(option: Option[object]) -> Iterable[str]:
    return dict.fromkeys((option.default_text, *option.choices, *_EXAMPLES.get(option.kind, ())))


def _rest_of_heads(words: list[str]) -> Mapping[str, str]:
    """Return the words that may follow a statement's first words, up to its first name."""
    size = len(words)
    found = (head.split() for head in HEADS)
    return {" ".join(head[size:]): _MEANINGS.get(" ".join(head), "") for head in found if head[:size] == words and head[size:]}


def _matching(text: str, pattern: re.Pattern[str], names: Mapping[str, str]) -> Iterator[Completion]:
    match = pattern.search(text)
    yield from _starting(match[0] if match else "", names)


def _starting(word: str, names: Mapping[str, str], is_name: bool = False, is_word: bool = False) -> Iterator[Completion]:
    """Yield the names that begin with a word, ignoring case.

    Args:
        is_name: whether they are identifiers, which are quoted in backticks where necessary.
        is_word: whether they are keywords, which are in lower case if the word is.
    """
    bare = word.lstrip("`").lower()
    for name, meaning in sorted(names.items()):
        if name.lower().startswith(bare) and name.lower() != word.lower():
            text = name
            if is_name and (not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name) or word.startswith("`")):
                text = quote(name)
            elif is_word and word and word == word.lower():
                text = name.lower()
            yield Completion(text, -len(word), display=name, display_meta=meaning)
