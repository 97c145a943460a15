"""The tokens of a statement, and whether they make it one of ours.

Spark gets every other statement byte for byte, so this runs for each statement of each client and has to be quick. A statement is
ours by its first words, or by a construct that may stand anywhere in it. A search in the text rules out nearly all statements
without such a construct, and only the others are cut into tokens as a whole.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from sqlext.functions.partition import OPERATORS
from sqlext.options import HINTS, HOME_KEY, is_option_key

_FIRST_TOKENS = 16
"""So many tokens tell whether a statement is a command of ours, or SET with a key of ours."""
# What our constructs look like in a text in lower case, be it in a literal: a comment may stand between any two of their tokens.
_RELATION = re.compile(r"stream\b(?=\s*(?:[\w`(]|/\*|--))")
_MOST_BEFORE = 80  # characters; where they are all blank, anything may stand before them
_CLAUSE = re.compile(r"global(?=\s+window\b|\s*/\*|\s*--)")
_OPERATOR_CALL = re.compile(rf"(?:{'|'.join(OPERATORS)})\b(?=\s*(?:\(|/\*|--))")
_HINT_NAMES = tuple(hint.lower() for hint in HINTS)

# Spark's lexer, reduced to five kinds: skipped text, hints, literals, words, and single characters.
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<line_comment>--(?:[^\r\n\\]+|\\\n?)*)
  | (?P<hint>/\*\+)
  | (?P<comment>/\*)
  | (?P<text>\$(?P<tag>[a-zA-Z]*)\$.*?\$(?P=tag)\$ | [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<word>\w+)
  | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_TYPES = frozenset(
    """
    ARRAY BIGINT BINARY BOOLEAN BYTE CHAR CHARACTER DATE DEC DECIMAL DOUBLE FLOAT GEOGRAPHY GEOMETRY INT INTEGER INTERVAL LONG
    MAP NUMERIC REAL SHORT SMALLINT STRING STRUCT TIME TIMESTAMP TIMESTAMP_LTZ TIMESTAMP_NTZ TINYINT VARCHAR VARIANT VOID
    """.split()
)
_BRACKET = re.compile(r"/\*(?!\+)|\*/")  # comments nest, hints do not


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a statement.

    Attributes:
        kind: `word`, `quoted` (an identifier in backticks), `text` (a string literal), `hint` (a whole `/*+ .. */`) or
            `symbol` (one character).
        text: the token as written.
        start: the 0-based offset of its first character.
    """

    kind: str
    text: str
    start: int

    @property
    def upper(self) -> str:
        """The word in upper case; an empty string for a token that is not a bare word."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def stop(self) -> int:
        """The 0-based offset after the last character."""
        return self.start + len(self.text)


def tokens(text: str) -> list[Token]:
    """Cut `text` into tokens as Spark's lexer does, without comments and white space."""
    return list(_cut(text))


def _cut(text: str) -> Iterator[Token]:
    at = 0
    while match := _TOKEN.match(text, at):
        kind, start, at = match.lastgroup or "symbol", at, match.end()
        if kind == "comment":
            at = _end_of_bracketed_comment(text, at)
        elif kind == "hint":
            at = max(text.find("*/", at), 0) + 2 or len(text)
            at = at if at > start + 2 else len(text)
            yield Token(kind, text[start:at], start)
        elif kind not in ("space", "line_comment"):
            yield Token(kind, match.group(), start)


def normal_text(text: str, folds_case: bool) -> str:
    """Return a form of a text that is equal for texts that differ only in comments and white space.

    Args:
        folds_case: whether texts that differ in the case of words are equal too, apart from words in paths of VARIANT.

    >>> normal_text("SELECT k -- the key", folds_case=True) == normal_text("select K", folds_case=True)
    True
    """
    found = tokens(text)
    exact = words_of_paths(found) if folds_case else frozenset()
    folded = [folds_case and token.kind == "word" and at not in exact for at, token in enumerate(found)]
    return " ".join(token.text.lower() if folds else token.text for token, folds in zip(found, folded, strict=True))


