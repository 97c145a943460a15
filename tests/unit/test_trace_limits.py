"""What a statement that is sent to the page, or explained, may cost: grouping sets, seconds, memory; and who may send one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlglot import exp
from starlette.testclient import TestClient

from sqlext.errors import UnsupportedError
from sqlext.options import Level, ValueText
from sqlext.page import render
from sqlext.page.app import PageApp
from sqlext.page.snapshot import Trace
from sqlext.page.trace import SessionOptions, trace
from sqlext.page.tracer import Tracer
from sqlext.plan.job_graph import Firing
from sqlext.planner.planner import plan_bounded, plan_flow
from sqlext.planner.rule_book import add_rule, remove_rule, rules_in_force
from sqlext.sql import dialect, grammar
from sqlext.sql.grouping_sets import count_grouping_sets
from sqlext.sql.statements import BoundedStatement, CreateStreamingTable
from tests.pages import MadePages, no_drawing

COUNT = "CREATE STREAMING TABLE t AS SELECT k, count(*) AS n FROM STREAM e GROUP BY k"
COLUMNS = ", ".join(f"c{at}" for at in range(24))


def minutes(text: str) -> timedelta:
    number, unit = text.split()
    if unit != "min":
        raise ValueError(f"no unit `{unit}`")
    return timedelta(minutes=int(number))


SESSION = SessionOptions({Level.SESSION: {}, Level.CONF: {}}, minutes)


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    found = Tracer()
    yield found
    found.close()


# Grouping sets.


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("a, b", 1),
        ("CUBE (a, b, c)", 8),
        ("ROLLUP (a, b, c)", 4),
        ("a, b WITH CUBE", 4),
        ("a, b, c WITH ROLLUP", 4),
        ("CUBE ((a, b), c)", 4),
        ("a, CUBE (b, c), ROLLUP (d)", 8),
        ("GROUPING SETS ((a, b), CUBE (c, d), a, ())", 7),
        ("a, b GROUPING SETS ((a), (b))", 2),
        ("CUBE (a, b), GROUPING SETS (c, d, e)", 12),
    ],
)
def test_grouping_sets_are_counted(written: str, number: int) -> None:
    group = dialect.parse_query(f"SELECT count(*) FROM STREAM e GROUP BY {written}").find(exp.Group)
    assert group is not None
    assert count_grouping_sets(group) == number


@pytest.mark.parametrize(
    "query", ["{}", "SELECT * FROM ({}) x", "WITH x AS ({}) SELECT * FROM x", "SELECT (SELECT max(n) FROM ({}) x) AS m"]
)
def test_a_cube_over_24_columns_is_refused_with_its_number(query: str) -> None:
    of_flow = query.format(f"SELECT {COLUMNS}, count(*) AS n FROM STREAM e GROUP BY CUBE ({COLUMNS})")
    of_job = query.format(f"SELECT {COLUMNS}, count(*) AS n FROM e GROUP BY CUBE ({COLUMNS}) GLOBAL WINDOW END OF STREAM")
    flow = grammar.parse(f"CREATE STREAMING TABLE t AS {of_flow}")
    job = grammar.parse(f"INSERT INTO t {of_job}")
    assert isinstance(flow, CreateStreamingTable)
    assert isinstance(job, BoundedStatement)
    with pytest.raises(UnsupportedError, match=r"^This GROUP BY has 16,777,216 grouping sets; a statement may have at most"):
        plan_flow(flow.query, rules_in_force())
    with pytest.raises(UnsupportedError, match=r"^This GROUP BY has 16,777,216 grouping sets; a statement may have at most"):
        plan_bounded(job.query, rules_in_force(), is_sorted=True)


CUBES = "SELECT count(*) AS n FROM e GROUP BY CUBE (a, b, c, d, e, f, g, h, i, j, k)"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT n FROM ({CUBES}) x UNION ALL SELECT n FROM ({CUBES}) x UNION ALL {CUBES}",
        f"WITH w AS ({CUBES}) SELECT * FROM w a, w b, w c",
        f"WITH w AS ({CUBES}), x AS (SELECT * FROM w a, w b) SELECT * FROM x a, w b",
        f"SELECT count(*) AS n FROM e WHERE a IN ({CUBES}) AND b IN ({CUBES}) AND c IN ({CUBES})",
    ],
)
def test_many_cubes_in_one_statement_are_refused_with_their_sum(query: str) -> None:
    flow = grammar.parse(f"CREATE STREAMING TABLE t AS {query.replace('FROM e', 'FROM STREAM e', 1)}")
    assert isinstance(flow, CreateStreamingTable)
    with pytest.raises(UnsupportedError, match=r"statement has 6,144 grouping sets; a statement may have at most"):
        plan_flow(flow.query, rules_in_force())


def test_the_largest_cube_that_is_allowed_is_planned() -> None:
    columns = ", ".join(f"c{at}" for at in range(12))
    flow = grammar.parse(f"CREATE STREAMING TABLE t AS SELECT {columns}, count(*) AS n FROM STREAM e GROUP BY CUBE ({columns})")
    assert isinstance(flow, CreateStreamingTable)
    assert plan_flow(flow.query, rules_in_force()).aggregates[0].key.columns[-1] == "__sqlext_grouping"


def test_a_cube_of_cubes_has_a_number_that_can_be_read() -> None:
    many = ", ".join(f"c{at}" for at in range(2000))
    flow = grammar.parse(f"CREATE STREAMING TABLE t AS SELECT count(*) AS n FROM STREAM e GROUP BY CUBE ({many})")
    assert isinstance(flow, CreateStreamingTable)
    with pytest.raises(UnsupportedError, match=r"has more than 2\^1999 grouping sets"):
        plan_flow(flow.query, rules_in_force())


# The process that traces.


def test_a_trace_is_the_same_in_the_process_of_its_own(tracer: Tracer) -> None:
    text = COUNT.replace(" AS SELECT", " TBLPROPERTIES ('execution.flush.max-interval' = '2 min') AS SELECT", 1)
    found = tracer.trace(text, SESSION)
    assert found == trace(text, SESSION)
    assert "execution.flush.max-interval = 2 min" in "".join(section.text for section in found.sections)


def test_what_is_wrong_is_told_from_there(tracer: Tracer) -> None:
    assert (
        "no unit `ages`"
        in tracer.trace(COUNT.replace(" AS ", " TBLPROPERTIES ('execution.flush.max-interval' = '2 ages') AS ", 1), SESSION).error
    )
    wrong = tracer.trace("CREATE STREAMING TABLE t AS SELECT /*+ FLUSH_INTERVALL('2 min') */ k FROM STREAM e", SESSION)
    assert "Did you mean `FLUSH_INTERVAL`?" in wrong.error
    assert (wrong.line, wrong.column) == (1, 40)


def test_the_session_s_options_and_the_rules_of_users_count(tracer: Tracer) -> None:
    set_by_session = SessionOptions(
        {Level.SESSION: {"execution.flush.max-interval": ValueText("3 min")}, Level.CONF: {}}, minutes
    )
    assert "execution.flush.max-interval = 3 min" in "".join(s.text for s in tracer.trace(COUNT, set_by_session).sections)

    def without_filters(tree: exp.Query) -> exp.Query:
        for where in list(tree.find_all(exp.Where)):
            where.pop()
        return tree

    add_rule(without_filters)
    try:
        filtered = tracer.trace(COUNT.replace(" GROUP BY", " WHERE k = 'a' GROUP BY"), SESSION)
    finally:
        remove_rule("without_filters")
    assert [firing.rule for firing in filtered.firings] == ["without_filters"]
    assert tracer.trace(COUNT, SESSION).firings == ()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS n FROM STREAM e GROUP BY " + ", ".join(f"a{at} + b{at}" for at in range(1200)),
        "SELECT k FROM STREAM e WHERE " + " OR ".join(f"a{at} = {at}" for at in range(1200)),
        "SELECT k FROM STREAM e WHERE " + "(" * 400 + "a = 1" + " OR b = 2)" * 400,
        f"SELECT k FROM STREAM e WHERE {'NOT ' * 3000} a",
        "SELECT " + "CASE WHEN a THEN " * 300 + "1" + " END" * 300 + " AS c FROM STREAM e",
        "SELECT * FROM " + "(SELECT * FROM " * 300 + "STREAM e" + ")" * 300,
        "SELECT " + "f(" * 2000 + "1" + ")" * 2000 + " AS c FROM STREAM e",
    ],
    ids=["many keys", "many branches", "nested branches", "nots", "cases", "subqueries", "calls"],
)
def test_a_statement_that_takes_long_ends_within_its_time(query: str) -> None:
    tracer = Tracer(seconds=3)
    try:
        tracer.trace(COUNT, SESSION)  # the process has started
        began = time.monotonic()
        found = tracer.trace(f"CREATE STREAMING TABLE t AS {query}", SESSION)
        assert time.monotonic() - began < 10
        assert found.graph is not None or found.error, found
        assert tracer.trace(COUNT, SESSION).graph is not None, "the next statement is traced again"
    finally:
        tracer.close()


def test_memory_is_limited(tracer: Tracer) -> None:
    def of_many_bytes(tree: exp.Query) -> exp.Query:
        assert bytearray(2 * 1024**3)
        return tree

    add_rule(of_many_bytes)
    try:
        assert "MemoryError" in tracer.trace(COUNT, SESSION).error
    finally:
        remove_rule("of_many_bytes")
    assert tracer.trace(COUNT, SESSION).error == ""


def test_a_rule_that_never_ends_is_killed() -> None:
    def that_never_ends(tree: exp.Query) -> exp.Query:
        while True:
            tree.copy()

    add_rule(that_never_ends)
    tracer = Tracer(seconds=0.5)
    try:
        assert "cannot be traced within" in tracer.trace(COUNT, SESSION).error
        remove_rule("that_never_ends")
        process = tracer._helper._process
        assert process is None or process.poll() is not None
    finally:
        remove_rule("that_never_ends")
        tracer.close()
    assert "closing" in tracer.trace(COUNT, SESSION).error


def test_two_texts_that_are_alike_nowhere_are_compared_in_no_time() -> None:
    firing = Firing("b", "r", "SELECT 1 " + "a b " * 8000, "SELECT 1 " + "b b a " * 6000)
    began = time.monotonic()
    found = render.changes(firing)
    assert time.monotonic() - began < 2
    assert "".join(text for _, text in found.before) == firing.before
    assert "".join(text for _, text in found.after) == firing.after


# Who may ask.


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = PageApp(MadePages(), no_drawing, frozenset())
    yield TestClient(app.asgi, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)
    app.close()


FOLLOWED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "sec-fetch-user": "?1"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", **FOLLOWED}, 200),
        ({"sec-fetch-site": "cross-site", **FOLLOWED, "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"origin": "https://evil.example.com"}, 403),
        ({"origin": "null"}, 403),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "192.168.7.9:8080", "[::1]:8080"])
def test_what_another_site_asks_for_is_refused_under_every_host(
    client: TestClient, host: str, headers: dict[str, str], status: int
) -> None:
    asked = {"host": host, **headers}
    if headers.get("origin", "").startswith("http://127"):
        asked["origin"] = f"http://{host}"
    assert client.get("/trace", params={"sql": COUNT}, headers=asked).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"referer": "http://{host}/flows/f1"}, 200),
        ({"referer": "https://evil.example.com/"}, 403),
        ({"referer": "https://evil.example.com/http://{host}/"}, 403),
        ({"referer": "https://wiki.example.com/", "sec-fetch-site": "cross-site", **FOLLOWED}, 200),
    ],
)
@pytest.mark.parametrize("host", ["localhost:8080", "192.168.7.9:8080"])
def test_who_is_sent_by_another_site_is_refused_but_for_links(
    client: TestClient, host: str, headers: dict[str, str], status: int
) -> None:
    asked = {"host": host, **{name: value.format(host=host) for name, value in headers.items()}}
    assert client.get("/", headers=asked).status_code == status


class _Traced(MadePages):
    """Counts traces."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[str] = []

    def trace(self, text: str) -> Trace:
        self.statements.append(text)
        return super().trace(text)


