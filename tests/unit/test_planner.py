"""The planner: output mode, key, options, refusals and the graph of a streaming query, and what EXPLAIN says of it."""

from __future__ import annotations

import re
import sys
from datetime import timedelta

import pytest
from sqlglot import exp

from sqlext.errors import OptionError, SqlextError, UnsupportedError
from sqlext.functions.scalar import FUNCTIONS, PythonFunction
from sqlext.options import Level, LevelTexts, ValueText, texts_by_level
from sqlext.plan.explain import explain_flow, lines_of
from sqlext.plan.flow_options import FlowOptions
from sqlext.plan.job_graph import FlowPlan, JobGraph, Key, MaintainedAggregate, OperatorAttributes, OutputMode, Stage
from sqlext.planner import sameness
from sqlext.planner.graph_builder import GraphBuilder
from sqlext.planner.planner import plan_flow
from sqlext.quoting import case_sensitive_names
from sqlext.rules import BATCHES
from sqlext.sql.dialect import parse_query, to_sql
from sqlext.sql.grammar import parse
from sqlext.sql.rewriter import Batch, Once, Scope
from sqlext.sql.statements import Insert, Query
from sqlext.sql.tokens import Token, tokens

UPDATE, APPEND = OutputMode.UPDATE, OutputMode.APPEND
FLUSH, BACKLOG, LAG = (
    "execution.flush.max-interval",
    "execution.checkpointing.interval-during-backlog",
    "backlog.lag-threshold",
)


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two aggregates written in Python, and no others."""
    known = [
        PythonFunction("middle", lambda values: values, "DOUBLE", is_aggregate=True),
        PythonFunction("newest", lambda values: values, "DOUBLE", is_aggregate=True, is_output_idempotent=False),
    ]
    monkeypatch.setattr(FUNCTIONS, "_functions", {function.name: function for function in known})


def plan(text: str) -> FlowPlan:
    return plan_flow(Query(parse_query(text), text), BATCHES)


def refusal(text: str) -> tuple[type[SqlextError], str, str]:
    """Class and message of the error, and the text that its position marks."""
    with pytest.raises(SqlextError) as caught:
        plan(text)
    position = caught.value.position
    return type(caught.value), caught.value.message, text[position.start : position.stop] if position else ""


# Output mode


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, count(*) AS n FROM STREAM t GROUP BY k",
        "SELECT k FROM STREAM t GROUP BY k",
        "SELECT count(*) AS n FROM STREAM t",
        "SELECT 1 + max(v) AS m FROM STREAM t",
        "SELECT DISTINCT k FROM STREAM t",
        "SELECT middle(v) AS m FROM STREAM t",
        "SELECT 1 AS one FROM STREAM t HAVING count(*) > 1",
        "SELECT k, count(*) AS n FROM STREAM t JOIN d USING (k) GROUP BY k",
        "WITH c AS (SELECT * FROM STREAM t) SELECT k, count(*) AS n FROM c GROUP BY k",
    ],
)
def test_an_aggregate_updates(query: str) -> None:
    assert plan(query).output_mode is UPDATE


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM STREAM t",
        "SELECT k, upper(v) AS v FROM STREAM t WHERE v > 1",
        "SELECT t.k FROM STREAM t JOIN STREAM u ON t.k = u.k",
        "SELECT k FROM STREAM t UNION ALL SELECT k FROM STREAM u",
        "SELECT k, (SELECT max(v) FROM d) AS m FROM STREAM t",
        "SELECT k FROM STREAM t JOIN (SELECT k, count(*) AS n FROM d GROUP BY k) c USING (k)",
        "SELECT k FROM STREAM t WHERE v > (SELECT avg(v) FROM d)",
        "SELECT k FROM STREAM t WHERE k IN (SELECT DISTINCT k FROM d)",
    ],
)
def test_all_else_appends(query: str) -> None:
    found = plan(query)
    assert found.output_mode is APPEND
    assert found.key == Key()
    assert found.not_idempotent_because == "the query has no aggregate, so each row counts and none replaces another"


def test_an_aggregate_is_idempotent_unless_a_function_of_it_is_registered_otherwise() -> None:
    assert plan("SELECT k, middle(v) AS m FROM STREAM t GROUP BY k").not_idempotent_because is None
    assert plan("SELECT k, 1 + newest(v) AS m FROM STREAM t GROUP BY k").not_idempotent_because == (
        "the function newest is registered as not output-idempotent"
    )


# Key


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY k", ("k",)),
        ("SELECT count(*) AS n, a, b FROM STREAM t GROUP BY b, a", ("b", "a")),
        ("SELECT K, count(*) AS n FROM STREAM t GROUP BY k", ("K",)),
        ("SELECT k AS key, count(*) AS n FROM STREAM t GROUP BY k", ("key",)),
        ("SELECT k AS key, count(*) AS n FROM STREAM t GROUP BY key", ("key",)),
        ("SELECT upper(k) AS u, count(*) AS n FROM STREAM t GROUP BY u", ("u",)),
        ("SELECT upper(k) AS u, count(*) AS n FROM STREAM t GROUP BY upper(k)", ("u",)),
        ("SELECT upper(k) AS k, count(*) AS n FROM STREAM t GROUP BY upper(k)", ("k",)),
        ("SELECT count(*) AS n, k, upper(j) AS u FROM STREAM t GROUP BY 2, 3", ("k", "u")),
        ("SELECT s.k, count(*) AS n FROM STREAM t AS s GROUP BY k", ("k",)),
        ("SELECT k, count(*) AS n FROM STREAM t AS s GROUP BY s.k", ("k",)),
        ("SELECT S.k, count(*) AS n FROM STREAM t AS s GROUP BY s.K", ("k",)),
        ("SELECT a.k, b.k AS k2, count(*) AS n FROM STREAM a JOIN b ON a.i = b.i GROUP BY a.k, b.k", ("k", "k2")),
        ("SELECT `a b`, count(*) AS n FROM STREAM t GROUP BY `a b`", ("a b",)),
        ("SELECT v.a.b, count(*) AS n FROM STREAM t GROUP BY v.a.b", ("b",)),
        ("SELECT m['x'] AS x, count(*) AS n FROM STREAM t GROUP BY m['x']", ("x",)),
        ("SELECT k, k AS again, count(*) AS n FROM STREAM t GROUP BY k", ("k",)),
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY k, K, 1", ("k",)),
        ("SELECT k, j, count(*) AS n FROM STREAM t GROUP BY ALL", ("k", "j")),
        ("SELECT upper(k) AS u, count(*) + 1 AS n, 2 * max(v) AS m FROM STREAM t GROUP BY ALL", ("u",)),
        ("SELECT DISTINCT k, upper(j) AS u FROM STREAM t", ("k", "u")),
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY k HAVING n > 1", ("k",)),
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY ALL HAVING n > 1", ("k",)),
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY (k)", ("k",)),
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY k, 'constant'", ("k",)),
        ("SELECT 'x' AS x, count(*) AS n FROM STREAM t GROUP BY 'x'", ("x",)),
        ("SELECT count(*) AS n FROM STREAM t GROUP BY 'constant'", ()),
        ("SELECT count(*) AS n FROM STREAM t", ()),
        ("SELECT count(*) AS n FROM STREAM t GROUP BY ALL", ()),
    ],
)
def test_the_key_is_the_grouping_keys_under_their_names_in_the_output(query: str, columns: tuple[str, ...]) -> None:
    assert plan(query).key == Key(columns)


@pytest.mark.parametrize(
    ("item", "column"),
    [
        ("window", "window"),
        ("window AS w", "w"),
        ("window.start", "start"),
        ("window.end AS e", "e"),
        ("window(at, '5 min') AS w", "w"),
        ("window(at, '5 min').start AS s", "s"),
        ("window(at, '5 min').end", "end"),
    ],
)
def test_a_time_window_is_told_by_itself_its_start_or_its_end(item: str, column: str) -> None:
    query = f"SELECT k, {item}, count(*) AS n FROM STREAM t GROUP BY k, window(at, '5 min')"
    assert plan(query).key == Key(("k", column))


def test_a_session_window_is_a_key_too() -> None:
    query = "SELECT session_window.start AS s, k, count(*) AS n FROM STREAM t GROUP BY session_window(at, '5 min'), k"
    assert plan(query).key == Key(("s", "k"))


def test_with_a_star_the_key_is_all_but_the_aggregates() -> None:
    found = plan("SELECT *, count(*) AS n, max(v) AS m FROM STREAM t GROUP BY ALL").key
    assert found == Key(("n", "m"), all_but=True)
    assert found.resolve(["k", "J", "n", "M", "__sqlext_qualifies"]) == ("k", "J")
    assert plan("SELECT DISTINCT t.* FROM STREAM t").key.resolve(["k", "j"]) == ("k", "j")


def test_a_key_takes_the_outputs_spelling_and_order() -> None:
    assert Key(("A", "b")).resolve(["B", "c", "a", "__sqlext_qualifies"]) == ("B", "a")
    assert Key().resolve(["a"]) == ()
    assert Key(("k",)).resolve(["k", "n"]) == Key(("K",)).resolve(["k", "n"]) == ("k",)
    with case_sensitive_names(True):
        assert Key(("k",)).resolve(["k", "K"]) == ("k",)
        assert Key(("K",), all_but=True).resolve(["k", "K"]) == ("k",)


def test_streams_that_differ_by_case_are_two_where_names_do() -> None:
    text = "SELECT T.k FROM STREAM ev WITH ('backlog.lag-threshold' = '7 min') AS T JOIN STREAM ex AS t ON T.k = t.k"
    with case_sensitive_names(True):
        found = {source.alias: dict(source.options.get(Level.WITH, {})) for source in plan(text).graph.streams}
        aliases = [*FlowOptions.of_plan(plan(text), {}, duration).streams]
    assert {alias: bool(options) for alias, options in found.items()} == {"T": True, "t": False}
    assert aliases == ["T", "t"]
    with pytest.raises(OptionError, match="several streams named"):
        plan(text)


NO_NAME = "The column `{0}` has no name of its own. Give it one: {0} AS name."


@pytest.mark.parametrize(
    ("query", "message", "marked"),
    [
        ("SELECT k, count(*) AS n FROM STREAM t GROUP BY k, 7", "", ""),
        ("SELECT k + 1, count(*) AS n FROM STREAM t GROUP BY k + 1", NO_NAME.format("k + 1"), "k + 1"),
        ("SELECT k + 1, count(*) AS n FROM STREAM t GROUP BY 1", NO_NAME.format("k + 1"), "k + 1"),
        ("SELECT DISTINCT k, upper( j ) FROM STREAM t", NO_NAME.format("upper( j )"), "upper( j )"),
        ("SELECT 1L, count(*) AS n FROM STREAM t GROUP BY 1L", NO_NAME.format("1L"), "1L"),
        ("SELECT *, count(*) AS n FROM STREAM t GROUP BY 1", "GROUP BY 1 counts from a `*`. Name the column.", "1"),
        ("SELECT t.*, count(*) AS n FROM STREAM t GROUP BY 1,  2", "GROUP BY 1 counts from a `*`. Name the column.", "1"),
    ],
)
def test_without_a_key_there_is_no_flow(query: str, message: str, marked: str | None) -> None:
    if not message:  # an ordinal past the end is Spark's to refuse
        assert plan(query).key == Key(("k",))
        return
    kind, said, at = refusal(query)
    assert (kind, said) == (UnsupportedError, message)
    if marked is not None:
        assert at == marked


# Options in hints and WITH


def test_hints_are_read_for_the_flow_and_for_a_stream() -> None:
    query = (
        "SELECT /*+ FLUSH_INTERVAL('2 min'), BROADCAST(d), BACKLOG_INTERVAL(O, '30 min') "
        "BACKLOG_THRESHOLD(o, INTERVAL 5 MINUTES) */ o.k FROM STREAM orders AS o JOIN STREAM p ON o.k = p.k JOIN d USING (k)"
    )
    found = plan(query)
    assert {key: value.value for key, value in found.hints.items()} == {FLUSH: "2 min"}
    assert [texts_by_level(source.options) for source in found.graph.streams] == [
        {"HINT": {BACKLOG: "30 min", LAG: "INTERVAL 5 MINUTES"}},
        {},
    ]
    position = found.hints[FLUSH].position
    assert position is not None
    assert query[position.start : position.stop] == "FLUSH_INTERVAL('2 min')"
    assert found.sql == "SELECT /*+ BROADCAST(d) */ o.k FROM STREAM orders AS o JOIN STREAM p ON o.k = p.k JOIN d USING (k)"


def test_a_stream_without_an_alias_goes_by_its_name() -> None:
    found = plan("SELECT /*+ BACKLOG_INTERVAL(orders, '0') */ k FROM STREAM cat.db.orders")
    assert {each.alias: texts_by_level(each.options) for each in found.graph.streams} == {"orders": {"HINT": {BACKLOG: "0"}}}


def test_hints_in_subqueries_count_as_well() -> None:
    found = plan("SELECT k FROM (SELECT /*+ FLUSH_INTERVAL('1 s'), BACKLOG_THRESHOLD(t, '1 s') */ k FROM STREAM t) x")
    assert list(found.hints) == [FLUSH]
    assert list(found.graph.streams[0].options[Level.HINT]) == [LAG]


def test_with_options_of_ours_are_read_and_taken_out() -> None:
    query = (
        "SELECT a.k FROM STREAM s WITH ('maxFilesPerTrigger' = '1', 'Backlog.Lag-Threshold' = '5 min') AS a "
        "JOIN STREAM u WITH (execution.checkpointing.interval-during-backlog = 30 min) ON a.k = u.k"
    )
    found = plan(query)
    given = {each.alias: each.options[Level.WITH] for each in found.graph.streams}
    assert given["a"][LAG].value == "5 min"
    assert given["u"][BACKLOG].value == "30 min"
    position = given["a"][LAG].position
    assert position is not None
    assert query[position.start : position.stop] == "'Backlog.Lag-Threshold' = '5 min'"
    assert found.sql == "SELECT a.k FROM STREAM s WITH ('maxFilesPerTrigger' = '1') AS a JOIN STREAM u ON a.k = u.k"


def test_hint_and_with_are_told_apart() -> None:
    found = plan("SELECT /*+ BACKLOG_THRESHOLD(t, '1 s') */ k FROM STREAM t WITH ('backlog.lag-threshold' = '2 s')")
    assert texts_by_level(found.graph.streams[0].options) == {"HINT": {LAG: "1 s"}, "WITH": {LAG: "2 s"}}


OURS = "sqlext's hints are BACKLOG_INTERVAL, BACKLOG_THRESHOLD, FLUSH_INTERVAL, STATE_TTL."


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ("FLUSH_INTERVALS('1 s')", f"There is no hint `FLUSH_INTERVALS`. Did you mean `FLUSH_INTERVAL`? {OURS}"),
        ("backlog_treshold(t, '1 s')", f"There is no hint `BACKLOG_TRESHOLD`. Did you mean `BACKLOG_THRESHOLD`? {OURS}"),
        ("BROADCASTS(t)", f"There is no hint `BROADCASTS`. Did you mean `BROADCAST`? {OURS}"),
        ("unheard_of", f"There is no hint `UNHEARD_OF`. {OURS}"),
        ("FLUSH_INTERVAL", "The hint FLUSH_INTERVAL is not well formed. Write FLUSH_INTERVAL('2 minutes')."),
        ("FLUSH_INTERVAL('1', '2')", "The hint FLUSH_INTERVAL('1', '2') is not well formed. Write FLUSH_INTERVAL('2 minutes')."),
        (
            "BACKLOG_INTERVAL('1 s')",
            "The hint BACKLOG_INTERVAL('1 s') is not well formed. Write BACKLOG_INTERVAL(alias, '2 minutes').",
        ),
        (
            "BACKLOG_THRESHOLD(t, u, '1 s')",
            "The hint BACKLOG_THRESHOLD(t, u, '1 s') is not well formed. Write BACKLOG_THRESHOLD(alias, '2 minutes').",
        ),
        (
            "BACKLOG_INTERVAL(d, '1 s')",
            "The hint BACKLOG_INTERVAL(d, '1 s') names `d`, which is not a stream of this query. Its streams are t, u.",
        ),
    ],
)
def test_a_hint_that_cannot_be_meant_is_refused(hint: str, message: str) -> None:
    query = f"SELECT /*+ BROADCAST(d), {hint} */ k FROM STREAM t JOIN STREAM s AS u ON t.k = u.k JOIN d USING (k)"
    assert refusal(query) == (OptionError, message, hint)


@pytest.mark.parametrize(
    ("hints", "name", "second"),
    [
        ("FLUSH_INTERVAL('1 s'), FLUSH_INTERVAL('2 s')", "FLUSH_INTERVAL", "FLUSH_INTERVAL('2 s')"),
        ("BACKLOG_INTERVAL(t, '1 s'), backlog_interval(T, '2 s')", "BACKLOG_INTERVAL", "backlog_interval(T, '2 s')"),
    ],
)
def test_a_hint_is_given_once(hints: str, name: str, second: str) -> None:
    message = f"The hint {name} is given twice. Give it once."
    assert refusal(f"SELECT /*+ {hints} */ k FROM STREAM t") == (OptionError, message, second)


TTL = "'table.exec.state.ttl' = '1 hour'"


@pytest.mark.parametrize(
    "streams",
    [
        f"STREAM a WITH ({TTL}) AS s UNION ALL SELECT k FROM STREAM b AS s",
        f"STREAM a AS s UNION ALL SELECT k FROM STREAM b WITH ({TTL}) AS S",
        f"STREAM a UNION ALL SELECT k FROM (SELECT * FROM STREAM a WITH ({TTL}))",
        f"STREAM a WITH ('table.exec.state.ttl' = '2 hours') UNION ALL SELECT k FROM STREAM a WITH ({TTL})",
    ],
)
def test_streams_of_one_alias_have_the_same_options(streams: str) -> None:
    kind, message, marked = refusal(f"SELECT k FROM {streams}")
    assert kind is OptionError
    assert re.search("`table.exec.state.ttl` is `. hours?` for one of several streams named `[aAsS]`, and not for all", message)
    assert "table.exec.state.ttl" in marked


def test_streams_of_one_alias_and_the_same_options_are_read() -> None:
    found = plan(f"SELECT k FROM STREAM a WITH ({TTL}) UNION ALL SELECT k FROM STREAM a WITH ({TTL})")
    assert [list(source.options[Level.WITH]) for source in found.graph.streams] == [["table.exec.state.ttl"]] * 2


@pytest.mark.parametrize("misspelt", ["STREAM a WITH ('backlog.lag' = '1 s') AS s", "STREAM a AS s"])
def test_the_options_of_each_stream_of_an_alias_are_checked(misspelt: str) -> None:
    kind, message, _ = refusal(f"SELECT k FROM {misspelt} UNION ALL SELECT k FROM STREAM b WITH ('backlog.lag' = '1 s') AS s")
    assert (kind, message.split(".")[0]) == (OptionError, "sqlext has no option `backlog")


def test_a_hint_names_one_stream() -> None:
    hint = "STATE_TTL(s, '1 hour')"
    message = f"The hint {hint} names `s`, and several streams have that name. Give each an alias of its own."
    query = f"SELECT /*+ {hint} */ k FROM STREAM a AS s UNION ALL SELECT k FROM STREAM b AS s"
    assert refusal(query) == (OptionError, message, hint)


@pytest.mark.parametrize(
    ("options", "message", "marked"),
    [
        (
            "'backlog.lag-treshold' = '1 s'",
            "sqlext has no option `backlog.lag-treshold`. Did you mean `backlog.lag-threshold`?",
            "'backlog.lag-treshold' = '1 s'",
        ),
        (
            "'backlog.lag-threshold' = '1 s', Backlog.lag-threshold = '2 s'",
            "The option `backlog.lag-threshold` is given twice. Give it once.",
            "Backlog.lag-threshold = '2 s'",
        ),
    ],
)
def test_a_with_option_that_cannot_be_meant_is_refused(options: str, message: str, marked: str) -> None:
    assert refusal(f"SELECT k FROM STREAM t WITH ({options})") == (OptionError, message, marked)


# What is under a stream


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, (SELECT max(v) FROM d) AS m FROM STREAM t",
        "SELECT k FROM STREAM t JOIN (SELECT k FROM d ORDER BY k LIMIT 3) x USING (k)",
        "SELECT k FROM STREAM t JOIN (SELECT k, rank() OVER (ORDER BY v) AS r FROM d) x USING (k)",
        "SELECT k FROM STREAM t WHERE k IN (SELECT k FROM d UNION SELECT k FROM e)",
        "SELECT k, listagg(v) WITHIN GROUP (ORDER BY v) AS l FROM STREAM t GROUP BY k",
        "SELECT k, count(*) AS n FROM STREAM t LATERAL VIEW explode(xs) e AS x GROUP BY k",
        "SELECT k FROM STREAM t DISTRIBUTE BY k",
    ],
)
def test_static_parts_may_be_anything(query: str) -> None:
    assert plan(query).sql == query


# Graph


def shape(graph: JobGraph) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(operator.kind, operator.detail, operator.inputs) for operator in graph.operators]


def test_the_graph_has_an_operator_a_clause() -> None:
    query = (
        "SELECT o.k, count(*) AS n\nFROM STREAM db.orders AS o JOIN d ON o.k = d.k LEFT JOIN e USING (k)\n"
        "WHERE  o.v > 1L\nGROUP BY o.k HAVING n > 2"
    )
    graph = plan(query).graph
    having = "COALESCE((count(*)) > 2, FALSE) AS __sqlext_qualifies"
    assert shape(graph) == [
        ("Source", "STREAM db.orders AS o", ()),
        ("Source", "d", ()),
        ("Join", "JOIN d ON o.k = d.k", (0, 1)),
        ("Source", "e", ()),
        ("Join", "LEFT JOIN e USING (k)", (2, 3)),
        ("Filter", "o.v > 1L", (4,)),
        ("Aggregate", f"key: o.k; o.k, count(*) AS n, {having}", (5,)),
    ]
    assert [operator.id for operator in graph.operators] == list(range(7))
    assert graph.last.kind == "Aggregate"
    assert [(s.name, s.alias, s.is_stream) for s in graph.sources] == [
        (("db", "orders"), "o", True),
        (("d",), "d", False),
        (("e",), "e", False),
    ]
    assert [source.alias for source in graph.streams] == ["o"]


def test_subqueries_ctes_and_unions_are_walked() -> None:
    graph = plan(
        "WITH c AS (SELECT a FROM STREAM t) SELECT a FROM c WHERE a > 1 UNION ALL SELECT b FROM (SELECT b FROM STREAM u) x"
    ).graph
    assert shape(graph) == [
        ("Source", "STREAM t", ()),
        ("Project", "a", (0,)),
        ("Filter", "a > 1", (1,)),
        ("Project", "a", (2,)),
        ("Source", "STREAM u", ()),
        ("Project", "b", (4,)),
        ("Project", "b", (5,)),
        ("Union", "UNION", (3, 6)),
    ]


def test_a_table_function_is_a_source() -> None:
    graph = plan("SELECT x FROM STREAM read_files('/x', format => 'json') AS f, explode(f.xs) AS e(x)").graph
    assert [(s.alias, s.is_stream) for s in graph.sources] == [("f", True), ("e", False)]


def test_aggregates_are_idempotent_and_nothing_else_is() -> None:
    graph = plan("SELECT k, middle(v) AS m FROM STREAM t WHERE v > 1 GROUP BY k").graph
    assert [o.kind for o in graph.operators if o.attributes == OperatorAttributes()] == ["Source", "Filter"]
    assert graph.last.attributes == OperatorAttributes(is_output_idempotent=True)
    assert plan("SELECT k, newest(v) AS m FROM STREAM t GROUP BY k").graph.last.attributes == OperatorAttributes()
    assert plan("SELECT k FROM STREAM t").graph.last.attributes == OperatorAttributes()


def test_attributes_say_what_holds() -> None:
    assert str(OperatorAttributes()) == "no attributes"
    assert str(OperatorAttributes(True, True)) == "is_output_idempotent, is_output_only_after_end_of_stream"


def test_an_attribute_that_nobody_set_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "sqlext.plan.job_graph"):
        plan("SELECT count(*) AS n FROM STREAM t")
    assert [record.getMessage() for record in caplog.records] == [
        "operator 0 Source: is_output_idempotent is not set; it defaults to false",
        "operator 0 Source: is_output_only_after_end_of_stream is not set; it defaults to false",
    ]


# Stages, straight from the builder


def graph_of(text: str) -> JobGraph:
    query = parse_query(text)
    assert isinstance(query, exp.Query)
    return GraphBuilder(text, {}).build(query)


def test_without_a_full_dam_there_is_one_stage() -> None:
    assert graph_of("SELECT k, count(*) FROM STREAM t JOIN d USING (k) GROUP BY k").stages() == (
        Stage(1, (0, 1, 2, 3), is_blocking=False),
    )


def test_the_last_operator_blocks_nobody() -> None:
    graph = graph_of("SELECT k, count(*) FROM t GROUP BY k GLOBAL WINDOW END OF STREAM")
    assert graph.last.attributes == OperatorAttributes(True, True)
    assert graph.stages() == (Stage(1, (0, 1), is_blocking=False),)


def test_a_bounded_subquery_is_a_blocking_stage_of_its_own() -> None:
    graph = graph_of(
        "SELECT o.*, c.total FROM STREAM orders o JOIN "
        "(SELECT user_id, count(*) total FROM history WHERE v > 1 GROUP BY user_id GLOBAL WINDOW END OF STREAM) c USING (user_id)"
    )
    assert [operator.kind for operator in graph.operators] == ["Source", "Source", "Filter", "Aggregate", "Join", "Project"]
    assert graph.operators[3].attributes == OperatorAttributes(True, True)
    assert graph.stages() == (Stage(1, (1, 2, 3), is_blocking=True), Stage(2, (0, 4, 5), is_blocking=False))


def test_two_bounded_subqueries_are_two_blocking_stages() -> None:
    bounded = "(SELECT k, count(*) AS n FROM {} GROUP BY k GLOBAL WINDOW END OF STREAM) {}"
    graph = graph_of(
        f"SELECT * FROM STREAM t JOIN {bounded.format('a', 'x')} USING (k) JOIN {bounded.format('b', 'y')} USING (k)"
    )
    assert [(stage.operators, stage.is_blocking) for stage in graph.stages()] == [
        ((1, 2), True),
        ((4, 5), True),
        ((0, 3, 6, 7), False),
    ]


def test_a_full_dam_over_a_full_dam_is_chained_not_cut() -> None:
    graph = graph_of(
        "SELECT k, max(n) FROM (SELECT k, j, count(*) AS n FROM t GROUP BY k, j GLOBAL WINDOW END OF STREAM) x "
        "GROUP BY k GLOBAL WINDOW END OF STREAM"
    )
    assert [operator.kind for operator in graph.operators] == ["Source", "Aggregate", "Aggregate"]
    assert graph.stages() == (Stage(1, (0, 1, 2), is_blocking=False),)


def test_a_join_in_a_bounded_query_is_a_full_dam() -> None:
    graph = graph_of("SELECT a.k FROM a JOIN b ON a.k = b.k GLOBAL WINDOW END OF STREAM")
    join = next(operator for operator in graph.operators if operator.kind == "Join")
    assert join.attributes.is_output_only_after_end_of_stream


def test_stages_cover_every_operator_once() -> None:
    graph = graph_of(
        "WITH c AS (SELECT k, count(*) AS n FROM a GROUP BY k GLOBAL WINDOW END OF STREAM) "
        "SELECT * FROM STREAM t JOIN c USING (k) JOIN c AS d USING (k) WHERE t.v > 1 UNION ALL SELECT * FROM c"
    )
    covered = sorted(number for stage in graph.stages() for number in stage.operators)
    assert covered == [operator.id for operator in graph.operators]


# EXPLAIN


def duration(text: str) -> timedelta:
    assert text.endswith(" min")
    return timedelta(minutes=int(text.removesuffix(" min")))


def explained(plan: FlowPlan, target: str, **session: str) -> list[str]:
    """EXPLAIN of a plan, under some options of the session."""
    keys = {"flush": FLUSH, "backlog": BACKLOG, "memory": "execution.flush.memory-buffer-only"}
    given: LevelTexts = {Level.SESSION: {keys[name]: ValueText(value) for name, value in session.items()}}
    return lines_of(explain_flow(plan, FlowOptions.of_plan(plan, given, duration), target))


def test_explain_of_a_buffered_aggregate() -> None:
    found = plan(
        "SELECT /*+ FLUSH_INTERVAL('2 min') */ k, count(*) AS n\nFROM STREAM hits AS v JOIN d USING (k)\n"
        "WHERE v.ok GROUP BY k HAVING n > 1"
    )
    qualifies = "COALESCE((count(*)) > 1, FALSE) AS __sqlext_qualifies"
    assert (
        "\n".join(explained(found, "db.top", backlog="30 min"))
        == f"""\