def words_of_paths(found: list[Token]) -> frozenset[int]:
    """Return the indexes of the words in paths of VARIANT, such as `v:x[0].y`: Spark takes `x` and `X` for two fields."""
    words: set[int] = set()
    types = 0  # how many types such as STRUCT< are open
    for at, token in enumerate(found):
        before, after = found[at - 1 : at], found[at + 1 : at + 2]
        if token.text == "<" and before and before[0].upper in ("ARRAY", "MAP", "STRUCT"):
            types += 1
        elif token.text == ">" and types:
            types -= 1
        is_cast = any(each and each[0].text == ":" for each in (before, after))
        is_type = types > 0 and bool(after) and after[0].upper in _TYPES  # STRUCT<x: INT>
        if token.text == ":" and not is_cast and not is_type:
            words.update(_path_from(found, at + 1))
    return frozenset(words)


def _path_from(found: list[Token], at: int) -> Iterator[int]:
    """Yield the indexes of the words of a path that begins at `at`."""
    while at < len(found):
        if found[at].kind in ("word", "quoted"):
            yield at
            at += 1
        elif found[at].text == "[":
            at += 3
        if at + 1 < len(found) and found[at].text == "." and found[at + 1].kind in ("word", "quoted"):
            at += 1
        elif at >= len(found) or found[at].text != "[":
            return


def _end_of_bracketed_comment(text: str, at: int) -> int:
    """Return the offset after a bracketed comment; such comments nest."""
    depth = 1
    while depth and (mark := _BRACKET.search(text, at)):
        depth += 1 if mark.group() == "/*" else -1
        at = mark.end()
    return len(text) if depth else at


def is_ours(text: str) -> bool:
    """Return whether a statement uses one of our constructs; any other statement must reach Spark unchanged."""
    first = next(_cut(text), None)
    if first is None or first.upper == "BEGIN":
        return False
    if first.upper in _FIRST_WORDS and is_ours_by_tokens(list(itertools.islice(_cut(text), _FIRST_TOKENS))):
        return True
    return _may_hold_ours(text.casefold()) and is_ours_by_tokens(tokens(text))


def _may_hold_ours(text: str) -> bool:
    """Return whether a text in lower case may have a construct of ours that can stand anywhere."""
    if "stream" in text:
        relations = (each.start() for each in _RELATION.finditer(text))
        if _CLAUSE.search(text) or any(_may_be_relation(text, at) for at in relations):
            return True
    return bool(_OPERATOR_CALL.search(text)) or ("/*+" in text and any(name in text for name in _HINT_NAMES))


def _may_be_relation(text: str, at: int) -> bool:
    """Return whether FROM, JOIN, a comma, a bracket or a comment stands before a place."""
    before = text[max(at - _MOST_BEFORE, 0) : at]
    word = before.rstrip()
    blank = before[len(word) :]
    return not word or word.endswith(("from", "join", ",", "(", "*/")) or "\n" in blank or "\r" in blank


def is_ours_by_tokens(found: list[Token]) -> bool:
    """Return whether a statement, given as its tokens, uses one of our constructs."""
    return is_flow_statement(found) or (_calls_a_partition_operator(found) and found[0].upper != "BEGIN")


def _calls_a_partition_operator(found: list[Token]) -> bool:
    """Return whether a partition operator is called with a table argument: the name alone may be a user's own function."""
    return any(
        name.upper.lower() in OPERATORS and bracket.text == "(" and table.upper == "TABLE"
        for name, bracket, table in zip(found, found[1:], found[2:], strict=False)
    )


def is_flow_statement(found: list[Token]) -> bool:
    """Return whether a statement is ours, apart from calls of partition operators."""
    while found and found[-1].text == ";":
        found = found[:-1]
    words = [token.upper for token in found]
    if words[:1] == ["SET"]:
        return _is_our_setting(found)
    if words[:1] == ["EXPLAIN"]:
        skip = 2 if words[1:2] and words[1] in ("EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL") else 1
        return is_flow_statement(found[skip:])
    if words[:1] == ["BEGIN"]:  # a script is Spark's, and so are all statements in it
        return False
    return (
        _is_our_command(words, found)
        or end_of_stream_at(found) is not None
        or any(map(our_hints, found))
        or (_writes(words) and any(True for _ in _stream_relations(found)))
    )


