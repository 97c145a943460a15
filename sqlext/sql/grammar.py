"""The grammar of our statements' heads, read token by token; `dialect.py` parses the query after a head."""

from __future__ import annotations

from dataclasses import replace

from sqlext.errors import Position, SyntaxProblem, UnreadableQuery, UnsupportedError
from sqlext.options import ValueText
from sqlext.plan.change_capture import ChangeCapture
from sqlext.plan.job_graph import TableDefinition
from sqlext.sql import dialect, end_of_stream
from sqlext.sql.change_grammar import ChangeCursor
from sqlext.sql.cursor import unquoted
from sqlext.sql.insert_grammar import InsertCursor
from sqlext.sql.partition_calls import partition_calls, partition_query, spark_form
from sqlext.sql.recursion import deep_recursion
from sqlext.sql.savepoint_grammar import SavepointCursor
from sqlext.sql.statements import (
    AlterConstraint,
    AlterFlow,
    AlterFlowQuery,
    AlterStreamingTable,
    AutoCdc,
    BoundedStatement,
    CreateStreamingTable,
    CreateTableAs,
    DeclareStreamingTable,
    DescribeFlow,
    DropMaterializedView,
    DropStreamingTable,
    Explain,
    FlowCommand,
    Insert,
    JobCommand,
    Name,
    Query,
    RefreshMaterializedView,
    RefreshStreamingTable,
    Select,
    SetOption,
    ShowFlows,
    ShowLineage,
    ShowMaterializedViews,
    ShowPartitionFunctions,
    Statement,
)
from sqlext.sql.tokens import begins_insert, end_of_stream_at, is_flow_statement, setting_key, tokens, without_end_of_stream
from sqlext.sql.view_grammar import ViewCursor

_QUERY_OWNERS = ("STREAMING", "MATERIALIZED", "FLOW")
"""The words after CREATE of what has a query of its own: GLOBAL WINDOW END OF STREAM does not make it a bounded statement."""


@deep_recursion()
def parse(text: str) -> Statement:
    """Parse a statement of ours (`tokens.is_ours`).

    Raises:
        SyntaxProblem: the statement does not follow the grammar; has the position and what was expected there.
    """
    found = tokens(text)
    if calls := partition_calls(found):
        if not is_flow_statement(found):
            return partition_query(text, found, calls)
        text = spark_form(text, found, calls)
        found = tokens(text)
    return _Head(text, found).statement()


