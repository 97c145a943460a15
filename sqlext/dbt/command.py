"""`sqlext dbt ..`: runs dbt in the process that hosts the flows, or writes the package of materializations into a project."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from sqlext.app.output import Printer
from sqlext.app.runner import run_embedded
from sqlext.app.script_run import ExitCode

PACKAGE = Path(__file__).parent / "package"
"""The folder of the installed dbt package."""
FOLDER = "sqlext_package"
"""The package's folder in a project. It cannot be dbt's own `dbt_packages`, which `dbt clean` and `dbt deps` empty."""

_PACKAGES = f"""\
packages:
  - local: {FOLDER}  # written by `sqlext dbt init-package`
"""
OVERRIDE = "macros/sqlext_materialized_view.sql"
"""The file of a project that selects the package's materialization materialized_view. dbt has one of that name itself, and uses a
package's only where the project says so by a macro of its own; see dbt's flag
`require_explicit_package_overrides_for_builtin_materializations`."""
_OVERRIDE = """\
{#- Written by `sqlext dbt init-package`: dbt has a materialization of this name, which Spark does not; take sqlext's. -#}
{% materialization materialized_view, adapter='spark' %}
  {{ return(sqlext.materialization_materialized_view_spark()) }}
{% endmaterialization %}
"""
_WITH_SPARK = frozenset("build clone compile debug docs retry run run-operation seed show snapshot source test".split())
"""dbt's commands that send statements."""
_WITHOUT_SPARK = frozenset("clean deps init list ls parse".split())
"""dbt's commands that send no statements."""
_ONLY_TELL = frozenset(("--help", "-h", "--version", "-V", "-v"))
"""dbt's options with which no command sends statements."""


def run_dbt(arguments: Sequence[str], warehouse: Path, conf: Mapping[str, str]) -> ExitCode:
    """Run dbt over a warehouse folder, wait until its flows are idle, and stop them.

    Args:
        arguments: dbt's command and options.
        warehouse: the warehouse folder, created if it does not exist.
        conf: additional Spark settings.

    Returns:
        The exit code.
    """
    printer = Printer()
    if importlib.util.find_spec("dbt.adapters.spark") is None:
        printer.error("dbt is not installed. Install it with: pip install 'sqlext[dbt]'.")
        return ExitCode.USAGE
    # dbt's own options may precede its command. dbt's parser is not used here: once imported, dbt prints what sqlext logs.
    command = next((each for each in arguments if each in _WITH_SPARK | _WITHOUT_SPARK), "")
    if command not in _WITH_SPARK or _ONLY_TELL.intersection(arguments):
        return _invoke(arguments, printer)
    program = partial(_invoke, arguments, printer)
    return run_embedded(printer, warehouse, conf, lambda runner: runner.run_program(program), echo=False)


def _invoke(arguments: Sequence[str], printer: Printer) -> ExitCode:
    """Run dbt, which prints its own results and errors, except for those of wrong usage."""
    from dbt.cli.exceptions import DbtUsageException
    from dbt.cli.main import dbtRunner

    answer = dbtRunner().invoke(list(arguments))
    if isinstance(answer.exception, DbtUsageException):
        printer.error(f"dbt: {answer.exception}")
        return ExitCode.USAGE
    return ExitCode.FINE if answer.success else ExitCode.STATEMENT_FAILED


def init_package(project: Path) -> ExitCode:
    """Write the dbt package into a project, over an earlier copy, and create `packages.yml` and the override if there are none.

    A copy travels with the project: into version control, and onto machines that have dbt but not sqlext. A path to the installed
    package would be valid for one virtual environment only.

    Args:
        project: the folder with `dbt_project.yml`.

    Returns:
        The exit code.
    """
    printer = Printer()
    if not (project / "dbt_project.yml").is_file():
        printer.error(f"There is no dbt_project.yml in {project.absolute()}. Give the folder of a dbt project.")
        return ExitCode.USAGE
    folder, packages, override = project / FOLDER, project / "packages.yml", project / OVERRIDE
    try:
        if folder.exists() and not (folder / "dbt_project.yml").is_file():
            printer.error(f"{folder} exists and is not a dbt package. Move it away.")
            return ExitCode.USAGE
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(PACKAGE, folder)
        if not packages.exists():
            packages.write_text(_PACKAGES, encoding="utf-8")
        elif FOLDER not in packages.read_text(encoding="utf-8"):
            printer.line(f"Add this to {packages}:\n\n  - local: {FOLDER}\n")
        if not override.exists():
            override.parent.mkdir(exist_ok=True)
            override.write_text(_OVERRIDE, encoding="utf-8")
    except OSError as error:
        printer.error(f"The package cannot be written to {project.absolute()}: {error.strerror}.")
        return ExitCode.USAGE
    printer.line(f"{folder} is written. `dbt deps` installs it in the project; run both again after an upgrade of sqlext.")
    return ExitCode.FINE