_COMMANDS = (
    ("CREATE", "STREAMING", "TABLE"),
    ("CREATE", "OR", "REFRESH", "STREAMING", "TABLE"),
    ("CREATE", "OR", "REPLACE", "STREAMING", "TABLE"),
    ("REFRESH", "STREAMING", "TABLE"),
    ("CREATE", "MATERIALIZED", "VIEW"),
    ("CREATE", "OR", "REFRESH", "MATERIALIZED", "VIEW"),  # refused, with the statements that are there instead
    ("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW"),
    ("REFRESH", "MATERIALIZED", "VIEW"),
    ("CREATE", "FLOW"),
    ("SHOW", "FLOWS"),
    ("SHOW", "PARTITION", "FUNCTIONS"),
    ("SHOW", "MATERIALIZED", "VIEWS"),
    ("SHOW", "LINEAGE"),
    ("SHOW", "JOBS"),
    ("SHOW", "JOB", "EVENTS"),
    ("DESCRIBE", "FLOW"),
    ("DESC", "FLOW"),
    *((verb, "FLOW") for verb in ("START", "STOP", "FLUSH", "WAIT", "DROP", "ALTER")),
    *((verb, "STREAMING", "TABLE") for verb in ("DROP", "ALTER")),
    *((verb, "MATERIALIZED", "VIEW") for verb in ("DROP", "ALTER")),
    *((verb, "JOB") for verb in ("RESUME", "CANCEL")),
    ("REPLAY", "QUARANTINE"),
    ("SAVEPOINT", "FLOW"),
    ("RESTORE", "FLOW"),
    ("SHOW", "SAVEPOINTS"),
    ("DROP", "SAVEPOINT"),
)


_FIRST_WORDS = frozenset(command[0] for command in _COMMANDS) | {"SET", "EXPLAIN"}


def _is_our_command(words: list[str], found: list[Token]) -> bool:
    for command in _COMMANDS:
        if tuple(words[: len(command)]) == command:
            # DESCRIBE flow and DESCRIBE flow.t describe tables, RESTORE flow TO VERSION AS OF 1 restores one
            of_table = command[0] == "RESTORE" and (words[2:3] in (["TO"], ["FOR"]) or words[3:5] == ["AS", "OF"])
            return command[0] not in ("DESCRIBE", "DESC", "RESTORE") or (len(found) > 2 and found[2].text != "." and not of_table)
    return False


def _is_our_setting(found: list[Token]) -> bool:
    key = setting_key(found)
    return is_option_key(key) or (key.lower().startswith("spark.sqlext.") and key.lower() != HOME_KEY)


def setting_key(found: list[Token]) -> str:
    """Return the key of `SET key = value`, as written; keys have dots and dashes, so they span several tokens."""
    key: list[str] = []
    for before, token in itertools.pairwise(found):
        if token.text == "=" or (key and token.start != before.stop):
            break
        key.append(token.text.strip("`"))
    return "".join(key)


def end_of_stream_at(found: list[Token]) -> int | None:
    """Return the index of the first token of GLOBAL WINDOW END OF STREAM, or None if the clause is absent."""
    clause = ["GLOBAL", "WINDOW", "END", "OF", "STREAM"]
    places = (at for at, token in enumerate(found) if token.upper == "GLOBAL")
    return next((at for at in places if [token.upper for token in found[at : at + 5]] == clause), None)


def blanked(text: str) -> str:
    """Return a text with everything but its line breaks blanked out, so that what stands behind it keeps its place."""
    return "".join(each if each in "\r\n" else " " for each in text)


def without_stream_names(text: str) -> str:
    """Return a text with the clauses IDENTIFIED BY blanked out."""
    found = tokens(text)
    for at, token in enumerate(found[:-2]):
        if token.upper == "IDENTIFIED" and found[at + 1].upper == "BY":
            start, stop = token.start, found[at + 2].stop
            text = text[:start] + blanked(text[start:stop]) + text[stop:]
    return text


