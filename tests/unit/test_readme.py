"""The README says what the code says."""

from __future__ import annotations

import ast
import re

import pytest

import sqlext
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

COMING_FROM = ("Coming from foreachBatch", "Coming from Flink")
TEXT = readme.README.read_text()


@pytest.mark.parametrize("part", sorted(readme.PARTS))
def test_readme_is_as_the_code_writes_it(part: str) -> None:
    assert readme.PARTS[part]() in TEXT, "run `python -m tests.readme`"


def test_python_in_the_readme_is_python() -> None:
    found = readme.blocks(TEXT, "python")
    assert found
    for block in found:
        ast.parse(block)


# The reference has everything.


def test_every_statement_of_ours_is_in_the_reference() -> None:
    heads = {each.head for each in reference.STATEMENTS} | {"CREATE OR REFRESH STREAMING TABLE", "DESC FLOW"}
    assert {" ".join(command) for command in tokens._COMMANDS} - heads == set()


def test_every_function_of_ours_is_in_the_reference() -> None:
    reference_part = TEXT[TEXT.index("## SQL reference") : TEXT.index("### Statements")]
    names = [*reference.FUNCTIONS, *(function.name for function in partitions.FUNCTIONS)]
    assert [name for name in names if not re.search(rf"`[^`\n]*\b{name}\b", reference_part)] == []


def test_every_error_says_what_is_wrong() -> None:
    table = reference.errors_table()
    assert [each.__name__ for each in reference.error_classes() if f"`{each.__name__}`" not in TEXT] == []
    assert "|  |" not in table


def test_every_public_name_is_in_the_readme() -> None:
    known = {"KeyedContext", "RuntimeContext", "disable", "window_all"}  # types of arguments, and ends of what is there
    assert [name for name in sqlext.__all__ if name not in TEXT and name not in known] == []


# The way from elsewhere.


@pytest.mark.parametrize("title", COMING_FROM)
def test_statements_that_replace_others_are_flows_of_ours(title: str) -> None:
    found = [each.text for block in readme.blocks(readme.section(title), "sql") for each in split(block)]
    flows = [grammar.parse(text) for text in found if tokens.is_ours(text)]
    assert len(flows) == 1
    assert isinstance(flows[0], (CreateStreamingTable, Insert))
    assert planner.plan_flow(flows[0].query, BATCHES).queries


@pytest.mark.parametrize("title", COMING_FROM)
def test_options_and_names_that_replace_others_are_there(title: str) -> None:
    rows = [row.strip("|").split(" | ", 1) for row in readme.section(title).splitlines() if row.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row[1])]
    options = [name for name in named if re.fullmatch(r"(execution|state|backlog|job-event)\.[\w.-]+", name)]
    assert options
    assert [option_of(name).key for name in options] == options
    assert [name for name in named if name.startswith("sqlext.") and not hasattr(sqlext, name[len("sqlext.") :])] == []


def test_all_our_options_are_among_those_of_flink() -> None:
    """But for those that neither Flink nor a proposal of its own has under another name."""
    ours = {"backlog.lag-threshold", "execution.batch.job-recovery.retention", "schema-evolution"}
    text = readme.section("Coming from Flink")
    assert {key for key in OPTIONS if f"`{key}`" not in text} == ours
