"""Log lines as JSON, and whose work wrote them."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sqlext.app import embedded
from sqlext.commands import commands
from sqlext.errors import OptionError, Position, SetupError
from sqlext.logs import JsonFormatter, Subject, WorkFilter, about, carried, logged
from sqlext.redaction import REDACTED
from sqlext.sql.statements import SetOption


def record(message: str, *args: object, **more: Any) -> logging.LogRecord:
    return logging.LogRecord("sqlext.shop", logging.WARNING, "shop.py", 7, message, args, more.get("exc_info"))


def read(line: str) -> dict[str, Any]:
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_has_time_level_logger_thread_and_message() -> None:
    made = record("%d rows\nof %s", 3, "Zürich")
    line = read(JsonFormatter().format(made))
    time = datetime.fromisoformat(line.pop("time"))
    assert time.tzinfo is UTC
    assert abs(time.timestamp() - made.created) < 0.002
    assert line == {"level": "WARNING", "logger": "sqlext.shop", "thread": "MainThread", "message": "3 rows\nof Zürich"}


def test_a_line_written_for_a_flow_has_its_name_and_epoch() -> None:
    with about(flow="spark_catalog.shop.sales", epoch=4):
        inside = read(JsonFormatter().format(record("flushed")))
    assert (inside["flow"], inside["epoch"]) == ("spark_catalog.shop.sales", 4)
    assert "flow" not in read(JsonFormatter().format(record("idle")))


def test_work_for_another_hides_the_first_until_it_ends() -> None:
    def names() -> dict[str, Any]:
        line = read(JsonFormatter().format(record("x")))
        return {name: line[name] for name in ("flow", "epoch", "view", "job") if name in line}

    with about(view="v"):
        with about(flow="f", epoch=1):
            assert names() == {"flow": "f", "epoch": 1}
        assert names() == {"view": "v"}
    assert names() == {}


def test_a_thread_goes_on_with_the_work_only_if_it_is_carried() -> None:
    lines: list[dict[str, Any]] = []

    def log() -> None:
        lines.append(read(JsonFormatter().format(record("x"))))

    with about(job="j1"):
        threads = [threading.Thread(target=target) for target in (log, carried(log))]
    for thread in threads:
        thread.start()
        thread.join()
    assert [line.get("job") for line in lines] == [None, "j1"]


def test_a_method_works_for_its_object() -> None:
    class Sales:
        def __init__(self) -> None:
            self.subject: Subject = {"flow": "sales", "epoch": 2}

        @logged
        def line(self, message: str) -> dict[str, Any]:
            return read(JsonFormatter().format(record(message)))

    assert Sales().line("begun")["flow"] == "sales"


def test_neither_message_nor_traceback_has_a_secret() -> None:
    try:
        raise ValueError("jdbc:postgresql://ann:k3y@db/shop")
    except ValueError:
        text = JsonFormatter().format(record("option %s", "password=k3y", exc_info=sys.exc_info()))
    assert "k3y" not in text
    line = read(text)
    assert line["message"] == f"option password={REDACTED}"
    assert "Traceback" in line["exception"]


def test_a_filter_gives_names_to_other_formatters_and_to_other_threads() -> None:
    with about(flow="f", epoch=3):
        stamped = record("x")
        assert WorkFilter().filter(stamped)
    with about(flow="another", epoch=9):
        assert read(JsonFormatter().format(stamped))["flow"] == "f"
    assert logging.Formatter("%(flow)s/%(epoch)s").format(stamped) == "f/3"


# The log of an embedded process.


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    before, level = [*logger.handlers], logging.getLogger("sqlext").level
    yield logger
    for handler in [each for each in logger.handlers if each not in before]:
        handler.close()
        logger.removeHandler(handler)
    logging.getLogger("sqlext").setLevel(level)
    logging.captureWarnings(False)


def lines_of(folder: Path, log_format: str) -> tuple[str, str]:
    """What Java's and Python's lines are, in sqlext.log and in sqlext.jsonl."""
    (folder / "_sqlext").mkdir()
    with embedded._open_log(folder, log_format) as java:
        java.write(b"26/11/27 INFO Java speaks\n")
    with about(flow="f", epoch=1):
        logging.getLogger("sqlext.shop").info("hello")
    files = [folder / "_sqlext" / name for name in ("sqlext.log", "sqlext.jsonl")]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files if file.exists())
    text, lines = (file.read_text() if file.exists() else "" for file in files)
    return text, lines


@pytest.mark.usefixtures("root")
def test_a_log_as_text_is_one_file(tmp_path: Path) -> None:
    text, lines = lines_of(tmp_path, "text")
    assert "Java speaks" in text
    assert "INFO sqlext.shop: hello" in text
    assert lines == ""


@pytest.mark.usefixtures("root")
def test_a_log_as_json_has_nothing_but_json_in_a_file_of_its_own(tmp_path: Path) -> None:
    text, lines = lines_of(tmp_path, "json")
    assert text == "26/11/27 INFO Java speaks\n"
    found = [read(line) for line in lines.splitlines()]
    assert [each["message"] for each in found if (each.get("flow"), each.get("epoch")) == ("f", 1)] == ["hello"]


def test_an_unknown_format_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with (
        pytest.raises(SetupError, match=r"`spark\.sqlext\.log\.format` cannot be `xml`\. Give `text` or `json`\."),
        embedded.embedded_session(tmp_path / "w", {"spark.sqlext.log.format": "xml"}),
    ):
        pass
    assert not (tmp_path / "w").exists()


def test_the_format_cannot_be_set_once_the_log_has_begun() -> None:
    setting = SetOption("spark.sqlext.log.format", "json", Position(1, 5, 4, 27))
    with pytest.raises(OptionError, match="give it by --conf"):
        commands._check_setting(cast(SparkSession, None), setting)  # which is not asked
