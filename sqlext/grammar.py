"""The grammar of our statements' heads, read token by token; the query behind a head is parsed by `dialect.py`."""

from __future__ import annotations

from collections.abc import Iterator

from sqlext import dialect
from sqlext.detect import Token, setting_key, tokens
from sqlext.errors import Position, SyntaxProblem, UnreadableQuery, UnsupportedError, did_you_mean
from sqlext.options import Given
from sqlext.plan import TableDefinition
from sqlext.statements import (
    AlterFlow,
    CreateStreamingTable,
    CreateTableAs,
    DescribeFlow,
    Explain,
    FlowCommand,
    Insert,
    JobCommand,
    Name,
    Query,
    Select,
    SetOption,
    ShowFlows,
    Statement,
)


def parse(text: str) -> Statement:
    """Parse a statement of ours (`detect.is_ours`).

    Raises:
        SyntaxProblem: with the place and what was expected there.
    """
    return _Head(text, tokens(text)).statement()


class _Head:
    """A cursor over the tokens of one statement."""

    def __init__(self, text: str, found: list[Token]) -> None:
        self._text = text
        while found and found[-1].text == ";":
            found.pop()
        self._tokens = found
        self._at = 0

    # The grammar, top down.

    def statement(self) -> Statement:
        if self._take("EXPLAIN"):
            extended = self._take("EXTENDED")
            for mode in ("FORMATTED", "COST", "CODEGEN", "LOGICAL"):
                self._take(mode)
            return Explain(self.statement(), extended)
        word = self._word()
        if word == "CREATE" or word == "REPLACE":
            return self._create()
        if word in ("WITH", "SELECT", "FROM", "INSERT", "(", "VALUES", "TABLE"):
            return self._insert_or_select()
        if self._take("SHOW"):
            return self._show()
        if self._take("DESCRIBE") or self._take("DESC"):
            self._expect("FLOW")
            return self._end(DescribeFlow(self._name()))
        if self._take("SET"):
            return self._set()
        return self._command()

    def _create(self) -> Statement:
        position = self._position()
        start = self._at
        self._at += 1
        refresh = self._take("OR", "REFRESH")
        if self._take("STREAMING"):
            self._expect("TABLE")
            return self._streaming_table(refresh, position)
        if self._take("FLOW"):
            return self._create_flow(position)
        self._at = start
        while (token := self._peek()) and not (token.upper == "AS" and self._word(1) in ("SELECT", "WITH", "(", "FROM")):
            self._at += 1
        self._expect("AS")
        return CreateTableAs(self._query(), position)

    def _streaming_table(self, refresh: bool, position: Position) -> CreateStreamingTable:
        exists = self._take("IF", "NOT", "EXISTS")
        name = self._name()
        if self._word() == "(":
            raise self._problem("A streaming table takes its columns from its query; a column list cannot stand here")
        clauses: list[str] = []
        properties: dict[str, Given] = {}
        while not self._take("AS"):
            if self._take("TBLPROPERTIES"):
                properties.update(self._properties())
            else:
                clauses.append(self._table_clause())
        definition = TableDefinition(tuple(clauses), properties)
        return CreateStreamingTable(name, self._query(), definition, refresh, exists, position)

    def _table_clause(self) -> str:
        """COMMENT '..', LOCATION '..', PARTITIONED BY (..), CLUSTER BY (..) | AUTO | NONE, USING delta: as written."""
        token = self._peek()
        if token is None:
            raise self._problem("Expected AS and a query")
        start = token.start
        if self._take("COMMENT") or self._take("LOCATION"):
            self._string()
        elif self._take("PARTITIONED", "BY") or self._take("CLUSTER", "BY"):
            if not (self._take("AUTO") or self._take("NONE")):
                self._brackets()
        elif self._take("USING"):
            if not self._take("DELTA"):
                raise self._problem("A streaming table is a Delta table")
            return ""
        else:
            known = ("COMMENT", "LOCATION", "PARTITIONED BY", "CLUSTER BY", "TBLPROPERTIES", "AS")
            raise self._problem(f"Expected one of {', '.join(known)}", did_you_mean(token.text, known))
        return self._text[start : self._tokens[self._at - 1].stop]

    def _create_flow(self, position: Position) -> Insert:
        exists = self._take("IF", "NOT", "EXISTS")
        name = self._name()
        if self._take("COMMENT"):
            self._string()
        self._expect("AS")
        insert = self._insert_or_select()
        if not isinstance(insert, Insert):
            raise self._problem("A flow writes somewhere: expected INSERT INTO table SELECT ..")
        return Insert(insert.target, insert.query, insert.columns, insert.by_name, name, exists, position)

    def _insert_or_select(self) -> Statement:
        first = self._peek()
        if first is None:
            raise self._problem("Expected INSERT INTO table SELECT ..")
        position = self._position()
        words = [token.upper for token in self._tokens] + [""]
        inserts = (i for i in range(self._at, len(self._tokens)) if words[i] == "INSERT")  # or a column of that name
        insert = next((i for i in inserts if i == self._at or words[i + 1] in ("INTO", "OVERWRITE")), None)
        if insert is None:
            return Select(self._query(), position)
        prelude = self._text[first.start : self._tokens[insert].start]
        if self._word() == "FROM":
            raise UnsupportedError("A multi-insert cannot read a stream. Write one INSERT a target.", position)
        self._at = insert + 1
        if self._word() == "OVERWRITE":
            raise UnsupportedError(
                "INSERT OVERWRITE cannot read a stream: a stream has no end at which to overwrite. Use INSERT INTO, "
                "or CREATE OR REFRESH STREAMING TABLE.",
                self._position(),
            )
        self._expect("INTO")
        self._take("TABLE")
        target = self._name()
        if self._word() == "PARTITION":
            raise self._problem("A flow writes to the whole table; PARTITION cannot stand here")
        by_name = self._take("BY", "NAME")
        columns = self._column_list() if self._word() == "(" and self._word(1) not in ("SELECT", "WITH", "FROM") else ()
        query = self._query(prelude=(first.start, prelude))
        return Insert(target, query, columns, by_name, position=position)

    def _show(self) -> Statement:
        if self._take("FLOWS"):
            return self._end(ShowFlows())
        if self._take("JOBS"):
            return self._end(JobCommand("SHOW JOBS"))
        self._expect("JOB")
        self._expect("EVENTS")
        return self._end(JobCommand("SHOW JOB EVENTS", self._name()))

    def _set(self) -> SetOption:
        position = self._position()
        key = setting_key(self._tokens)
        while (token := self._peek()) and token.text != "=":
            if self._at > 1 and token.start != self._tokens[self._at - 1].stop:
                raise self._problem(f"Expected = after `{key}`")
            self._at += 1
        if not self._take("="):
            return SetOption(key, None, position)
        token = self._peek()
        value = self._text[token.start : self._tokens[-1].stop] if token else ""
        return SetOption(key, _unquoted(value), position)

    def _command(self) -> Statement:
        verbs = ("START", "STOP", "FLUSH", "WAIT", "DROP", "ALTER", "RESUME", "CANCEL")
        verb = next((verb for verb in verbs if self._take(verb)), None)
        if verb is None:
            raise self._problem("Expected a statement")
        if self._take("JOB"):
            return self._end(JobCommand(f"{verb} JOB", self._name()))
        self._expect("FLOW")
        exists = verb == "DROP" and self._take("IF", "EXISTS")
        name = self._name()
        if verb == "ALTER":
            self._expect("SET")
            return self._end(AlterFlow(name, self._properties()))
        timeout = self._timeout() if verb == "WAIT" and self._take("TIMEOUT") else None
        return self._end(FlowCommand(verb, name, exists, timeout))

    # Pieces.

    def _timeout(self) -> Given:
        token = self._peek()
        if token is None:
            raise self._problem("Expected a duration, such as 5 minutes")
        position = self._position()
        self._at = len(self._tokens)
        return Given(_unquoted(self._text[token.start : self._tokens[-1].stop]), position)

    def _properties(self) -> dict[str, Given]:
        """`('key' = 'value', a.b-c = 2, ..)`"""
        self._expect("(")
        found: dict[str, Given] = {}
        while True:
            key, position = self._property_text(("=", ",", ")"))
            self._take("=")
            value, value_position = self._property_text((",", ")"))
            if not key or not value:
                raise self._problem("Expected 'key' = 'value'")
            if key in found:
                raise SyntaxProblem(f"The property `{key}` is given twice.", position)
            found[key] = Given(_unquoted(value), value_position)
            if not self._take(","):
                break
        self._expect(")")
        return found

    def _property_text(self, ends: tuple[str, ...]) -> tuple[str, Position]:
        position = self._position()
        start = self._at
        while (token := self._peek()) and token.text not in ends:
            gap = self._at > start and token.start != self._tokens[self._at - 1].stop
            if gap and "=" in ends:
                break
            self._at += 1
        if self._at == start:
            return "", position
        raw = self._text[self._tokens[start].start : self._tokens[self._at - 1].stop]
        return (_unquoted(raw) if "=" in ends else raw), Position.of(self._text, position.start, self._tokens[self._at - 1].stop)

    def _column_list(self) -> Name:
        self._expect("(")
        columns = [self._identifier()]
        while self._take(","):
            columns.append(self._identifier())
        self._expect(")")
        return tuple(columns)

    def _name(self) -> Name:
        parts = [self._identifier()]
        while self._take("."):
            parts.append(self._identifier())
        return tuple(parts)

    def _identifier(self) -> str:
        token = self._peek()
        if token is None or token.kind not in ("word", "quoted"):
            raise self._problem("Expected a name")
        self._at += 1
        return _unquoted(token.text)

    def _string(self) -> str:
        token = self._peek()
        if token is None or token.kind != "text":
            raise self._problem("Expected a string")
        self._at += 1
        return _unquoted(token.text)

    def _brackets(self) -> None:
        self._expect("(")
        depth = 1
        while depth:
            if self._peek() is None:
                raise self._problem("Expected )")
            depth += (self._word() == "(") - (self._word() == ")")
            self._at += 1

    def _query(self, prelude: tuple[int, str] = (0, "")) -> Query:
        """The rest of the statement, read by the dialect; `prelude` is a WITH clause that stands before INSERT."""
        token = self._peek()
        if token is None:
            raise self._problem("Expected a query")
        blank = "".join(c if c in "\r\n" else " " for c in self._text)
        at, text = prelude
        stop = self._tokens[-1].stop
        source = blank[:at] + text + blank[at + len(text) : token.start] + self._text[token.start : stop]
        try:
            return Query(dialect.without_brackets(dialect.parse_query(source)), source)
        except SyntaxProblem as problem:
            raise UnreadableQuery(problem.message, problem.position, source) from None

    def _end(self, statement: Statement) -> Statement:
        if self._peek() is not None:
            raise self._problem("Expected the end of the statement")
        return statement

    # The cursor.

    def _peek(self, ahead: int = 0) -> Token | None:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def _word(self, ahead: int = 0) -> str:
        token = self._peek(ahead)
        return "" if token is None else token.upper or token.text

    def _take(self, *words: str) -> bool:
        if all(self._word(i) == word for i, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._problem(f"Expected {word}")

    def _position(self) -> Position:
        token = self._peek()
        if token is None:
            return Position.of(self._text, len(self._text.rstrip()))
        return Position.of(self._text, token.start, token.stop)

    def _problem(self, message: str, hint: str = "") -> SyntaxProblem:
        token = self._peek()
        found = f"found `{token.text}`" if token else "the statement ends here"
        return SyntaxProblem(f"{message}; {found}.{hint}", self._position())


def _unquoted(text: str) -> str:
    """A string literal's or quoted identifier's content; any other text as it is."""
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"`":
        return text
    body, mark = text[1:-1], text[0]
    if mark == "`":
        return body.replace("``", "`")
    return "".join(_unescaped(body.replace(mark * 2, mark)))


def _unescaped(body: str) -> Iterator[str]:
    escapes = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b"}
    characters = iter(body)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            yield escapes.get(escaped, escaped)
        else:
            yield character
