"""The tree of files is the one that gets installed, under one name, in modules short enough to read."""

from __future__ import annotations

import ast
import fnmatch
import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 450
"""Modules stay under about 400 lines; past this one is to be split."""
NOT_INSTALLED = {"tests", "sql_examples", "build", "dist"}

SETUPTOOLS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGE_DIRS: dict[str, str] = SETUPTOOLS["package-dir"]


def folders() -> set[str]:
    """The folders that hold Python files to install, relative to the root."""
    files = (path.relative_to(ROOT) for path in ROOT.glob("*/**/*.py"))
    return {path.parent.as_posix() for path in files if path.parts[0] not in NOT_INSTALLED and path.parts[0][0] != "."}


LAYERS = (
    "errors options clock moments redaction private_files processes quoting logs",
    "docs",
    "functions",
    "plan",
    "sql",
    "rules",
    "udfs",
    "planner",
    "spark",
    "execution.delta",
    "execution.coordination",
    "execution.bounded",
    "execution.partitions",
    "execution.keyed",
    "execution.streaming",
    "execution.backlog",
    "execution.state",
    "execution.flows",
    "execution.views",
    "execution.jobs",
    "execution.host",
    "openlineage",
    "commands",
    "extension",
    "",  # sqlext itself: what users import
    "testing",
    "server",
    "page",
    "app",
    "shell",
    "dbt",
    "cli",
)
"""The folders from the ground up: each imports from itself and from those before it."""

MODULES = sorted(path for folder in folders() for path in (ROOT / folder).glob("*.py"))


def test_every_folder_of_python_files_is_a_package_and_every_package_a_folder() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(PACKAGE_DIRS)
    assert sorted(PACKAGE_DIRS.values()) == sorted(folders())


def test_all_packages_are_installed_under_one_name() -> None:
    assert {package.partition(".")[0] for package in PACKAGE_DIRS} == {"sqlext"}


def test_a_package_is_called_after_its_folder() -> None:
    expected = {f"sqlext.{folder}" if folder in ("rules", "udfs") else folder.replace("/", ".") for folder in folders()}
    assert set(PACKAGE_DIRS) == expected


def test_what_is_no_python_is_package_data() -> None:
    data: dict[str, list[str]] = SETUPTOOLS.get("package-data", {})
    missing = []
    for top in {folder.partition("/")[0] for folder in folders()}:
        for path in (path for path in (ROOT / top).rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")):
            owner = max((d for d in PACKAGE_DIRS.values() if path.is_relative_to(ROOT / d)), key=len)
            package = next(package for package, folder in PACKAGE_DIRS.items() if folder == owner)
            name = path.relative_to(ROOT / owner).as_posix()
            if not any(fnmatch.fnmatch(name, pattern) for pattern in data.get(package, [])):
                missing.append(path.relative_to(ROOT).as_posix())
    assert missing == []


@pytest.mark.parametrize("name", ["rules", "udfs"])
def test_a_folder_refuses_to_be_imported_under_its_bare_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(ImportError, match=rf"^import sqlext\.{name}, not {name}$"):
        importlib.import_module(name)
    assert name not in sys.modules
    assert importlib.import_module(f"sqlext.{name}").__name__ == f"sqlext.{name}"


def test_a_rule_refuses_to_be_imported_under_its_bare_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(ImportError, match=r"^import sqlext\.rules, not rules$"):
        importlib.import_module("rules.having_to_column")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    assert ast.get_docstring(ast.parse(text))


def module_of(path: Path) -> str:
    """The name under `sqlext` that a file is imported by: `execution.delta.commit`; sqlext itself is empty."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part not in ("sqlext", "__init__"))


def layer_of(module: str) -> int:
    """The place in `LAYERS` of a module."""
    places = {name: at for at, names in enumerate(LAYERS) for name in names.split(" ")}
    folders = [".".join(module.split(".")[:end]) for end in range(module.count(".") + 1, 0, -1)] if module else [""]
    return next(places[folder] for folder in folders if folder in places)


def imports_of(path: Path) -> set[str]:
    """The modules of sqlext that a file imports, wherever in it."""
    known = {module_of(each) for each in MODULES}
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sqlext":
            module = (node.module or "").removeprefix("sqlext").removeprefix(".")
            found |= {inner if (inner := f"{module}.{name.name}".strip(".")) in known else module for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name.removeprefix("sqlext.") for name in node.names if name.name.startswith("sqlext.")}
            found |= {"" for name in node.names if name.name == "sqlext"}
    return found


@pytest.mark.parametrize("path", [path for path in MODULES if module_of(path) != "execution"], ids=module_of)
def test_a_module_imports_only_from_the_layers_below(path: Path) -> None:
    own = layer_of(module_of(path))
    assert [each for each in sorted(imports_of(path)) if layer_of(each) > own] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w./]+\.py)`", (ROOT / "sqlext/ARCHITECTURE.md").read_text()))))
def test_the_tour_names_files_that_are_there(name: str) -> None:
    """Files are named from `sqlext/`, or by their last part behind one that is."""
    known = {path.relative_to(ROOT).as_posix() for path in MODULES} | {"tests/unit/test_layout.py"}
    assert any(each.endswith(f"/{name.removeprefix('../')}") or each == name.removeprefix("../") for each in known)


def test_the_tour_shows_every_folder() -> None:
    text = (ROOT / "sqlext/ARCHITECTURE.md").read_text()
    shown = {name.strip("/") for name in re.findall(r"`([\w./]+)/`", text.partition("## One statement")[0])}
    folded = {part.rsplit("/", 1)[-1] for part in shown}
    assert {package.rsplit(".", 1)[-1] for package in PACKAGE_DIRS} - {"sqlext", "execution"} <= folded
