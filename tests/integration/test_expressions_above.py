"""Spark's scalar functions and operators around an aggregate that a rule rewrites: values and types are those of batch.

The functions and their calls are those of Spark's own documentation (`DESCRIBE FUNCTION EXTENDED`). A literal `x` of a call
becomes `max(DISTINCT x)`, which streams refuse and a rule changes, and which is `x` again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.planner.planner import plan_flow
from sqlext.planner.rule_book import rules_in_force
from sqlext.sql.dialect import parse_query
from sqlext.sql.statements import Query
from sqlext.sql.tokens import Token, tokens

_EXAMPLE = re.compile(r"^\s*> SELECT (?P<call>.+);$", re.MULTILINE)
_PLACE = re.compile(r"\b(?P<name>N|S2|S|D|J)\b(?!')")
_VARYING = frozenset(
    """
    rand randn random uuid shuffle randstr uniform current_timestamp now current_date curdate current_time localtimestamp
    unix_timestamp monotonically_increasing_id spark_partition_id input_file_name input_file_block_start
    input_file_block_length reflect java_method try_reflect version current_database current_catalog raise_error sleep
    """.split()
)
_AT_ONCE = 25
_SPARK_ERRORS = (PySparkException, Py4JJavaError)
OPERATORS = r"""
N + 1 * 2 - 3 | -N | +N | N / 2 | N % 2 | N div 2 | ~N | N & 3 | N | 4 ^ 1 | N = 2 | N <> 2 | N <=> NULL | N IS NULL
N IS NOT NULL | N BETWEEN 1 AND 2 | N NOT BETWEEN 1 AND 2 | N IN (1, 2L) | N NOT IN (1)
N > 1 AND NOT N > 5 OR N IS NULL | (N > 1) IS TRUE | N IS DISTINCT FROM 2 | N IS NOT DISTINCT FROM 2 | N << 2 | N >> 1
N >>> 1 | CAST(N AS DECIMAL(10, 2)) | TRY_CAST(S AS INT) | N::string || 'x' | S LIKE 'a!%' ESCAPE '!'
S NOT LIKE 'A%' | S ILIKE 'A%' | S RLIKE r'^A\w' | S REGEXP '^a' | S LIKE ANY ('a%', 'b%') | S || r'\d' || "q"
CASE WHEN N > 1 THEN 'x' ELSE S END | CASE S WHEN 'Abc' THEN 1Y ELSE 2Y END | array(N, 2)[0] | map('a', N)['a']
named_struct('x', N).x | struct(N AS y).y | transform(array(1, 2), x -> x + N) | filter(array(1L, 2L), x -> x <= N)
aggregate(array(1L), N, (acc, x) -> acc + x) | EXISTS(array(1L, 2L), x -> x = N) | extract(YEAR FROM D)
date_part('MONTH', D) | D + INTERVAL 1 DAY | D - DATE '2024-01-01' | INTERVAL '1' DAY * N | substring(S FROM 2)
substring(S FROM 1 FOR 2) | position('b' IN S) | trim(BOTH 'A' FROM S) | overlay(S PLACING 'x' FROM 2)
date_add(DAY, 1, D) | timestampdiff(MINUTE, TIMESTAMP '2024-01-01', D) | J:a.b | get_json_object(J, '$.order-id')
from_json(J, 'a STRING').a | datediff(D, '2024-01-01') | to_date(S2, 'yyyy-MM-dd') | date_format(D, 'EEE')
floor(log10(N * 1000)) | log(N + 1) | log(2, N + 1) | like(S, 'A%') = true | if(N > 1, S, 'no')
decode(N, 2, 'two', 'other') | nvl2(S, N, 0) | IF(S = 'abc', 1, 0) | S = 'Abc' | coalesce(NULL, S) | N = 2 = true
N * -1 | - N * - 1 | (N) + (1) | count(*) + N | sum(v) / N | round(N / 3, 2) | bround(2.5 * N, 0)
sum(v) FILTER (WHERE v > 1) + N | count(DISTINCT v, s) * N | count(DISTINCT v, s) >> 1 | listagg(DISTINCT s, '; ') || S
"""
PLACES = {
    "N": "count(DISTINCT v)",
    "S": "max(DISTINCT s)",
    "D": "max(DISTINCT d)",
    "J": "max(DISTINCT j)",
    "S2": "max(DISTINCT s2)",
}
Check = Callable[[Sequence[str]], None]


@pytest.fixture
def check(spark: SparkSession) -> Iterator[Check]:
    """Compare expressions in a flow's queries with the same in a batch query."""
    spark.sql(
        """CREATE TABLE t AS SELECT * FROM VALUES
        (1, 1, 'Abc', DATE '2024-02-29', '{"a": {"b": 7}, "order-id": "x"}', '2023-12-31'),
        (1, 2, 'abc', DATE '2023-12-31', '{"a": 1}', '2023-12-31'),
        (1, 2, NULL, NULL, NULL, NULL) AS t(k, v, s, d, j, s2)"""
    )
    logging.disable(logging.ERROR)  # many calls are there to be refused
    yield lambda expressions: _compare(spark, expressions)
    logging.disable(logging.NOTSET)