== Job graph ==
Sink db.top [upsert by k]
+- Aggregate key: k; k, count(*) AS n, {qualifies} [is_output_idempotent]
   +- Filter v.ok [no attributes]
      +- Join JOIN d USING (k) [no attributes]
         |- Source stream STREAM hits AS v [no attributes]
         +- Source d [no attributes]

== Stages ==
1: Source, Source, Join, Filter, Aggregate (pipelined)

== Buffering ==
Buffered: Aggregate is output-idempotent and execution.flush.max-interval is 2 min (hint). One commit per flush.

== Backlog ==
v: while it reads its history; then micro-batches of about 30 min (SET), back to back, and no flush until the backlog ends

== Options ==
execution.flush.max-interval = 2 min (hint)
execution.checkpointing.interval-during-backlog = 30 min (SET)

== Rules fired ==
options / remove_hints:
  SELECT /*+ FLUSH_INTERVAL('2 min') */ k, count(*) AS n FROM STREAM hits AS v JOIN d USING (k) WHERE v.ok GROUP BY k HAVING n > 1
  -> SELECT k, count(*) AS n FROM STREAM hits AS v JOIN d USING (k) WHERE v.ok GROUP BY k HAVING n > 1
retractions / having_to_column:
  SELECT k, count(*) AS n FROM STREAM hits AS v JOIN d USING (k) WHERE v.ok GROUP BY k HAVING n > 1
  -> SELECT k, count(*) AS n, {qualifies} FROM STREAM hits AS v JOIN d USING (k) WHERE v.ok GROUP BY k

