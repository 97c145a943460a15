"""The page as a reader sees it: a process that hosts flows and a job, and every page opened in Chromium."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, Page
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.docs import TOPICS
from sqlext.execution.jobs import division
from sqlext.execution.jobs.outputs import PartOutput, VertexTable
from sqlext.page.address import Address
from sqlext.page.app import PageApp
from sqlext.page.server import page_server
from sqlext.page.snapshot import ViewDetail
from sqlext.page.stored import StoredHome
from tests.browser import chromium
from tests.integration.workshop import BUFFERED, COUNTS, Workshop, local
from tests.pages import HOSTILE, MadePages, no_drawing
from tests.support import eventually

ODD = '<b>odd</b> & "name" / ../%2e'
JOB = "CREATE TABLE totals USING delta AS SELECT k, count(*) AS n FROM STREAM ev GROUP BY k GLOBAL WINDOW END OF STREAM"
DEADLINE = 180.0
BACKGROUNDS = {"dark": "rgb(20, 24, 29)", "light": "rgb(255, 255, 255)"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def hosting(sql: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """A flow with two flushes, one with a hostile name, and a job of which a resume has skipped a part."""
    monkeypatch.setattr(division, "KEPT_BYTES", 0)  # every result is kept, as those of large jobs are
    sql.source()
    sql("SET execution.batch.job-recovery.enabled = true")
    sql("SET execution.batch.job-recovery.retention = 1 day")
    interrupted(sql, JOB, monkeypatch)
    (job,) = sql("SHOW JOBS")
    sql(f"RESUME JOB {job.id}")
    sql(f"CREATE STREAMING TABLE t {BUFFERED} AS {COUNTS.format('STREAM ev')} HAVING count(*) > 0")
    sql("WAIT FLOW t")
    sql("INSERT INTO ev VALUES ('b', 5)")
    sql("WAIT FLOW t")
    sql("CREATE TABLE copy (k STRING) USING delta")
    sql(f"CREATE FLOW `{ODD}` AS INSERT INTO copy SELECT k FROM STREAM ev")
    return sql


def interrupted(sql: Workshop, statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a job whose driver fails when one part has been committed."""
    commit, done = VertexTable.commit, list[PartOutput]()

    def once(table: VertexTable, output: PartOutput) -> None:
        if done:
            raise RuntimeError("the driver fails")
        done.append(output)
        commit(table, output)

    with monkeypatch.context() as patch:
        patch.setattr(VertexTable, "commit", once)
        with pytest.raises(PySparkException, match="the driver fails"):
            sql(statement)


