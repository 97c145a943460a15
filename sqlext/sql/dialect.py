"""Spark SQL with our clauses, as a sqlglot dialect.

It adds what sqlglot's `databricks` dialect lacks: `STREAM t WITH (..) WATERMARK ..`, `GLOBAL WINDOW END OF STREAM`, hints as
written, and spans. Every query, relation and expression records the span of its text, and the generator returns that text for
every part that no rule has changed: `1L`, `r'..'`, comments and white space stay as the user wrote them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.errors import ParseError, TokenError
from sqlglot.generators.databricks import DatabricksGenerator
from sqlglot.parsers.databricks import DatabricksParser
from sqlglot.tokenizer_core import TokenType

from sqlext.errors import Position, SyntaxProblem
from sqlext.functions.scalar import AGGREGATES
from sqlext.quoting import STREAMED, fold
from sqlext.sql.cursor import unquoted
from sqlext.sql.dialect_tokens import END_OF_STREAM, UNSIGNED_SHIFT, with_names, without_comments
from sqlext.sql.hint_calls import hint_calls
from sqlext.sql.nodes import HintCall, Hybrid, HybridPart, Stream, StreamOption, TableArgument, UnsignedRightShift, VerbatimText
from sqlext.sql.pipe_operators import PIPE_SET, mark_open, parse_pipes
from sqlext.sql.source_text import freeze, note, text_of
from sqlext.sql.tokens import AFTER_A_TABLE, tokens


def _spanned(name: str) -> Callable[..., Any]:
    """Wrap a parser method of sqlglot so that it records the span of its node's text."""
    method = getattr(DatabricksParser, name)

    def parse(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = self._curr
        node = method(self, *args, **kwargs)
        if isinstance(node, exp.Expr) and first and self._prev:
            note(node, first.start, self._prev.end + 1)
        return node

    return parse


# Calls with a grammar of their own, in Spark too. Apart from these and aggregates, a call is parsed as a name and arguments: as
# functions of sqlglot, datediff(DAY, a, b) and datediff(b, a) would be the same, and log10(x) would be LOG(10, x).
_WITH_KEYWORDS = frozenset("CAST TRY_CAST EXTRACT OVERLAY POSITION SUBSTR SUBSTRING TRIM".split())
_READ_SHORT = frozenset(("percentile",))  # sqlglot drops its third argument, the frequency


def _those_known(parsers: dict[str, Any]) -> dict[str, Any]:
    known = (*_WITH_KEYWORDS, *(name.upper() for name in AGGREGATES - _READ_SHORT))
    return {name: parsers[name] for name in known if name in parsers}


_BEFORE_A_QUERY = frozenset(
    (TokenType.L_PAREN, TokenType.R_PAREN, TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT)  # R_PAREN: of a WITH
)

_OPERATORS = frozenset((TokenType.COLLATE, TokenType.DIV, TokenType.IN, TokenType.IS))  # `(table IS NULL)` is about a column


class _Parser(DatabricksParser):
    FUNCTIONS = _those_known(DatabricksParser.FUNCTIONS)
    FUNCTION_PARSERS = _those_known(DatabricksParser.FUNCTION_PARSERS)
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}  # Spark has no ARRAY[1, 2]: array(1, 2)[0] is an element
    JOINS_HAVE_EQUAL_PRECEDENCE = False  # a comma stays one: Spark's streams join `a, b` by WHERE, and refuse CROSS JOIN
    BITWISE = {**DatabricksParser.BITWISE, UNSIGNED_SHIFT: UnsignedRightShift}  # noqa: RUF012  # sqlglot's own form

    _parse_any_select = _spanned("_parse_select")
    _parse_any_select_query = _spanned("_parse_select_query")
    _parse_cte = _spanned("_parse_cte")
    _parse_expression = _spanned("_parse_expression")
    _parse_assignment = _spanned("_parse_assignment")
    _parse_disjunction = _spanned("_parse_disjunction")
    _parse_conjunction = _spanned("_parse_conjunction")
    _parse_equality = _spanned("_parse_equality")
    _parse_bitwise = _spanned("_parse_bitwise")
    _parse_unary = _spanned("_parse_unary")
    _parse_field = _spanned("_parse_field")
    _parse_any_lambda = _spanned("_parse_lambda")
    _parse_ordered = _spanned("_parse_ordered")
    _parse_any_table = _spanned("_parse_table")
    _parse_pivot_aggregation = _spanned("_parse_pivot_aggregation")

    def _parse_select(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        if kwargs.get("table"):
            kwargs["consume_pipe"] = False  # a pipe after a relation takes all of FROM
        return self._parse_any_select(*args, **kwargs)  # type: ignore[no-any-return]  # sqlglot's methods are untyped here

    def _parse_select_query(self, *args: Any, **kwargs: Any) -> Any:
        is_from = self._match(TokenType.FROM, advance=False)
        query = self._parse_any_select_query(*args, **kwargs)
        if is_from and isinstance(query, exp.Select):
            mark_open(query)
        return query

    def _parse_statement(self) -> Any:
        return self._with_pipes(super()._parse_statement())

    def _parse_wrapped_select(self, table: bool = False) -> Any:
        return self._with_pipes(super()._parse_wrapped_select(table))

    def _with_pipes(self, query: Any) -> Any:
        """Parse the pipe operators after a set operation, which binds tighter than they do."""
        is_piped = isinstance(query, exp.Query) and self._match(TokenType.PIPE_GT, advance=False)
        return self._parse_query_modifiers(self._parse_pipe_syntax_query(query)) if is_piped else query

    def _parse_pipe_syntax_query(self, query: exp.Query) -> exp.Query:
        return parse_pipes(self, query)

    def _parse_table(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        if self._curr.token_type == TokenType.STREAM and self._stands_before_a_name():
            return self._parse_stream_relation()
        return self._parse_any_table(*args, **kwargs)  # type: ignore[no-any-return]  # sqlglot's methods are untyped here

    def _is_table_query(self) -> bool:
        """Return whether TABLE t stands here as a query; `FROM table t` is a table called `table`, and f(TABLE t) an argument."""
        before = [token.token_type for token in self._tokens[max(self._index - 2, 0) : self._index]]
        if before[-1:] in ([TokenType.ALL], [TokenType.DISTINCT]) and len(before) > 1:
            before.pop()  # UNION ALL
        is_call = before == [TokenType.VAR, TokenType.L_PAREN]
        may_begin = not is_call and (not before or before[-1] in _BEFORE_A_QUERY)
        names = bool(self._next) and self._next.token_type in self.ID_VAR_TOKENS - _OPERATORS and self._stands_before_a_name()
        return self._curr.token_type == TokenType.TABLE and may_begin and names

    def _parse_table_parts(self, *args: Any, **kwargs: Any) -> Any:
        """Parse a relation's name; IDENTIFIER('db.t') is the name in the text."""
        taken = self._tokens[self._index : self._index + 4]
        is_text = [each.token_type for each in taken[1:]] == [TokenType.L_PAREN, TokenType.STRING, TokenType.R_PAREN]
        if is_text and taken[0].text.upper() == "IDENTIFIER" and not kwargs.get("fast"):
            found = tokens(unquoted(self.sql[taken[2].start : taken[2].end + 1]))
            names, dots = found[::2], found[1::2]
            are_names = all(each.kind in ("word", "quoted") for each in names) and all(each.text == "." for each in dots)
            if are_names and len(found) in (1, 3, 5):
                self._advance(4)
                parts = [exp.to_identifier(unquoted(each.text), quoted=True) for each in reversed(names)]
                return exp.Table(**dict(zip(("this", "db", "catalog"), parts, strict=False)))
        return super()._parse_table_parts(*args, **kwargs)

    def _parse_lambda(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        is_table = self._curr is not None and self._curr.token_type == TokenType.TABLE
        if is_table and self._next and self._next.token_type == TokenType.L_PAREN:
            return self._parse_table_argument()
        return self._parse_any_lambda(*args, **kwargs)  # type: ignore[no-any-return]  # sqlglot's methods are untyped here

    def _replace_lambda(self, node: exp.Expr | None, expressions: list[exp.Expr]) -> exp.Expr | None:
        """Make identifiers of the columns in a lambda that are its parameters; sqlglot's own method does not fold names."""
        parameters = {fold(each.name) for each in expressions}
        first = [column.parts[0] for column in (node.find_all(exp.Column) if node else ())]
        return super()._replace_lambda(node, [name for name in first if fold(name.name) in parameters])

    def _parse_partition_by(self) -> list[exp.Expr]:
        """Parse PARTITION BY of a window, or CLUSTER BY, which is the same there."""
        is_cluster = self._match(TokenType.CLUSTER_BY)
        return self._parse_csv(self._parse_disjunction) if is_cluster else super()._parse_partition_by()

    def _parse_subquery(self, this: exp.Expr | None, parse_alias: bool = True) -> exp.Subquery | None:
        sample = self._parse_table_sample() if this else None  # before the alias, as Spark has it
        subquery = super()._parse_subquery(this, parse_alias)
        if sample and subquery:
            subquery.set("sample", sample)
        return subquery

    def _parse_cube_or_rollup(self, with_prefix: bool = False) -> exp.Cube | exp.Rollup | None:
        """Parse CUBE or ROLLUP of any expressions; sqlglot's own method knows none with a comparison."""
        for token, kind in ((TokenType.CUBE, exp.Cube), (TokenType.ROLLUP, exp.Rollup)):
            if self._match(token):
                keys = [] if with_prefix else self._parse_wrapped_csv(self._parse_disjunction)
                return self.expression(kind(expressions=keys))
        return None

    def _parse_grouping_set(self) -> exp.Expr | None:
        return self._parse_grouping_sets() or self._parse_cube_or_rollup() or self._parse_disjunction()

    def _parse_table_argument(self) -> TableArgument:
        """Parse `TABLE(t)` or `TABLE(query)`, with PARTITION BY and ORDER BY, up to the next argument."""
        first = self._curr
        self._advance()
        self._match_l_paren()
        table = self._parse_select() or self._parse_table_parts()
        self._match_r_paren()
        clauses, depth = self._curr, 0
        while self._curr and (depth or self._curr.token_type not in (TokenType.COMMA, TokenType.R_PAREN)):
            depth += (self._curr.token_type == TokenType.L_PAREN) - (self._curr.token_type == TokenType.R_PAREN)
            self._advance()
        text = self.sql[clauses.start : self._prev.end + 1] if clauses and self._prev.end >= clauses.start else ""
        argument = TableArgument(this=table, clauses=VerbatimText(this=text) if text else None)
        note(argument, first.start, self._prev.end + 1)
        return argument

    def _stands_before_a_name(self) -> bool:
        following = self._next
        return bool(following) and (
            following.token_type in (TokenType.L_PAREN, TokenType.IDENTIFIER)
            or ((following.text[:1].isalnum() or following.text[:1] == "_") and following.text.upper() not in AFTER_A_TABLE)
        )

    def _parse_stream_relation(self) -> Stream:
        first = self._curr
        self._advance()
        bracket = self._match(TokenType.L_PAREN)
        is_hybrid = self._curr.text.upper() == "HYBRID" and self._next and self._next.token_type == TokenType.L_PAREN
        table = self._parse_hybrid() if is_hybrid else self._parse_table_parts()
        if bracket:
            self._match_r_paren()
        options, identified = self._parse_stream_options(), self._parse_identified()
        stream = Stream(this=table, options=options, identified=identified, watermark=self._parse_watermark())
        alias = self._parse_table_alias()
        stream.set("alias", alias or (exp.TableAlias(this=exp.to_identifier("hybrid")) if is_hybrid else None))
        note(stream, first.start, self._prev.end + 1)
        return stream

    def _parse_hybrid(self) -> Hybrid:
        """Parse `hybrid(TABLE a, STREAM b WITH (..), on => column)`."""
        first = self._curr
        self._advance()
        self._match_l_paren()
        parts, on = [], None
        while self._curr and self._curr.token_type != TokenType.R_PAREN:
            if self._curr.text.upper() == "ON" and self._next and self._next.token_type == TokenType.FARROW:
                self._advance(2)
                on = self._parse_id_var()
            else:
                parts.append(self._parse_hybrid_part())
            if not self._match(TokenType.COMMA):
                break
        self._match_r_paren()
        hybrid = Hybrid(parts=parts, on=on)
        note(hybrid, first.start, self._prev.end + 1)
        return hybrid

    def _parse_hybrid_part(self) -> HybridPart:
        first, is_stream = self._curr, self._match(TokenType.STREAM)
        if not is_stream and not self._match(TokenType.TABLE):
            self.raise_error("Expected TABLE t, STREAM t or on => column")
        part = HybridPart(this=self._parse_table_parts(), is_stream=bool(is_stream), options=self._parse_stream_options())
        note(part, first.start, self._prev.end + 1)
        return part

    def _parse_stream_options(self) -> list[StreamOption] | None:
        if not self._match_text_seq("WITH"):
            return None
        self._match_l_paren()
        options = self._parse_csv(self._parse_stream_option)
        self._match_r_paren()
        return options

    def _parse_stream_option(self) -> StreamOption:
        """Parse `'key' = 'value'`, also `a.b-c = 2` and `key 'value'`, as in Spark's property lists."""
        first = self._curr
        key = self._take_until(lambda: self._curr.token_type == TokenType.EQ or self._curr.start != self._prev.end + 1)
        self._match(TokenType.EQ)
        value = self._take_until(lambda: self._curr.token_type in (TokenType.COMMA, TokenType.R_PAREN))
        if not key or not value:
            self.raise_error("Expected 'key' = 'value'")
        source = self.sql[first.start : self._prev.end + 1]
        option = StreamOption(this=key, value=value, source=source)
        note(option, first.start, self._prev.end + 1)
        return option

    def _take_until(self, at_end: Callable[[], bool]) -> str:
        taken: list[str] = []
        while self._curr and not (taken and at_end()):
            gap = " " if taken and self._curr.start > self._prev.end + 1 else ""
            taken.append(gap + self._curr.text)
            self._advance()
        return "".join(taken)

    def _parse_identified(self) -> VerbatimText | None:
        """Parse IDENTIFIED BY: the stream's name in its query's checkpoint, which Spark reads if it has source names enabled."""
        first = self._curr
        if not self._match_text_seq("IDENTIFIED", "BY"):
            return None
        if not self._parse_id_var():
            self.raise_error("Expected a name")
        return VerbatimText(this=self.sql[first.start : self._prev.end + 1])

    def _parse_watermark(self) -> VerbatimText | None:
        first = self._curr
        if not self._match_text_seq("WATERMARK"):
            return None
        self._parse_disjunction()
        if self._match(TokenType.ALIAS):
            self._parse_id_var()
        if not self._match_text_seq("DELAY", "OF"):
            self.raise_error("Expected DELAY OF")
        if not self._parse_interval():
            self.raise_error("Expected INTERVAL")
        return VerbatimText(this=self.sql[first.start : self._prev.end + 1])

    def _parse_query_modifiers(self, this: Any) -> Any:
        this = super()._parse_query_modifiers(this)
        if isinstance(this, exp.Query) and self._match_text_seq(*END_OF_STREAM):
            this.set("end_of_stream", True)
            this = super()._parse_query_modifiers(this)  # ORDER BY, LIMIT
        return this

    def _parse_hint(self) -> exp.Hint | None:
        calls: list[exp.Expr] = []
        while self._match(TokenType.HINT):
            start = self._prev.start + 3
            stop = self.sql.find("*/", start)
            calls += hint_calls(self.sql, start, stop)
        return exp.Hint(expressions=calls) if calls else None


# sqlglot rewrites these for an older Spark or another engine: percentile_cont as percentile_approx, struct fields with names, ..
_REWRITTEN_BY_SQLGLOT = {exp.From, exp.Pivot, exp.Select, exp.Table, exp.WithinGroup}


class _Generator(DatabricksGenerator):
    TRANSFORMS = {k: v for k, v in DatabricksGenerator.TRANSFORMS.items() if k not in _REWRITTEN_BY_SQLGLOT}  # noqa: RUF012
    EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[exp.Expr]]] = set()  # Spark has nested CTEs
    AFTER_HAVING_MODIFIER_TRANSFORMS = {  # noqa: RUF012
        PIPE_SET: lambda self, query: self.render_pipe_set(query),
        "end_of_stream": lambda _, query: " " + " ".join(END_OF_STREAM) if query.args.get("end_of_stream") else "",
        **DatabricksGenerator.AFTER_HAVING_MODIFIER_TRANSFORMS,
    }

    def __init__(self, source: str, **kwargs: Any) -> None:
        super().__init__(comments=False, normalize_functions=False, dialect=SqlextDialect, **kwargs)
        self._source = source

    def sql(self, expression: Any, key: str | None = None, comment: bool = True) -> str:
        if key is None and isinstance(expression, exp.Expression):
            if (text := text_of(expression, self._source, self.sql)) is not None:
                return text
            if (render := _OUR_NODES.get(type(expression))) is not None:
                return render(self, expression)
        return super().sql(expression, key, comment)

    def hint_sql(self, expression: exp.Hint) -> str:
        return f" /*+ {', '.join(self.sql(call) for call in expression.expressions)} */"

    def lateral_sql(self, expression: exp.Lateral) -> str:
        """Write LATERAL VIEW with the alias as it was quoted; sqlglot's own method leaves out the backticks."""
        if not expression.args.get("view"):
            return str(super().lateral_sql(expression))
        alias = expression.args["alias"]
        columns = self.expressions(alias, key="columns", flat=True)
        words = ["LATERAL VIEW", "OUTER" if expression.args.get("outer") else "", self.sql(expression, "this")]
        words += [self.sql(alias, "this"), f"AS {columns}" if columns else ""]
        return " " + " ".join(word for word in words if word)

    def render_stream(self, stream: Stream) -> str:
        options = stream.args.get("options")
        is_call = stream.args.get("is_call")
        parts = [
            "" if stream.args.get("is_bounded") or is_call else "STREAM",
            (STREAMED if is_call else "") + self.sql(stream, "this"),
            f"WITH ({', '.join(self.sql(option) for option in options)})" if options else "",
            self.sql(stream, "identified"),
            self.sql(stream, "watermark"),
            f"AS {alias}" if (alias := self.sql(stream, "alias")) else "",
        ]
        return " ".join(part for part in parts if part)

    def render_pipe_set(self, query: exp.Expr) -> str:
        assigned = [f"{self.sql(each, 'alias')} = {self.sql(each, 'this')}" for each in query.args.get(PIPE_SET) or ()]
        return f" |> SET {', '.join(assigned)}" if assigned else ""

    def render_table_argument(self, argument: TableArgument) -> str:
        clauses = self.sql(argument, "clauses")
        return f"TABLE({self.sql(argument, 'this')})" + (f" {clauses}" if clauses else "")


_OUR_NODES: dict[type, Callable[[_Generator, Any], str]] = {
    Stream: _Generator.render_stream,
    StreamOption: lambda _, option: option.args["source"],
    HintCall: lambda _, hint: hint.args["source"],
    TableArgument: _Generator.render_table_argument,
    UnsignedRightShift: lambda sql, shift: sql.binary(shift, ">>>"),
    VerbatimText: lambda _, text: text.this,
}


class SqlextDialect(Databricks):
    """Spark SQL and our clauses; see the module's docstring."""

    class Tokenizer(Databricks.Tokenizer):
        """Spark's tokens, with hints and the clause GLOBAL WINDOW END OF STREAM."""

        TOKENS_PRECEDING_HINT = set(TokenType)  # noqa: RUF012  # a hint that is misplaced is an error, not a comment

        def tokenize(self, sql: str) -> list[Any]:
            """Cut a statement into tokens, as Spark does."""
            return with_names(super().tokenize(without_comments(sql)))

    Parser = _Parser


def parse_query(text: str) -> exp.Query:
    """Parse one query.

    Args:
        text: a statement with everything but the query blanked out, so that offsets are those of the statement.

    Raises:
        SyntaxProblem: sqlglot cannot parse the query; the position is that in `text`.
    """
    try:
        found = [node for node in SqlextDialect().parse(text) if node is not None]
    except ParseError as error:
        raise _problem(error, text) from None
    except TokenError as error:
        raise SyntaxProblem(f"The query cannot be split into tokens: {error}") from None
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise SyntaxProblem(f"The query cannot be read: sqlglot fails with {type(error).__name__}: {error}") from error
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        what = type(found[0]).__name__.upper() if found else "nothing"
        start = len(text) - len(text.lstrip())
        raise SyntaxProblem(f"Expected a query (SELECT ..) here; found {what}.", Position.of(text, start))
    freeze(found[0])
    return found[0]


def without_brackets(query: exp.Query) -> exp.Query:
    """Return the query inside redundant brackets, as in `INSERT INTO t (SELECT ..)`."""
    while isinstance(query, exp.Subquery) and query.is_wrapper:
        query = query.this
    return query


def _problem(error: ParseError, text: str) -> SyntaxProblem:
    first = error.errors[0]
    word = first.get("highlight") or ""
    line, column = first.get("line") or 1, first.get("col") or 1
    stop = sum(len(part) + 1 for part in text.split("\n")[: line - 1]) + column
    start = max(stop - len(word), 0)
    message = f"The query cannot be read near `{word}`: {str(first.get('description')).rstrip('.')}."
    return SyntaxProblem(message, Position.of(text, start, stop))


def to_sql(node: exp.Expr, source: str) -> str:
    """Return the SQL of a node; parts that were parsed from `source` and have not changed since stay as written."""
    return _Generator(source).generate(node)  # a copy: the generator changes some nodes