== Query for Spark ==
SELECT k, count(*) AS n, {qualifies} FROM STREAM hits AS v JOIN d USING (k) WHERE v.ok GROUP BY k"""
    )


def test_explain_of_rows_that_are_appended() -> None:
    found = plan("SELECT a,  1L AS b FROM STREAM t UNION ALL SELECT a, b FROM STREAM u")
    assert (
        "\n".join(explained(found, "t2"))
        == """\
== Job graph ==
Sink t2 [append]
+- Union UNION [no attributes]
   |- Project a, 1L AS b [no attributes]
   |  +- Source stream STREAM t [no attributes]
   +- Project a, b [no attributes]
      +- Source stream STREAM u [no attributes]

== Stages ==
1: Source, Project, Source, Project, Union (pipelined)

== Buffering ==
Not buffered, one commit per micro-batch: the query has no aggregate, so each row counts and none replaces another.

== Options ==
all defaults

== Rules fired ==
none

== Query for Spark ==
SELECT a,  1L AS b FROM STREAM t UNION ALL SELECT a, b FROM STREAM u"""
    )


@pytest.mark.parametrize(
    ("query", "sink"),
    [
        ("SELECT a, b, count(*) AS n FROM STREAM t GROUP BY a, b", "upsert by a, b"),
        ("SELECT *, count(*) AS n FROM STREAM t GROUP BY ALL", "upsert by all columns but n"),
        ("SELECT DISTINCT * FROM STREAM t", "upsert by all columns"),
        ("SELECT count(*) AS n FROM STREAM t", "one row"),
        ("SELECT * FROM STREAM t", "append"),
    ],
)
def test_explain_says_how_rows_reach_the_target(query: str, sink: str) -> None:
    assert explained(plan(query), "x")[1] == f"Sink x [{sink}]"


def test_explain_says_that_an_aggregate_is_not_buffered_without_an_interval() -> None:
    lines = explained(plan("SELECT count(*) AS n FROM STREAM t"), "x")
    assert "Not buffered, one commit per micro-batch: execution.flush.max-interval is not set." in lines


def test_explain_passes_warnings_on() -> None:
    lines = explained(plan("SELECT count(*) AS n FROM STREAM t"), "x", memory="true")
    assert any(line.startswith("warning: `execution.flush.memory-buffer-only` (SET) buffers nothing") for line in lines)


# Above an aggregate


def test_a_query_above_an_aggregate_has_a_plan_of_its_parts() -> None:
    found = plan(
        "SELECT /*+ FLUSH_INTERVAL('2 min') */ k, count(DISTINCT v) AS n FROM STREAM t GROUP BY k ORDER BY n DESC LIMIT 1"
    )
    assert (found.sql, found.key, found.output_mode, found.not_idempotent_because) == ("", Key(), UPDATE, None)
    assert found.aggregates == (
        MaintainedAggregate(
            "__sqlext_aggregate_1",
            "SELECT k AS __sqlext_k1, CAST(SIZE(COLLECT_SET(v)) AS BIGINT) AS __sqlext_a1 FROM STREAM t GROUP BY k",
            Key(("__sqlext_k1",)),
        ),
    )
    assert found.above == "SELECT __sqlext_k1 AS k, __sqlext_a1 AS n FROM __sqlext_aggregate_1 ORDER BY n DESC LIMIT 1"
    assert list(found.hints) == [FLUSH]
    assert [(firing.batch, firing.rule) for firing in found.firings] == [
        ("options", "remove_hints"),
        ("streaming aggregates", "count_distinct_to_set"),
    ]


def test_rules_of_aggregates_see_each_aggregate_and_what_is_above() -> None:
    found = plan(
        "SELECT k, sum0(n) AS s FROM (SELECT k, j, middle(v) AS n FROM STREAM t GROUP BY k, j HAVING count(DISTINCT v) > 1) x "
        "GROUP BY k"
    )
    assert [aggregate.sql for aggregate in found.aggregates] == [
        "SELECT k AS __sqlext_k1, j AS __sqlext_k2, __sqlext_middle_of_list(COLLECT_LIST(v)) AS __sqlext_a1, "
        "CAST(SIZE(COLLECT_SET(v)) AS BIGINT) AS __sqlext_a2 FROM STREAM t GROUP BY k, j"
    ]
    assert found.above == (
        "SELECT k, CASE WHEN COUNT(n) > 0 THEN SUM(n) ELSE CAST(0 AS TINYINT) END AS s "
        "FROM (SELECT __sqlext_k1 AS k, __sqlext_k2 AS j, __sqlext_a1 AS n "
        "FROM __sqlext_aggregate_1 WHERE __sqlext_a2 > 1) AS x GROUP BY k"
    )


def test_rules_of_queries_see_the_whole_query() -> None:
    seen: list[str] = []

    def look(query: exp.Query) -> exp.Query:
        seen.append(to_sql(query, text))
        return query

    text = "SELECT k, count(*) AS n FROM STREAM s GROUP BY k LIMIT 1"
    batches = [Batch("whole", Once(), (look,)), Batch("parts", Once(), (look,), Scope.AGGREGATE)]
    found = plan_flow(Query(parse_query(text), text), batches)
    assert seen == [text, found.aggregates[0].sql, found.above]
    assert found.firings == ()


def test_names_of_the_whole_query_are_known() -> None:
    found = plan(
        "WITH c AS (SELECT * FROM STREAM t) SELECT x.k, mine(n) AS m FROM (SELECT k, count(DISTINCT v) AS n FROM c GROUP BY k) x "
        "JOIN d ON x.k = d.k WHERE y > limit_of"
    ).references
    assert found.relations == ("d", "t")
    assert {"mine", "count", "size"} <= set(found.functions)
    assert {"limit_of", "v", "y"} <= set(found.columns)


@pytest.mark.parametrize(
    ("query", "relations", "sources"),
    [
        ("WITH d AS (SELECT * FROM d WHERE a) SELECT s.k FROM STREAM s JOIN d USING (k)", ("d", "s"), ["s", "d"]),
        ("WITH a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT s.* FROM STREAM s JOIN b USING (k)", ("b", "s"), ["s", "b"]),
        ("WITH t AS (SELECT * FROM STREAM t) SELECT * FROM t", ("t",), ["t"]),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT k FROM STREAM s JOIN r ON n = k",
            ("s",),
            ["s"],
        ),
    ],
)
def test_a_with_query_may_have_the_name_of_what_it_reads(query: str, relations: tuple[str, ...], sources: list[str]) -> None:
    found = plan(query)
    assert found.references.relations == relations
    assert [each.source.name[-1] for each in found.graph.operators if each.source is not None] == sources
    assert found.sql == query


def test_a_column_may_be_a_session_variable_whatever_qualifies_it() -> None:
    found = plan(
        "SELECT session.a, `SESSION`.b, system.session.c, d.field, session.e.field FROM STREAM t WHERE f > system.session.g.x"
    )
    assert {"a", "b", "c", "d", "e", "f", "g"} <= set(found.references.columns)


def test_names_in_a_watermark_and_in_the_order_of_a_table_argument_are_known() -> None:
    watermark = "WATERMARK timestamp_seconds(s - shift) AS at DELAY OF INTERVAL (late) SECONDS"
    found = plan(f"SELECT at, session.own FROM STREAM t IDENTIFIED BY called {watermark}").references
    assert "timestamp_seconds" in found.functions
    assert {"s", "shift", "late", "own"} <= set(found.columns)
    assert "interval" not in found.functions
    assert "called" not in found.columns

    found = plan(
        "SELECT * FROM mine(TABLE(SELECT k, v FROM STREAM t) PARTITION BY upper(k) ORDER BY (v % session.most))"
    ).references
    assert {"mine", "upper"} <= set(found.functions)
    assert {"k", "v", "most"} <= set(found.columns)
    assert "by" not in found.functions


def test_two_aggregates_and_what_is_above_are_one_graph() -> None:
    graph = plan(
        "SELECT a.k, rank() OVER (ORDER BY n) AS r FROM (SELECT k, count(*) AS n FROM STREAM t GROUP BY k) a "
        "JOIN (SELECT k, max(v) AS m FROM STREAM u WHERE v > 1 GROUP BY k) b ON a.k = b.k JOIN d ON d.k = a.k "
        "WHERE n > (SELECT avg(n) FROM (SELECT k, count(*) AS n FROM STREAM t GROUP BY k) y) ORDER BY r LIMIT 3 OFFSET 1"
    ).graph
    above = [(operator.kind, operator.inputs) for operator in graph.operators]
    assert above == [
        ("Source", ()),
        ("Aggregate", (0,)),
        ("Source", ()),
        ("Filter", (2,)),
        ("Aggregate", (3,)),
        ("Project", (1,)),
        ("Project", (4,)),
        ("Join", (5, 6)),
        ("Source", ()),
        ("Join", (7, 8)),
        ("Project", (1,)),
        ("Aggregate", (10,)),
        ("Filter", (9, 11)),
        ("Window", (12,)),
        ("Project", (13,)),
        ("Sort", (14,)),
        ("Limit", (15,)),
    ]
    assert graph.operators[1].detail.startswith("__sqlext_aggregate_1, key: k;")
    assert graph.last.detail == "LIMIT 3 OFFSET 1"
    assert [source.alias for source in graph.streams] == ["t", "u"]
    plain = [operator.kind for operator in graph.operators if operator.attributes == OperatorAttributes()]
    assert plain == ["Source", "Source", "Filter", "Source"]
    assert [(len(stage.operators), stage.is_blocking) for stage in graph.stages()] == [(17, False)]


def test_explain_of_a_query_above_an_aggregate() -> None:
    found = plan("SELECT page, count(*) AS views FROM STREAM hits GROUP BY page ORDER BY views DESC LIMIT 1")
    assert (
        "\n".join(explained(found, "top_page", flush="2 min"))
        == """\
