r"""Rewrite rules, one by one, on pairs of SQL from `tests/fixtures/rules/<rule>.sql`.

A pair is two statements, before and after; a statement ends with a semicolon at the end of a line. Lines that start with
`--` between statements are titles. Texts are compared character by character, so that a pair of two equal statements
says that the rule leaves it alone, white space and all.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sqlext.errors import SchemaError, SqlextError, UnsupportedError
from sqlext.functions.scalar import FUNCTIONS, PythonFunction
from sqlext.rules import BATCHES
from sqlext.sql.dialect import parse_query, to_sql
from sqlext.sql.rewriter import Batch, Once, Rule, rewrite

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "rules"
RULES: dict[str, Rule] = {rule.__name__: rule for batch in BATCHES for rule in batch.rules}


@dataclass(frozen=True)
class Pair:
    """One pair of a fixture file; `line` is the 1-based line of `before`."""

    rule: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.rule}:{self.line}"


def read(path: Path) -> Iterator[Pair]:
    """The pairs of a file; ValueError when a statement has no end or no partner."""
    statements: list[tuple[int, str]] = []
    lines: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not lines and (not line.strip() or line.startswith("--")):
            continue
        lines.append(line)
        if line.endswith(";"):
            statements.append((number - len(lines) + 1, "\n".join(lines).removesuffix(";")))
            lines = []
    if lines or len(statements) % 2:
        raise ValueError(f"{path.name}: the last statement has no {'end' if lines else 'partner'}")
    for (line_number, before), (_, after) in zip(statements[::2], statements[1::2], strict=True):
        yield Pair(path.stem, line_number, before, after)


PAIRS = [pair for path in sorted(FIXTURES.glob("*.sql")) for pair in read(path)]


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python functions of the fixtures, and no others."""
    known = [
        PythonFunction("geometric_mean", lambda values: values, "DOUBLE", is_aggregate=True),
        PythonFunction("clean", str.strip, "STRING"),
    ]
    monkeypatch.setattr(FUNCTIONS, "_functions", {function.name: function for function in known})


def run(rule: Rule, text: str) -> str:
    """What one run of one rule makes of a query."""
    tree, _ = rewrite(parse_query(text), text, [Batch("test", Once(), (rule,))])
    return to_sql(tree, text)


def test_every_file_of_the_folder_is_one_rule_in_a_batch() -> None:
    files = {path.stem for path in (ROOT / "rules").glob("*.py")} - {"__init__"}
    assert files == set(RULES)
    assert {name: rule.__module__ for name, rule in RULES.items()} == {name: f"sqlext.rules.{name}" for name in files}


def test_no_rule_stands_in_two_batches() -> None:
    assert Counter(rule for batch in BATCHES for rule in batch.rules).most_common(1)[0][1] == 1


def test_every_rule_has_a_fixture_file_of_at_least_six_pairs_some_of_which_it_leaves_alone() -> None:
    count = Counter(pair.rule for pair in PAIRS)
    assert set(count) == set(RULES)
    assert [rule for rule, pairs in count.items() if pairs < 6] == []
    assert {pair.rule for pair in PAIRS if pair.before == pair.after} == set(RULES)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_rule_makes_the_second_of_the_first(pair: Pair) -> None:
    assert run(RULES[pair.rule], pair.before) == pair.after


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_rule_leaves_its_own_output_alone(pair: Pair) -> None:
    assert run(RULES[pair.rule], pair.after) == pair.after


@pytest.mark.parametrize("name", RULES)
def test_the_example_in_a_rules_docstring_holds(name: str) -> None:
    before, arrow, after = inspect.cleandoc(RULES[name].__doc__ or "").rpartition("\n\n")[2].partition("\n-> ")
    assert arrow, "the docstring ends with an example: SQL, and in the next line -> SQL"
    assert run(RULES[name], before) == after


@pytest.mark.parametrize(
    ("rule", "call", "kind", "message"),
    [
        ("expand_sum0", "sum0()", SchemaError, "sum0 takes one argument, not 0."),
        ("expand_sum0", "sum0(a, b)", SchemaError, "sum0 takes one argument, not 2."),
        ("expand_collect", "collect()", SchemaError, "collect takes one argument, not 0."),
        ("expand_collect", "collect(a, b)", SchemaError, "collect takes one argument, not 2."),
        (
            "python_aggregate_over_list",
            "geometric_mean(a, b)",
            SchemaError,
            "The aggregate geometric_mean takes one argument, not 2.",
        ),
        (
            "ordered_value_to_min_max_by",
            "last_value(a ORDER BY b, c DESC)",
            UnsupportedError,
            "last_value sorts its columns in both directions. Sort all of them ASC, or all DESC.",
        ),
    ],
)
def test_a_call_that_a_rule_cannot_take_is_refused_where_it_stands(
    rule: str, call: str, kind: type[SqlextError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        run(RULES[rule], f"SELECT 1 AS x,\n  {call} AS y FROM STREAM t")
    assert caught.value.message == message
    assert caught.value.position is not None
    assert (caught.value.position.line, caught.value.position.column) == (2, 3)


@pytest.mark.parametrize("text", ["SELECT 1;\n", "SELECT 1;\nSELECT 2;\nSELECT 3", "SELECT 1;\n\n-- title\n\nSELECT 2\n"])
def test_a_fixture_file_with_an_odd_end_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "rule.sql").write_text(text)
    with pytest.raises(ValueError, match=r"rule\.sql: the last statement has no"):
        list(read(tmp_path / "rule.sql"))