def test_operators(check: Check) -> None:
    found = [each.strip() for line in OPERATORS.strip().splitlines() for each in re.split(r" \| (?!4 )", line)]
    written = [_PLACE.sub(lambda place: PLACES[place["name"]], each) for each in found]
    assert len(written) > 80

    check(written)


def test_functions(spark: SparkSession, check: Check) -> None:
    calls = list(_calls_of_documentation(spark))
    functions = {call.partition("(")[0] for call in calls}
    assert len(functions) > 290

    check(calls)


def _compare(spark: SparkSession, expressions: Sequence[str]) -> None:
    wrong: list[str] = []
    for at in range(0, len(expressions), _AT_ONCE):
        some = list(expressions[at : at + _AT_ONCE])
        if _difference(spark, some):
            wrong += [found for each in some if (found := _difference(spark, [each]))]
    assert not wrong, "\n".join(wrong)


def _difference(spark: SparkSession, expressions: Sequence[str]) -> str:
    """What is different about some expressions; empty when nothing is, or the one does not run in batch either."""
    columns = ", ".join(f"{each} AS c{at}" for at, each in enumerate(expressions))
    for clauses in ("GROUP BY k", "GROUP BY k ORDER BY k LIMIT 3"):
        query = f"SELECT k, {columns} FROM STREAM t {clauses}"
        try:
            frame = spark.sql(query.replace("STREAM t", "t"))
            expected = (frame.schema.simpleString(), repr(frame.collect()))
        except _SPARK_ERRORS:
            return "" if len(expressions) == 1 else "one of them does not run"
        sql = _sql_of_flow(spark, query)
        try:
            frame = spark.sql(sql)
            found = (frame.schema.simpleString(), repr(frame.collect()))
        except _SPARK_ERRORS as error:
            return f"{query}\n{sql}\n  {str(error).splitlines()[0]}"
        if found != expected:
            return f"{query}\n{sql}\n  {found}\n  {expected}"
    return ""


def _sql_of_flow(spark: SparkSession, query: str) -> str:
    """The query that makes the target's rows, over a table."""
    plan = plan_flow(Query(parse_query(query), query), rules_in_force())
    for each in plan.aggregates:
        spark.sql(each.sql.replace("STREAM t", "t")).createOrReplaceTempView(each.name)
    return (plan.above or plan.sql).replace("STREAM t", "t")


def _calls_of_documentation(spark: SparkSession) -> Iterator[str]:
    """Spark's own examples of each function, one literal after the other made an aggregate, as far as batch takes that."""
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        if not name.isidentifier() or name in _VARYING:
            continue
        described = "\n".join(row[0] for row in spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect())
        calls = [match["call"] for match in _EXAMPLE.finditer(described) if match["call"].startswith(f"{name}(")]
        found = (each for call in calls for each in _with_aggregates(call) if _is_taken(spark, each))
        yield from islice(found, 2)


def _with_aggregates(call: str) -> Iterator[str]:
    found = tokens(call)
    if not _is_one_call(found):
        return
    for at, token in enumerate(found):
        is_literal = token.kind == "text" or token.text.isdigit()
        if is_literal and found[at - 1].text in ("(", ",") and found[at + 1].text in (")", ","):
            yield f"{call[: token.start]}max(DISTINCT {token.text}){call[token.stop :]}"


def _is_one_call(found: list[Token]) -> bool:
    depth = 0
    for at, token in enumerate(found):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and at > 0:
            return at == len(found) - 1
    return False


def _is_taken(spark: SparkSession, expression: str) -> bool:
    """Whether Spark takes the expression in batch, as one column."""
    try:
        return len(spark.sql(f"SELECT k, {expression} AS c FROM t GROUP BY k").columns) == 2
    except _SPARK_ERRORS:
        return False