== Job graph ==
Sink top_page [replaced at each flush]
+- Limit LIMIT 1 [is_output_idempotent]
   +- Sort ORDER BY views DESC [is_output_idempotent]
      +- Project __sqlext_k1 AS page, __sqlext_a1 AS views [is_output_idempotent]
         +- Aggregate __sqlext_aggregate_1, key: page; page AS __sqlext_k1, count(*) AS __sqlext_a1 [is_output_idempotent]
            +- Source stream STREAM hits [no attributes]

== Stages ==
1: Source, Aggregate, Project, Sort, Limit (pipelined)

== Buffering ==
Buffered: __sqlext_aggregate_1 is output-idempotent and execution.flush.max-interval is 2 min (SET). The rest is evaluated \
at each flush, over the maintained aggregate: one commit there, and one on the target.

== Options ==
execution.flush.max-interval = 2 min (SET)

== Rules fired ==
none

== Query for Spark ==
__sqlext_aggregate_1 [upsert by __sqlext_k1]:
SELECT page AS __sqlext_k1, count(*) AS __sqlext_a1 FROM STREAM hits GROUP BY page
above, replacing the target's rows:
SELECT __sqlext_k1 AS page, __sqlext_a1 AS views FROM __sqlext_aggregate_1 ORDER BY views DESC LIMIT 1"""
    )


def test_explain_says_that_without_an_interval_what_is_above_is_evaluated_at_every_micro_batch() -> None:
    found = plan("SELECT count(*) AS n FROM STREAM t GROUP BY k UNION ALL SELECT max(v) FROM STREAM u")
    lines = explained(found, "x")
    assert (
        "Not buffered, one commit per micro-batch: execution.flush.max-interval is not set. The rest is evaluated at every "
        "micro-batch, over the maintained aggregates."
    ) in lines
    assert "__sqlext_aggregate_2 [one row]:" in lines


def test_functions_that_only_rules_call_are_no_references() -> None:
    query = "SELECT sum(DISTINCT v) AS s, shout(max(v)) AS m FROM STREAM t"
    assert [name for name in plan(query).references.functions if name.startswith("__sqlext_")] == []
    assert "shout" in plan(query).references.functions


@pytest.mark.parametrize(
    ("pivot", "because"),
    [
        ("sum(w) FOR c IN ('a')", "PIVOT reads `w`, which is not a column of the subquery before it"),
        ("sum(x.v) FOR c IN ('a')", "PIVOT reads `x.v`, which is not a column"),
        ("sum(v) FOR c IN (1, '01')", "PIVOT names the value '01' twice."),
        ("sum(v) FOR c IN (1e3)", "Spark's name for the column of this value is not known."),
        ("sum(v) FOR c IN ('')", "Spark's name for the column of this value is not known."),
        ("sum(v) FOR c IN (DATE '2026-1-1')", "Spark's name for the column of this value is not known."),
        ("sum(v) FOR c IN (k)", "PIVOT over a stream takes literals after IN, and this is not one."),
        ("sum(v) FOR k.c IN ('a')", "PIVOT over a stream must follow a subquery with named columns, FOR one column"),
    ],
)
def test_a_pivot_whose_meaning_is_not_sure_is_refused(pivot: str, because: str) -> None:
    _, message, _ = refusal(f"SELECT * FROM (SELECT k, c, v FROM STREAM t) AS q PIVOT ({pivot})")
    assert message.startswith(because)


@pytest.mark.parametrize(
    ("text", "having", "is_sparks_own"),
    [
        ("SELECT k, count(*) AS n FROM STREAM s GROUP BY k HAVING count(DISTINCT v)", "count(DISTINCT v)", True),
        ("SELECT * FROM (SELECT k, c, v FROM STREAM s) PIVOT (sum(v) FOR c IN (1))", "", True),
        ("SELECT k, first_value(v ORDER BY at) AS f FROM STREAM s GROUP BY k", "", False),
        ("SELECT k, middle(v) AS f FROM STREAM s GROUP BY k", "", False),
    ],
)
def test_the_query_as_written_is_kept_for_spark(text: str, having: str, is_sparks_own: bool) -> None:
    found = plan(text)
    assert (found.written, found.having, found.is_sparks_own) == (text, having, is_sparks_own)


def test_a_time_to_live_for_a_relation_that_is_read_to_its_end_is_refused() -> None:
    query = (
        "SELECT /*+ STATE_TTL(h, '7 days') */ o.k, count(*) AS n FROM STREAM o JOIN (SELECT k FROM STREAM p AS h GROUP BY k "
        "GLOBAL WINDOW END OF STREAM) c ON o.k = c.k GROUP BY o.k"
    )
    kind, message, at = refusal(query)
    assert (kind, at) == (UnsupportedError, "STATE_TTL(h, '7 days')")
    assert message.startswith("`table.exec.state.ttl` is `7 days` for `h`, and the query that reads it ends")


@pytest.mark.parametrize(
    "chain",
    [
        "a AS (SELECT k, v, row_number() OVER (PARTITION BY k, w ORDER BY v) AS r FROM STREAM t), "
        "b AS (SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS q FROM a WHERE r = 1), "
        "c AS (SELECT k, v FROM b WHERE q = 1)",
        "a AS (SELECT k, v FROM STREAM t QUALIFY row_number() OVER (PARTITION BY k, w ORDER BY v) = 1), "
        "c AS (SELECT k, v FROM a QUALIFY row_number() OVER (PARTITION BY k ORDER BY v) = 1)",
    ],
)
def test_of_ranked_with_queries_the_first_is_the_aggregate(chain: str) -> None:
    """The later ones, whose rows change, are evaluated above it."""
    found = plan(f"WITH {chain} SELECT k, v FROM c")
    (aggregate,) = found.aggregates
    assert "MIN_BY" in aggregate.sql
    assert "GROUP BY k, w" in aggregate.sql
    assert "ROW_NUMBER" in found.above.upper()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT " + "replace(" * 100 + "k" + ", 'a')" * 100 + " AS k FROM STREAM t",
        " UNION ALL ".join(["SELECT k FROM STREAM t"] * 300),
        f"SELECT {'(' * 200}k{')' * 200} AS k FROM STREAM t",
    ],
    ids=["calls", "branches", "brackets"],
)
def test_a_query_may_be_nested_deeply(query: str) -> None:
    before = sys.getrecursionlimit()
    statement = parse(f"INSERT INTO u {query}")
    assert isinstance(statement, Insert)
    assert plan_flow(statement.query, BATCHES).sql == query
    assert sys.getrecursionlimit() == before


def test_a_query_that_is_nested_too_deeply_is_refused_as_that() -> None:
    before = sys.getrecursionlimit()
    with pytest.raises(UnsupportedError, match="nested too deeply"):
        parse(f"INSERT INTO u SELECT {'(' * 9000}k{')' * 9000} FROM STREAM t")
    assert sys.getrecursionlimit() == before


def test_many_calls_below_a_query_are_read_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()

    def counted(text: str) -> list[Token]:
        read.append(text)
        return tokens(text)

    monkeypatch.setattr(sameness, "tokens", counted)
    calls = ", ".join(f"sum(v + {number}) AS s{number}" for number in range(30))
    (aggregate,) = plan(f"SELECT k, {calls} FROM STREAM t GROUP BY k ORDER BY s1").aggregates
    assert aggregate.sql.count("sum(") == 30
    assert len(read) < 30 * 10


@pytest.mark.parametrize("read", ["(TABLE c) x", "IDENTIFIER('C') x"])
def test_a_with_query_that_is_read_by_table_or_identifier_is_kept(read: str) -> None:
    found = plan(
        "WITH c AS (SELECT k FROM p), d AS (SELECT k, count(*) AS n FROM STREAM t GROUP BY k ORDER BY n LIMIT 3) "
        f"SELECT * FROM d JOIN {read} USING (k)"
    )
    assert "c AS (SELECT k FROM p)" in found.above
    assert found.references.relations == ("p", "t")