def without_end_of_stream(text: str, found: list[Token]) -> str:
    """Return a text with the clauses GLOBAL WINDOW END OF STREAM blanked out.

    Args:
        text: what Spark is to read.
        found: the tokens of the statement, whose offsets are those of the text.
    """
    while (at := end_of_stream_at(found)) is not None:
        start, stop = found[at].start, found[at + 4].stop
        text = text[:start] + " " * (stop - start) + text[stop:]
        found = found[at + 5 :]
    return text


def our_hints(token: Token) -> set[str]:
    """Return the names of our hints in a hint comment; none in any other token."""
    return _hint_names(token.text[3:-2]) & HINTS.keys() if token.kind == "hint" else set()


def _hint_names(body: str) -> set[str]:
    """Return the names of the hints in a hint comment, without their arguments."""
    names: set[str] = set()
    depth = 0
    for token in tokens(body):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.upper:
            names.add(token.upper)
    return names


def _writes(words: list[str]) -> bool:
    """Return whether a statement is INSERT .. or CREATE/REPLACE TABLE .. AS, which Spark itself cannot do from a stream."""
    if words[:1] in (["INSERT"], ["WITH"], ["FROM"]):
        return any(begins_insert(words, at) for at in range(len(words)))
    create = [word for word in words[:5] if word not in ("OR", "REPLACE", "EXTERNAL")]
    return create[:2] == ["CREATE", "TABLE"] or words[:2] == ["REPLACE", "TABLE"]


def begins_insert(words: list[str], at: int) -> bool:
    """Return whether an INSERT begins at a word; `insert` alone may be a column."""
    following = words[at + 1 : at + 4]
    return words[at] == "INSERT" and (following[:1] in (["INTO"], ["OVERWRITE"]) or following == ["WITH", "SCHEMA", "EVOLUTION"])


# The words that may follow a table that is itself called `stream`.
AFTER_A_TABLE = frozenset(
    """
    AS WHERE GROUP HAVING ORDER SORT DISTRIBUTE CLUSTER LIMIT OFFSET UNION EXCEPT MINUS INTERSECT JOIN INNER LEFT
    RIGHT FULL CROSS SEMI ANTI NATURAL LATERAL PIVOT UNPIVOT TABLESAMPLE WINDOW ON USING VERSION TIMESTAMP FOR
    QUALIFY SELECT INSERT MAP REDUCE SET VALUES
    """.split()
)


def is_stream_relation(found: list[Token], index: int) -> bool:
    """Return whether the token at `index` is the STREAM of `FROM STREAM t`, `JOIN STREAM(t)` or `, STREAM t`."""
    return found[index].upper == "STREAM" and index in _stream_relations(found)


def _stream_relations(found: list[Token]) -> Iterator[int]:
    """Yield the index of each STREAM that stands before a relation.

    After a comma or bracket it does so in a FROM list and in a table function's argument; elsewhere it may be a column.
    """
    in_list = [False]  # for each open bracket: whether a relation may follow a comma there
    for at, (before, token) in enumerate(itertools.pairwise([Token("symbol", "", 0), *found])):
        if token.text == "(":
            goes_on = before.upper in ("FROM", "JOIN") or before.text in (",", "(", "")
            in_list.append(before.upper == "TABLE" or (goes_on and in_list[-1]))
        elif token.text == ")":
            in_list.pop()
            in_list = in_list or [False]
        elif token.upper in ("FROM", "JOIN"):
            in_list[-1] = True
        elif token.upper in ("SELECT", "WHERE", "BY", "ON", "HAVING", "SET", "VALUES"):
            in_list[-1] = False
        elif token.upper == "STREAM" and in_list[-1] and _stands_before_a_name(found, at):
            yield at


def _stands_before_a_name(found: list[Token], at: int) -> bool:
    """Return whether a STREAM in a FROM list stands before the name of a relation, and is not one itself."""
    if at == 0 or at + 1 == len(found):
        return False
    before, after = found[at - 1], found[at + 1]
    if before.upper == "FROM" and at > 1 and found[at - 2].upper == "DISTINCT":  # a IS DISTINCT FROM stream
        return False
    if before.upper not in ("FROM", "JOIN") and before.text not in (",", "("):
        return False
    return after.kind == "quoted" or after.text == "(" or (bool(after.upper) and after.upper not in AFTER_A_TABLE)
