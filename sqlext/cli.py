"""The command line: `sqlext run`, `sqlext demo`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click

from sqlext.embedded import has_flows
from sqlext.output import Printer
from sqlext.runner import ScriptFile, run_embedded

_WAREHOUSE = click.option(
    "--warehouse",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("sqlext-warehouse"),
    show_default=True,
    help="Folder that holds tables, catalog and flows between runs; made when it is not there. One process at a time.",
)


def _split_conf(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for key, equals, _ in pairs:
        if not equals or not key.strip():
            raise click.BadParameter(f"expected KEY=VALUE, such as spark.driver.memory=4g, not {key or equals!r}")
    return {key.strip(): value.strip() for key, _, value in pairs}


_CONF = click.option(
    "--conf",
    "-c",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_split_conf,
    help="A Spark setting, such as spark.driver.memory=4g, or a default for an option of sqlext, such as "
    "spark.sqlext.execution.flush.max-interval='1 min'. May be given several times.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    version("sqlext"), message=f"sqlext %(version)s (pyspark {version('pyspark')}, delta-spark {version('delta-spark')})"
)
def cli() -> None:
    """Streaming tables on Delta, from plain Spark SQL.

    sqlext runs Spark inside this process, on this machine: all it needs is Java 17 or newer. Tables, the catalog and the state
    of flows lie in one folder, the warehouse, and are there again in the next run.

    \b
    Try it:
      sqlext demo            a year of flight departures through a streaming table, in about two minutes
      sqlext run FILE.sql    your own statements
    """


@cli.command()
@click.argument("files", metavar="[FILE.sql]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--until-idle", is_flag=True, help="Stop once everything that had arrived is in the tables, instead of at Ctrl-C.")
@click.option(
    "--timeout",
    metavar="DURATION",
    help="With --until-idle: give up after this long, such as '5 minutes'.  [default: 1 hour]",
)
@_CONF
@_WAREHOUSE
@click.pass_context
def run(
    context: click.Context, files: tuple[str, ...], until_idle: bool, timeout: str | None, conf: dict[str, str], warehouse: Path
) -> None:
    """Run the statements of SQL files, then keep their flows going.

    Statements end with `;`. Results are printed as tables. CREATE STREAMING TABLE, CREATE FLOW and INSERT INTO .. FROM STREAM
    start flows; once the last statement is done they go on until Ctrl-C, which stops them with everything flushed. Flows that
    ran when the last process on this warehouse ended are taken up again; without a FILE that is all that is done.
    `-` reads statements from the standard input.

    \b
    Exit codes:
      0  all went well; also when Ctrl-C ended the flows
      1  a statement failed; those after it were not run
      2  wrong usage, or Spark could not be started
      3  a flow failed, or --timeout was over
      130  Ctrl-C before all that was done; flows are stopped, flushed, all the same
    """
    if timeout and not until_idle:
        raise click.UsageError("--timeout goes with --until-idle; without it flows run until Ctrl-C.")
    if not files and not has_flows(warehouse):
        raise click.UsageError(f"Give a FILE.sql to run: there are no flows in {warehouse} to take up.")
    scripts = [_read(file) for file in files]
    code = run_embedded(Printer(), warehouse, conf, lambda runner: runner.run(scripts, until_idle, timeout))
    context.exit(code)


@cli.command()
@click.option("--days", type=click.IntRange(1, 365), default=365, show_default=True, help="How many days of 2013 to replay.")
@click.option(
    "--warehouse",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the tables in this folder; without it all is removed.",
)
@_CONF
@click.pass_context
def demo(context: click.Context, days: int, warehouse: Path | None, conf: dict[str, str]) -> None:
    """Replay the departures of 2013 from New York's airports.

    336,776 departures arrive as 365 daily files. A streaming table keeps delays per carrier and airport up to date, flushed every
    10 seconds instead of at each micro-batch. At the end its content is compared with a batch query over the same files: the
    exit code is 0 when they are equal, 1 when they are not.
    """
    from sqlext.demo import run_demo

    context.exit(run_demo(days, warehouse, conf))


def _read(file: str) -> ScriptFile:
    name = "<stdin>" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise click.UsageError(f"{name} cannot be read: {reason}.") from None
    return ScriptFile(name, text)


def main() -> None:
    """Entry point of the `sqlext` command."""
    cli()


if __name__ == "__main__":
    main()
