"""dbt in a test's own process, over a copy of a project."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dbt.cli.main import dbtRunner

from sqlext.dbt.command import _OVERRIDE, OVERRIDE, PACKAGE

EXAMPLE = Path(__file__).parents[1] / "sql_examples" / "dbt"
_PROFILE = """
project:
  target: session
  outputs:
    session: {type: spark, method: session, host: localhost, schema: models, threads: 2}
"""
_PROJECT = """
name: project
profile: project
flags: {send_anonymous_usage_stats: false}
"""


@dataclass(frozen=True)
class Project:
    """A dbt project that commands are given to."""

    folder: Path
    target: str = "session"

    def __call__(self, *arguments: str, fails: bool = False) -> dict[str, str]:
        """Run a command of dbt.

        Returns:
            What it says of each node, by the node's name.
        """
        folder = str(self.folder)
        where = ["--project-dir", folder, "--profiles-dir", folder, "--target", self.target]
        answer = dbtRunner().invoke([*arguments, *where])
        results: list[Any] = [each for each in getattr(answer.result, "results", None) or [] if hasattr(each, "node")]
        nodes = [each for each in results if each.node.resource_type != "operation"]  # hooks are not what was asked for
        said = {each.node.name: str(each.message or each.status) for each in nodes}
        assert answer.success is not fails, f"{arguments}: {answer.exception or said}"
        return said

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_text(text)

    def edit(self, path: str, pattern: str, replacement: str) -> None:
        """Change a file of the project, as a person would."""
        before = (self.folder / path).read_text()
        after = re.sub(pattern, replacement, before)
        assert after != before
        (self.folder / path).write_text(after)


def new_project(folder: Path) -> Project:
    """An empty project with our package in it, as `sqlext dbt init-package` and `dbt deps` would put it there."""
    project = Project(folder)
    folder.mkdir()
    project.write("dbt_project.yml", _PROJECT)
    project.write("profiles.yml", _PROFILE)
    project.write(OVERRIDE, _OVERRIDE)
    shutil.copytree(PACKAGE, folder / "dbt_packages" / "sqlext")
    return project


def example(folder: Path, target: str) -> Project:
    """A copy of the example."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("dbt_packages", "target", "logs", "sqlext_package"))
    return Project(folder, target)