def test_only_the_page_s_own_form_makes_it_trace() -> None:
    """An image or form of another site's page, to an IP address over plain http, may come without any header that tells."""
    pages = _Traced()
    app = PageApp(pages, no_drawing, frozenset())
    client = TestClient(app.asgi, base_url="http://192.168.7.9:8080", raise_server_exceptions=False)
    try:
        form = client.get("/trace", params={"sql": COUNT})
        assert COUNT in form.text
        assert client.post("/trace", data={"sql": COUNT}).status_code == 403
        assert client.post("/trace", data={"sql": COUNT, "token": "x"}).status_code == 403
        assert client.post("/trace", content=b"x" * 300_000).status_code == 413
        assert pages.statements == []

        token = form.text.split('name="token" value="')[1].split('"')[0]
        sent = {"sql": COUNT.replace(" AS ", "\r\nAS ", 1), "token": token}
        assert client.post("/trace", data=sent, headers={"sec-fetch-site": "cross-site", **FOLLOWED}).status_code == 403
        assert client.post("/trace", data=sent, headers={"origin": "http://192.168.7.9:8080"}).status_code == 200
        assert pages.statements == [COUNT.replace(" AS ", "\nAS ", 1)]
    finally:
        app.close()


@pytest.mark.parametrize("are_case_sensitive", [True, False])
def test_names_follow_the_session(are_case_sensitive: bool) -> None:
    text = (
        "CREATE STREAMING TABLE x AS SELECT T.k "
        "FROM STREAM ev WITH ('execution.checkpointing.interval-during-backlog' = '7 min') AS T JOIN STREAM ex AS t ON T.k = t.k"
    )
    found = trace(text, replace(SESSION, are_names_case_sensitive=are_case_sensitive))
    if are_case_sensitive:
        assert not found.error
        assert "7 min" in str(found.sections)
    else:
        assert "several streams named `t`" in found.error
