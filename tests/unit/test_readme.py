"""The README and the pages of the documentation say what the code says."""

from __future__ import annotations

import ast
import re

import pytest

import sqlext
from sqlext import docs
from sqlext.app import reference
from sqlext.options import OPTIONS
from sqlext.options import option as option_of
from sqlext.planner import planner
from sqlext.rules import BATCHES
from sqlext.sql import grammar, tokens
from sqlext.sql.scripts import split
from sqlext.sql.statements import CreateStreamingTable, Insert
from sqlext.udfs import partitions
from tests import readme

COMING_FROM = ("foreachbatch", "flink")
QUERIES = ("flows", "functions", "partitions", "bounded", "keyed", "files", "kafka", "backlog", "chains")
"""The topics where functions are to be found."""
TEXTS = {path.stem: path.read_text() for path in readme.DOCUMENTS}


@pytest.mark.parametrize("part", sorted(readme.PARTS))
def test_a_part_is_as_the_code_writes_it(part: str) -> None:
    assert [name for name, text in TEXTS.items() if f"<!-- {part} -->" in text and readme.marked(part) in text], (
        "run `python -m tests.readme`"
    )


def test_every_mark_is_around_something_that_the_code_writes() -> None:
    marks = [mark for text in TEXTS.values() for mark in re.findall(r"<!-- (.*?) -->", text)]
    assert sorted(marks) == sorted([*readme.PARTS, *(f"end of {part}" for part in readme.PARTS)])


def test_python_in_the_documentation_is_python() -> None:
    found = [block for text in TEXTS.values() for block in readme.blocks(text, "python")]
    assert len(found) >= 10
    for block in found:
        ast.parse(block)


# The README is short, and what it repeats of the pages is as it stands there.


def test_the_readme_is_read_in_one_go() -> None:
    assert TEXTS["README"].count("\n") < 350


def test_figures_in_the_readme_are_those_of_the_benchmarks() -> None:
    section = TEXTS["README"].partition("\n## Benchmarks\n")[2].partition("\n## ")[0]
    figures = re.findall(r"\d[\d.,]*\d", section)
    assert len(figures) > 20
    assert [figure for figure in figures if figure not in TEXTS["benchmarks"]] == []


def test_what_is_explained_is_there_for_every_example_with_a_flow_or_job() -> None:
    """What the files say is for a test with Spark."""
    flows = [path for path in readme.examples() if re.search(r"^(CREATE.* STREAMING TABLE|CREATE FLOW)", path.read_text(), re.M)]
    assert flows
    assert [path.name for path in flows if not readme.golden(path).exists()] == []
    assert {path.name for path in readme.SHOWN.parent.glob("*.txt")} <= {readme.golden(path).name for path in readme.examples()}


# The reference has everything.


def test_every_statement_of_ours_is_in_the_reference() -> None:
    others = {"CREATE OR REFRESH MATERIALIZED VIEW", "DESC FLOW"}  # one is refused, and one is an abbreviation
    assert {" ".join(command) for command in tokens._COMMANDS} - {*reference.HEADS, *others} == set()


def test_every_function_of_ours_is_in_the_reference() -> None:
    reference_part = "".join(TEXTS[topic] for topic in QUERIES)
    names = [*reference.FUNCTIONS, *(function.name for function in partitions.FUNCTIONS)]
    assert [name for name in names if not re.search(rf"`[^`\n]*\b{name}\b", reference_part)] == []


def test_every_error_says_what_is_wrong() -> None:
    table = reference.errors_table()
    assert [each.__name__ for each in reference.error_classes() if f"`{each.__name__}`" not in TEXTS["errors"]] == []
    assert "|  |" not in table


def test_every_public_name_is_in_the_documentation() -> None:
    text = "".join(TEXTS.values())
    known = {"KeyedContext", "RuntimeContext", "disable", "window_all"}  # types of arguments, and ends of what is there
    assert [name for name in sqlext.__all__ if name not in text and name not in known] == []


# The way from elsewhere.


@pytest.mark.parametrize("topic", COMING_FROM)
def test_statements_that_replace_others_are_flows_of_ours(topic: str) -> None:
    found = [each.text for block in readme.blocks(docs.page(topic).text, "sql") for each in split(block)]
    flows = [grammar.parse(text) for text in found if tokens.is_ours(text)]
    assert len(flows) == 1
    assert isinstance(flows[0], (CreateStreamingTable, Insert))
    assert planner.plan_flow(flows[0].query, BATCHES).queries


@pytest.mark.parametrize("topic", COMING_FROM)
def test_options_and_names_that_replace_others_are_there(topic: str) -> None:
    rows = [row.strip("|").split(" | ", 1) for row in docs.page(topic).text.splitlines() if row.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row[1])]
    options = [name for name in named if re.fullmatch(r"(execution|state|backlog|job-event)\.[\w.-]+", name)]
    assert options
    assert [option_of(name).key for name in options] == options
    assert [name for name in named if name.startswith("sqlext.") and not hasattr(sqlext, name[len("sqlext.") :])] == []


def test_all_our_options_are_among_those_of_flink() -> None:
    """But for those that neither Flink nor a proposal of its own has under another name."""
    ours = {
        "auto-cdc.tombstone-retention",
        "backlog.lag-threshold",
        "execution.batch.job-recovery.retention",
        "schema-evolution",
    }
    text = docs.page("flink").text
    assert {key for key in OPTIONS if f"`{key}`" not in text} == ours
