"""The command line: statements from files, a shell, dbt, servers, the demo, reports and the documentation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click
from click.core import ParameterSource

from sqlext import docs as documentation
from sqlext.app.connect_address import CONNECT, ConnectAddress
from sqlext.app.documentation import print_page, print_topics
from sqlext.app.embedded import has_work
from sqlext.app.output import Printer
from sqlext.app.runner import run_embedded, serve_embedded
from sqlext.app.script_run import ExitCode, ScriptFile
from sqlext.errors import NotFoundError, SetupError, WaitTimeoutError
from sqlext.options import CONNECTORS_KEY, HOME_KEY
from sqlext.page.address import PAGE, Address, check_packages
from sqlext.server.server import ConnectServer, Server, ThriftServer
from sqlext.spark import kafka
from sqlext.sql.file_calls import names_avro

_WAREHOUSE = click.option(
    "--warehouse",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("sqlext-warehouse"),
    show_default=True,
    help="Folder that keeps tables, catalog and flows between runs; created if missing. One process at a time may use it.",
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

    sqlext runs Spark inside this process, on this machine: all it needs is Java 17 or newer. The tables, the catalog and the
    state of the flows are kept in one folder, the warehouse, from run to run.

    \b
    Try it:
      sqlext demo            a year of flight departures through a streaming table, in about two minutes
      sqlext run FILE.sql    your own statements
      sqlext shell           statements as you type them
      sqlext docs            the documentation, by topic
    """


@cli.command()
@click.argument("files", metavar="[FILE.sql]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--until-idle", is_flag=True, help="Stop once all data that has arrived is in the tables, instead of at Ctrl-C.")
@click.option(
    "--timeout",
    metavar="DURATION",
    help="With --until-idle: give up after this long, such as '5 minutes'.  [default: 1 hour]",
)
@CONNECT
@PAGE
@_CONF
@_WAREHOUSE
@click.pass_context
def run(
    context: click.Context,
    files: tuple[str, ...],
    until_idle: bool,
    timeout: str | None,
    host: ConnectAddress | None,
    page: Address | None,
    conf: dict[str, str],
    warehouse: Path,
) -> None:
    """Run the statements of SQL files, then keep their flows running.

    Statements end with `;`. Results are printed as tables. CREATE STREAMING TABLE, CREATE FLOW and INSERT INTO .. FROM STREAM
    start flows; after the last statement they run until Ctrl-C, which flushes and stops them. Flows that were running when the
    last process on this warehouse ended are resumed; without a FILE, that is all this command does. `-` reads statements from
    standard input.

    With --connect, the statements run at a host. Its flows go on when this command ends, which is after the last statement; with
    --until-idle, once all data that has arrived is in the tables of the host's flows.

    \b
    Exit codes:
      0  success; also when Ctrl-C stopped the flows
      1  a statement failed; the statements after it were not run
      2  wrong usage, or Spark could not be started, or the host cannot be reached
      3  a flow failed, or the --timeout expired
      130  Ctrl-C during statements or --until-idle; flows are flushed and stopped
    """
    if timeout and not until_idle:
        raise click.UsageError("--timeout requires --until-idle; without it, flows run until Ctrl-C.")
    if host is not None:
        context.exit(_run_at(host, context, files, until_idle, timeout))
    if not files and HOME_KEY not in conf and not has_work(warehouse):
        raise click.UsageError(f"Give a FILE.sql to run: {warehouse} has no flow, view or job to resume.")
    scripts = [_read(file) for file in files]
    if connectors := _connectors(scripts):
        conf = {CONNECTORS_KEY: connectors, **conf}
    code = run_embedded(Printer(), warehouse, conf, lambda runner: runner.run(scripts, until_idle, timeout), page=page)
    context.exit(code)