class _Head(ViewCursor, ChangeCursor, SavepointCursor, InsertCursor):
    """A cursor that reads one statement, top down."""

    def statement(self) -> Statement:
        """Read the statement, or the one that EXPLAIN explains."""
        if self._take("EXPLAIN"):
            extended = self._take("EXTENDED")
            for mode in ("FORMATTED", "COST", "CODEGEN", "LOGICAL"):
                self._take(mode)
            return Explain(self.statement(), extended)
        if (bounded := self._bounded()) is not None:
            return bounded
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
        if self._take("REFRESH"):
            return self._refresh()
        if self._take("SAVEPOINT"):
            return self._make_savepoint()
        if self._take("RESTORE"):
            return self._restore()
        return self._command()

    def _bounded(self) -> BoundedStatement | None:
        """Read a Spark statement with GLOBAL WINDOW END OF STREAM in its query; return None for all others and for flows."""
        clause = end_of_stream_at(self._tokens)
        if clause is None or (
            self._word() == "CREATE" and self._word_after("CREATE", "OR", "REFRESH", "REPLACE") in _QUERY_OWNERS
        ):
            return None
        start = self._at
        first, verb = self._tokens[start], self._word()
        at = self._query_of_statement(verb)
        if at is None or (at > clause and verb != "WITH"):
            token = self._tokens[clause]
            raise UnsupportedError(
                f"GLOBAL WINDOW END OF STREAM has no meaning in this {verb}. Write it in a query: SELECT, INSERT .. SELECT, "
                "CREATE TABLE .. AS, CREATE VIEW .. AS.",
                Position.of(self._text, token.start, token.stop),
            )
        insert = self._insert_after_with(at)
        head_at = start if insert is None else insert
        prelude = (0, "") if insert is None else (first.start, self._text[first.start : self._tokens[insert].start])
        # up to its last token: after a comment, what follows could be a comment too
        head = self._text[self._tokens[head_at].start : self._tokens[at - 1].stop] if at > head_at else ""
        self._at = at
        query = self._query(prelude)
        self._at = head_at
        if not end_of_stream.is_bounded(query):
            self._at = start
            return None
        target = self._target() if head else ()
        return BoundedStatement(head, target, query, self._properties_before(at) if verb in ("CREATE", "REPLACE") else {})

    def _properties_before(self, stop: int) -> dict[str, ValueText]:
        """Read the TBLPROPERTIES before the query at `stop`; return none if there are none."""
        words = [token.upper for token in self._tokens[self._at : stop]]
        if "TBLPROPERTIES" not in words:
            return {}
        self._at += words.index("TBLPROPERTIES") + 1
        return self._properties()

    def _target(self) -> Name:
        """Read the table that INSERT or CREATE TABLE .. AS fills; return an empty name for a view or a directory."""
        self._take("INSERT", "WITH", "SCHEMA", "EVOLUTION")
        while self._take("INSERT") or self._take("CREATE") or self._take("OR") or self._take("REPLACE") or self._take("EXTERNAL"):
            pass
        if not (self._take("INTO") or self._take("OVERWRITE") or self._word() == "TABLE"):
            return ()
        self._take("TABLE")
        self._take("IF", "NOT", "EXISTS")
        return () if self._word() in ("LOCAL", "DIRECTORY") else self._name()

    def _query_of_statement(self, verb: str) -> int | None:
        """Return the index of the first token of a statement's query."""
        if verb in ("SELECT", "FROM", "(", "VALUES", "TABLE"):
            return self._at
        if verb == "WITH":
            insert = self._insert_after_with(len(self._tokens))
            return self._at if insert is None else self._first_of_query(insert)
        if verb == "INSERT":
            return self._first_of_query(self._at)
        if verb in ("CREATE", "REPLACE"):
            words = (self._tokens[at].upper for at in range(self._at, len(self._tokens)))
            place = next((at for at, word in enumerate(words, self._at) if word == "AS" and self._begins_query(at + 1)), None)
            return None if place is None else place + 1
        return None

    def _word_after(self, *skipped: str) -> str:
        ahead = 0
        while self._word(ahead) in skipped:
            ahead += 1
        return self._word(ahead)

    def _create(self) -> Statement:
        position = self._position()
        start = self._at
        self._at += 1
        refresh, replace = self._take("OR", "REFRESH"), self._take("OR", "REPLACE")
        if self._take("STREAMING"):
            self._expect("TABLE")
            return self._streaming_table(refresh, replace, position)
        if self._take("MATERIALIZED", "VIEW"):
            return self._create_view(refresh, replace, position)
        if self._take("FLOW"):
            return self._create_flow(position)
        self._at = start
        while (token := self._peek()) and not (token.upper == "AS" and self._word(1) in ("SELECT", "WITH", "(", "FROM")):
            self._at += 1
        self._expect("AS")
        return CreateTableAs(self._query(), position)

    def _streaming_table(
        self, refresh: bool, replace: bool, position: Position
    ) -> CreateStreamingTable | DeclareStreamingTable | AutoCdc:
        exists = self._take("IF", "NOT", "EXISTS")
        name = self._name()
        columns, properties = self._table_columns() if self._word() == "(" else ((), {})
        clauses: list[str] = []
        while not self._take("AS"):
            if self._take("TBLPROPERTIES"):
                properties.update(self._table_properties())
            elif self._word() in ("FLOW", ""):
                break
            else:
                clauses.append(self._table_clause(("FLOW AUTO CDC",)))
        definition = TableDefinition(tuple(clauses), properties, columns)
        if self._peek() is None and self._word(-1) != "AS":
            return DeclareStreamingTable(name, definition, refresh, replace, exists, position)
        if not self._take("FLOW"):
            return CreateStreamingTable(name, self._query(), definition, refresh, replace, exists, position)
        capture = self._auto_cdc(self._auto_cdc_words())
        return AutoCdc(
            capture, CreateStreamingTable(name, self._rows_of(capture, position), definition, refresh, replace, exists, position)
        )

    def _rows_of(self, capture: ChangeCapture, create: Position) -> Query:
        """Parse the rows of the source of AUTO CDC as a query: its SELECT stands in the place of CREATE, which is as long."""
        blank, source = self._blank(), capture.source
        behind = self._text[create.stop :]
        star = create.stop + len(behind) - len(behind.lstrip())
        head = f"{blank[: create.start]}SELECT{blank[create.stop : star]}*{blank[star + 1 : source.position.start]}"
        return self._parsed(head + source.text)

    def _create_flow(self, position: Position) -> Insert | AutoCdc:
        exists = self._take("IF", "NOT", "EXISTS")
        name = self._name()
        comment = self._string() if self._take("COMMENT") else ""
        self._expect("AS")
        if self._word() == "AUTO":
            place = self._auto_cdc_words()
            self._expect("INTO")
            target = self._name()
            capture = self._auto_cdc(place)
            return AutoCdc(capture, Insert(target, self._rows_of(capture, position), (), True, name, exists, comment, position))
        insert = self._insert_or_select()
        if not isinstance(insert, Insert):
            raise self._problem("A flow needs a target: expected INSERT INTO table SELECT ..")
        return replace(insert, flow=name, if_not_exists=exists, comment=comment, position=position)

    def _insert_or_select(self) -> Statement:
        first = self._peek()
        if first is None:
            raise self._problem("Expected INSERT INTO table SELECT ..")
        position = self._position()
        words = [token.upper for token in self._tokens]
        inserts = (i for i in range(self._at, len(words)) if begins_insert(words, i) or (i == self._at and words[i] == "INSERT"))
        insert = next(inserts, None)
        if insert is None:
            return Select(self._query(), position)
        prelude = self._text[first.start : self._tokens[insert].start]
        if self._word() == "FROM":
            raise UnsupportedError("A multi-insert cannot read a stream. Write one INSERT for each target.", position)
        self._at = insert + 1
        head = self._insert_head()
        query = self._query(prelude=(first.start, prelude))
        return Insert(head.target, query, head.columns, head.by_name, position=position, once=head.once)

    def _show(self) -> Statement:
        if self._take("FLOWS"):
            return self._end(ShowFlows())
        if self._take("PARTITION", "FUNCTIONS"):
            return self._end(ShowPartitionFunctions())
        if self._take("JOBS"):
            return self._end(JobCommand("SHOW JOBS"))
        if self._take("MATERIALIZED", "VIEWS"):
            return self._end(ShowMaterializedViews())
        if self._take("SAVEPOINTS"):
            return self._show_savepoints()
        if self._take("LINEAGE"):
            return self._end(ShowLineage(self._name() if self._take("OF") else ()))
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
        return SetOption(key, unquoted(value), position)

    def _refresh(self) -> Statement:
        position = self._position()
        is_view = self._take("MATERIALIZED", "VIEW")
        if not is_view:
            self._expect("STREAMING")
            self._expect("TABLE")
        name = self._name()
        is_full = self._take("FULL")
        cascade = is_view and self._take("CASCADE")
        waits = not self._take("ASYNC")
        if waits:
            self._take("SYNC")
        if is_view:
            return self._end(RefreshMaterializedView(name, is_full, waits, position, cascade))
        return self._end(RefreshStreamingTable(name, is_full, waits, position))

    def _command(self) -> Statement:
        verbs = ("START", "STOP", "FLUSH", "WAIT", "DROP", "ALTER", "RESUME", "CANCEL", "REPLAY")
        verb = next((verb for verb in verbs if self._take(verb)), None)
        if verb is None:
            raise self._problem("Expected a statement")
        if verb == "REPLAY":
            return self._end(self._replay())
        if self._take("JOB"):
            return self._end(JobCommand(f"{verb} JOB", self._name()))
        if verb == "DROP" and self._take("SAVEPOINT"):
            return self._drop_savepoint()
        if verb in ("DROP", "ALTER") and self._take("STREAMING", "TABLE"):
            return self._drop(DropStreamingTable) if verb == "DROP" else self._alter_table()
        if verb in ("DROP", "ALTER") and self._take("MATERIALIZED", "VIEW"):
            return self._drop(DropMaterializedView) if verb == "DROP" else self._alter_view()
        self._expect("FLOW")
        exists = verb == "DROP" and self._take("IF", "EXISTS")
        position, name = self._position(), self._name()
        if verb == "ALTER" and self._take("AS"):
            return AlterFlowQuery(name, self._query(), position)
        if verb == "ALTER":
            if not self._take("SET"):
                raise self._problem("Expected SET or AS")
            return self._end(AlterFlow(name, self._properties()))
        timeout = self._timeout() if verb == "WAIT" and self._take("TIMEOUT") else None
        return self._end(FlowCommand(verb, name, exists, timeout, verb == "STOP" and self._cascade()))

    def _drop(self, kind: type[DropStreamingTable] | type[DropMaterializedView]) -> Statement:
        exists = self._take("IF", "EXISTS")
        return self._end(kind(self._name(), exists, self._cascade()))

    def _cascade(self) -> bool:
        """Read CASCADE or RESTRICT, which is what goes without saying."""
        return self._take("CASCADE") or (self._take("RESTRICT") and False)

    def _alter_table(self) -> AlterStreamingTable | AlterConstraint:
        text, position = self._as_alter_table(), self._position()
        name = self._name()
        if self._take("ADD", "CONSTRAINT"):
            place = self._position()
            added = self._identifier()
            constraint, written = self.expectation(added, place)
            return self._end(AlterConstraint(name, added, ValueText(written, constraint.position), position=position))
        if self._take("DROP", "CONSTRAINT"):
            exists = self._take("IF", "EXISTS")
            return self._end(AlterConstraint(name, self._identifier(), None, exists, position))
        return AlterStreamingTable(name, self._table_change(), text, position)

    def _query(self, prelude: tuple[int, str] = (0, "")) -> Query:
        """Parse the rest of the statement as a query.

        Args:
            prelude: the offset and text of a WITH clause before INSERT, which belongs to the query.
        """
        token = self._peek()
        if token is None:
            raise self._problem("Expected a query")
        blank = self._blank()
        at, text = prelude
        stop = self._tokens[-1].stop
        source = blank[:at] + text + blank[at + len(text) : token.start] + self._text[token.start : stop]
        return self._parsed(source)

    def _parsed(self, source: str) -> Query:
        """Parse a query that stands where it stands in the statement."""
        try:
            return Query(dialect.without_brackets(dialect.parse_query(source)), source)
        except SyntaxProblem as problem:
            raise UnreadableQuery(problem.message, problem.position, without_end_of_stream(source, self._tokens)) from None