def watched(page: Page, wrong: list[str]) -> None:
    """Note all that a browser complains of."""
    page.on("console", lambda message: wrong.append(f"{page.url}: {message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on("requestfailed", lambda request: wrong.append(f"{request.url}: {request.failure}"))
    page.on("response", lambda answer: wrong.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None)


def links(page: Page) -> list[str]:
    """Where the links of a page lead, but for those that save a file, or lead to other sites."""
    found = page.eval_on_selector_all(
        "a:not([download])", "all => all.filter(each => each.origin == location.origin).map(each => each.href)"
    )
    return [str(each).partition("#")[0] for each in found]


def test_every_page_opens_and_every_link_leads_somewhere(hosting: Workshop, browser: Browser, tmp_path: Path) -> None:
    wrong: list[str] = []
    with page_server(Address("127.0.0.1", 0)) as server, server.showing(hosting.spark):
        context = browser.new_context(viewport={"width": 360, "height": 640}, color_scheme="dark")
        page = context.new_page()
        watched(page, wrong)
        to_visit, visited, saved = [server.url], set[str](), list[Path]()
        while to_visit:
            url = to_visit.pop()
            if url in visited:
                continue
            visited.add(url)
            page.goto(url, wait_until="networkidle")
            assert page.locator("h1").count() == 1
            assert_fits(page)
            assert_charts_are_drawn(page)
            to_visit += links(page)
            for link in page.locator("a[download]").all():
                with page.expect_download() as download:
                    link.click()
                saved.append(tmp_path / f"{len(saved)}.html")
                download.value.save_as(saved[-1])
        kinds = sorted(urlsplit(url).path.split("/")[1] for url in visited)
        assert {kind: kinds.count(kind) for kind in kinds} == {
            "": 2,
            "docs": 1 + len(TOPICS),
            "flows": 4,
            "jobs": 2,
            "trace": 4,
        }, visited

        assert_tells(page, server.url)
        for file in saved:
            page.goto(file.as_uri(), wait_until="load")
            assert_fits(page)
            assert_charts_are_drawn(page)
        assert len(saved) == 6
        context.close()
    assert wrong == []


def assert_fits(page: Page) -> None:
    """At 360 pixels nothing is wider than the page; tables scroll within theirs."""
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, page.url


def assert_charts_are_drawn(page: Page) -> None:
    widths = page.eval_on_selector_all("img", "all => Promise.all(all.map(each => each.decode().then(() => each.naturalWidth)))")
    assert all(width > 200 for width in widths), page.url


def assert_tells(page: Page, url: str) -> None:
    """By keyboard and clicks, as a reader goes through it."""
    page.goto(url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.get_by_role("link", name=ODD, exact=True).count() == 1
    page.get_by_role("link", name="t", exact=True).click()
    flushes = page.get_by_role("table", name="One flush is one commit")
    assert flushes.get_by_role("row").count() == 3, "a heading and two flushes"
    assert page.get_by_text("1. having_to_column").is_visible()
    page.get_by_role("link", name="Trace this statement").click()
    page.get_by_role("button", name="Trace").click()
    assert page.get_by_role("heading", name="Buffering").is_visible()
    assert page.get_by_text("Buffered: Aggregate is output-idempotent").is_visible()
    page.get_by_label("Statement").fill("SELECT 1")
    page.get_by_role("button", name="Trace").click()
    assert page.get_by_role("status").text_content() == (
        "This statement is Spark's: it uses none of sqlext's constructs and reaches Spark byte for byte."
    )
    page.get_by_role("link", name="Flows, views and jobs").click()
    page.locator("a[href^='/jobs/']").click()
    vertices = page.get_by_role("table", name="A vertex is a piece of the plan")
    vertices.wait_for()  # what follows looks at once
    first = [cell.text_content() for cell in vertices.get_by_role("row").nth(1).get_by_role("cell").all()]
    assert first[4] == "1", "the part that the first driver had committed"
    assert page.get_by_text("parts skipped by a resume").locator("xpath=following-sibling::dd").text_content() == "1"
    page.get_by_role("link", name="Refresh every 5 seconds").click()
    assert page.locator("meta[http-equiv=refresh]").get_attribute("content") == "5"


def test_a_view_tells_its_refreshes_and_how_far_it_is_behind(sql: Workshop, browser: Browser, tmp_path: Path) -> None:
    sql.source()
    sql("CREATE MATERIALIZED VIEW v REFRESH POLICY INCREMENTAL AS SELECT k, count(*) AS n FROM ev GROUP BY k")
    sql("INSERT INTO ev VALUES ('a', 4), ('c', 5)")
    sql("REFRESH MATERIALIZED VIEW v")
    sql("REFRESH MATERIALIZED VIEW v FULL")
    sql("INSERT INTO ev VALUES ('d', 6)")
    sql.crash()  # what the page shows of a view needs no process that refreshes it
    wrong: list[str] = []
    with page_server(Address("127.0.0.1", 0)) as server, server.showing(sql.spark):
        context = browser.new_context(viewport={"width": 360, "height": 640})
        page = context.new_page()
        watched(page, wrong)
        page.goto(server.url, wait_until="networkidle")
        (row,) = cells(page, "A materialized view is brought up to date")
        assert row[:4] == ["v", "IDLE", "INCREMENTAL", "none"]
        assert row[5] == "full"
        assert row[6].startswith("1 version, ")
        page.get_by_role("link", name="v", exact=True).click()
        page.wait_for_load_state("networkidle")
        assert_fits(page)
        assert_charts_are_drawn(page)
        refreshes = cells(page, "One refresh is one commit on the view")
        assert [(each[0], *each[2:7]) for each in refreshes] == [
            ("3", "full", "FULL was requested", "all", "all", "4"),
            ("2", "merge groups", "by k", "2", "1", "2"),
            ("1", "full", "first refresh", "all", "all", "3"),
        ]
        ((name, of_view, newest, behind),) = cells(page, "The Delta tables that the view reads")
        assert (name, of_view, newest) == ("spark_catalog.default.ev", "2", "3")
        assert behind.startswith("1 version, ")
        with page.expect_download() as download:
            page.locator("a[download]").click()
        download.value.save_as(tmp_path / "v.html")
        sql("DROP TABLE ev")
        eventually(lambda: page.reload() and page.get_by_text("was dropped or moved").count(), DEADLINE)
        page.goto((tmp_path / "v.html").as_uri(), wait_until="load")
        assert cells(page, "One refresh is one commit on the view") == refreshes
        assert_charts_are_drawn(page)
        context.close()
    assert wrong == []
    stored = StoredHome(local(sql.host.home).parent).detail("v")
    assert isinstance(stored, ViewDetail)
    assert [str(each.version) for each in reversed(stored.refreshes)] == [each[0] for each in refreshes]


def cells(page: Page, caption: str) -> list[list[str]]:
    """The texts of a table, row by row, without its heading."""
    rows = page.get_by_role("table", name=caption).locator("tbody tr").all()
    return [[text.strip() for text in row.locator("th, td").all_text_contents()] for row in rows]


@contextmanager
def made_pages() -> Iterator[str]:
    """The page over snapshots made by hand, for a `with` block, which gets its address."""
    app = PageApp(MadePages(), no_drawing)
    listening = Address("127.0.0.1", 0).listen()
    server = uvicorn.Server(uvicorn.Config(app.asgi, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="made-pages", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
        listening.close()
        app.close()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_hostile_names_do_nothing_and_fit(browser: Browser, scheme: Literal["dark", "light"]) -> None:
    wrong: list[str] = []
    with made_pages() as url, browser.new_context(viewport={"width": 360, "height": 640}, color_scheme=scheme) as context:
        page = context.new_page()
        watched(page, wrong)
        page.on("dialog", lambda dialog: wrong.append(f"{page.url}: {dialog.message}"))
        for path in ("/", "/flows/f1", "/flows/f2", "/views/v1", "/views/v2", "/jobs/j00ff", f"/trace?sql={quote(HOSTILE)}"):
            page.goto(url + path, wait_until="networkidle")
            assert_fits(page)
            assert page.locator("script, img[onerror]").count() == 0
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUNDS[scheme]
    assert wrong == []


def test_the_page_ends_with_its_block_and_takes_its_threads_along(sql: Workshop) -> None:
    sql.source()
    with page_server(Address("127.0.0.1", 0)) as server:
        with server.showing(sql.spark):
            with urllib.request.urlopen(server.url, timeout=DEADLINE) as answer:
                assert answer.status == 200
                assert "server" not in answer.headers
            assert "sqlext-page" in threads()
        eventually(lambda: not threads(), DEADLINE, lambda: str(threads()))
        port = urlsplit(server.url).port
        assert port is not None
    with socket.create_server(("127.0.0.1", port)):
        pass  # the port is free again


def threads() -> set[str]:
    """The names of the page's threads; the host keeps its own."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("sqlext-page")}


def test_without_an_address_there_is_no_page(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    note: Callable[[str], None] = said.append
    with page_server(None, note) as server, server.showing(spark):
        assert server.url == ""
    assert said == []