@cli.command()
@CONNECT
@PAGE
@_CONF
@_WAREHOUSE
@click.pass_context
def shell(
    context: click.Context, host: ConnectAddress | None, page: Address | None, conf: dict[str, str], warehouse: Path
) -> None:
    """Run statements as you type them, at a prompt.

    A statement ends with `;`. Tab completes statements, options and names; \\? lists the shell's own commands, such as SHOW FLOWS
    \\watch 2. Ctrl-C cancels the running statement; Ctrl-D flushes and stops the flows, and leaves the shell. Flows that were
    running when the last process on this warehouse ended are resumed. Input is saved in $XDG_STATE_HOME/sqlext/history
    (~/.local/state), except for lines that begin with a space.

    With --connect, the statements run at a host, and Ctrl-D leaves its flows running.

    \b
    Exit codes:
      0  the shell was left by Ctrl-D, \\q or a signal
      2  wrong usage, or Spark could not be started, or the host cannot be reached
      3  a flow failed
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("sqlext shell needs a terminal. To run statements from a file or pipe, use: sqlext run -")
    try:
        from sqlext.shell.loop import run_shell
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("sqlext"):
            raise
        raise click.UsageError(f"sqlext shell needs {missing.name}. Install it: pip install 'sqlext[shell]'.") from None
    if host is not None:
        _refuse_what_the_host_has(context)
        from sqlext.app.connected import run_connected

        context.exit(run_connected(Printer(), host, run_shell))
    context.exit(run_embedded(Printer(), warehouse, conf, run_shell, page=page))


def _run_at(
    host: ConnectAddress, context: click.Context, files: Sequence[str], until_idle: bool, timeout: str | None
) -> ExitCode:
    """Run files at a host."""
    _refuse_what_the_host_has(context)
    if not files and not until_idle:
        raise click.UsageError("Give a FILE.sql to run with --connect, or --until-idle to wait for the host's flows.")
    scripts = [_read(file) for file in files]
    from sqlext.app.connected import run_connected

    return run_connected(Printer(), host, lambda runner: runner.run(scripts, until_idle, timeout))


_OF_THE_HOST = {
    "warehouse": "the host has opened its own",
    "conf": "the host's Spark runs already. Use SET in a statement, or give --conf to the command that starts the host",
    "page": "the host's command has that option",
}


def _refuse_what_the_host_has(context: click.Context) -> None:
    """Refuse the options that make no sense with --connect.

    Raises:
        click.UsageError: one of them was given.
    """
    for name, reason in _OF_THE_HOST.items():
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
            raise click.UsageError(f"--{name} cannot be given with --connect: {reason}.")


@cli.command()
@click.option("--days", type=click.IntRange(1, 365), default=365, show_default=True, help="How many days of 2013 to replay.")
@click.option(
    "--warehouse",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the tables in this folder; by default they are removed at the end.",
)
@_CONF
@click.pass_context
def demo(context: click.Context, days: int, warehouse: Path | None, conf: dict[str, str]) -> None:
    """Replay the departures of 2013 from New York's airports.

    336,776 departures arrive as 365 daily files. A streaming table keeps delays per carrier and airport up to date, flushed every
    10 seconds instead of at each micro-batch. At the end, the table is compared with a batch query over the same files: the exit
    code is 0 if they are equal, 1 if they are not.
    """
    from sqlext.app.demo import run_demo

    context.exit(run_demo(days, warehouse, conf))


@cli.command()
@click.argument("name", metavar="[FLOW|VIEW|JOB]", required=False, default="")
@click.option("--all", "is_all", is_flag=True, help="Write the overview of all flows, views and jobs, with the graph of tables.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file to write, such as report.html; an existing file is overwritten.",
)
@_CONF
@_WAREHOUSE
@click.pass_context
def report(context: click.Context, name: str, is_all: bool, output: Path, conf: dict[str, str], warehouse: Path) -> None:
    """Write everything recorded about a flow, materialized view or job to one HTML file; with --all, the overview of all.

    FLOW and VIEW are names; JOB is a job's id, or the beginning of it. The file contains its styles and charts and loads nothing
    else. Spark is not started: flows keep running, or stay stopped, and the warehouse may be in use. Of --conf, only
    spark.sqlext.home counts, which must be a folder of this machine.

    \b
    Exit codes:
      0  the file was written
      2  there is no such flow, view, job or warehouse, or the file cannot be written
    """
    if bool(name) == is_all:
        raise click.UsageError("Name a flow, view or job, or give --all.")
    printer = Printer()
    try:
        check_packages()
        from sqlext.page.report import write_report

        printer.note(write_report(name, warehouse, output, conf.get(HOME_KEY, "")))
    except (SetupError, NotFoundError, WaitTimeoutError) as error:
        printer.error(error.message)
        context.exit(ExitCode.USAGE)


@cli.command()
@_CONF
@_WAREHOUSE
@click.pass_context
def doctor(context: click.Context, conf: dict[str, str], warehouse: Path) -> None:
    """Look at all that sqlext needs on this machine, and say what to do where something is wrong.

    Java, JARs, memory, disk, the warehouse and its catalog, and the home of the flows: whether two drivers could both believe
    that a flow is theirs, whether clocks agree, and which flows, views and jobs are recorded. No flow is started. Give the same
    --conf as for `sqlext run`.

    \b
    Exit codes:
      0  nothing is wrong
      1  something is wrong
    """
    from sqlext.app.doctor import run_doctor

    context.exit(run_doctor(Printer(), warehouse, conf))


@cli.command()
@click.argument("topic", required=False)
def docs(topic: str | None) -> None:
    """Show the documentation: the list of topics, or the page of one topic.

    In a terminal the page is formatted; otherwise it is written as plain Markdown: sqlext docs flows > flows.md.
    """
    if topic is None:
        print_topics(Printer(), documentation.pages())
        return
    try:
        print_page(Printer(), documentation.page(topic))
    except NotFoundError as error:
        raise click.UsageError(error.message) from None


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", metavar="DBT_COMMAND [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED)
@_CONF
@_WAREHOUSE
@click.pass_context
def dbt(context: click.Context, arguments: tuple[str, ...], conf: dict[str, str], warehouse: Path) -> None:
    """Run dbt in the process that hosts the flows: `sqlext dbt run`, `test`, `build`, `docs generate` ..

    For profiles with `method: session`. The arguments are passed to dbt unchanged. Flows that were running when the last process
    on this warehouse ended are resumed; once dbt is done and all data that has arrived is in the tables, the flows are stopped,
    and the next run resumes them.

    `sqlext dbt init-package [PROJECT]` writes the package with the materializations streaming_table, materialized_view and
    bounded_table into a dbt project (by default the current folder), for any profile.

    \b
    Exit codes:
      0  success
      1  dbt reported a failure
      2  wrong usage, or Spark could not be started
      3  a flow failed
      130  Ctrl-C; flows are still flushed and stopped
    """
    from sqlext.dbt.command import init_package, run_dbt

    if arguments[0] == "init-package":
        if len(arguments) > 2:
            raise click.UsageError(f"init-package takes one folder, not {len(arguments) - 1}.")
        context.exit(init_package(Path(*arguments[1:])))
    context.exit(run_dbt(arguments, warehouse, conf))


_PORT = click.IntRange(0, 65535)
_HOST = click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Without authentication, any client that can connect can do all that this process can.",
)


@cli.command()
@_HOST
@click.option("--port", type=_PORT, default=10000, show_default=True, help="0: any free port.")
@PAGE
@_CONF
@_WAREHOUSE
@click.pass_context
def thriftserver(
    context: click.Context, host: str, port: int, page: Address | None, conf: dict[str, str], warehouse: Path
) -> None:
    """Serve SQL to JDBC, beeline, PyHive and dbt, and host the flows.

    This is Spark's HiveServer2 with sqlext in it. Flows and jobs that were running when the last process on this warehouse ended
    are resumed. Ctrl-C or SIGTERM stops the server, then flushes and stops the flows.
    """
    context.exit(serve_embedded(Printer(), warehouse, conf, [ThriftServer(host, port)], page))


@cli.command("connect-server")
@_HOST
@click.option("--port", type=_PORT, default=15002, show_default=True, help="0: any free port.")
@PAGE
@_CONF
@_WAREHOUSE
@click.pass_context
def connect_server(
    context: click.Context, host: str, port: int, page: Address | None, conf: dict[str, str], warehouse: Path
) -> None:
    """Serve Spark Connect, and host the flows.

    In all else like `sqlext thriftserver`.
    """
    context.exit(serve_embedded(Printer(), warehouse, conf, [ConnectServer(host, port)], page))


@cli.command()
@click.option("--thrift", is_flag=True, help="Serve JDBC, beeline, PyHive and dbt.")
@click.option("--connect", is_flag=True, help="Serve Spark Connect.")
@_HOST
@click.option("--thrift-port", type=_PORT, default=10000, show_default=True, help="0: any free port.")
@click.option("--connect-port", type=_PORT, default=15002, show_default=True, help="0: any free port.")
@click.option("--standby", is_flag=True, help="If another process uses the warehouse, wait until it has ended, then take over.")
@PAGE
@_CONF
@_WAREHOUSE
@click.pass_context
def serve(
    context: click.Context,
    thrift: bool,
    connect: bool,
    host: str,
    thrift_port: int,
    connect_port: int,
    standby: bool,
    page: Address | None,
    conf: dict[str, str],
    warehouse: Path,
) -> None:
    """Serve Thrift, Spark Connect, or both from one process, and host the flows.

    With --standby the same command may run twice on a warehouse. The second process waits until the first has ended, however it
    ends, then resumes its flows and serves at the same ports. A process that is only paused keeps the warehouse.
    """
    servers: list[Server] = []
    if thrift:
        servers.append(ThriftServer(host, thrift_port))
    if connect:
        servers.append(ConnectServer(host, connect_port))
    if not servers:
        raise click.UsageError("Give at least one server to run: --thrift, --connect, or both.")
    context.exit(serve_embedded(Printer(), warehouse, conf, servers, page, standby))


def _connectors(scripts: Sequence[ScriptFile]) -> str:
    """Return the connectors that scripts need, as the setting names them."""
    calls = {"kafka": kafka.is_called_in, "avro": names_avro}
    return ",".join(name for name, needs in calls.items() if any(needs(script.text) for script in scripts))


def _read(file: str) -> ScriptFile:
    name = "<stdin>" if file == "-" else file
    try:
        text = sys.stdin.read().removeprefix("\ufeff") if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise click.UsageError(f"{name} cannot be read: {reason}.") from None
    return ScriptFile(name, text)


def main() -> None:
    """Run the `sqlext` command."""
    cli()


if __name__ == "__main__":
    main()
