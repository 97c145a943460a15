"""The page over snapshots made by hand: what it shows, what it refuses, what it tells browsers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser

import pytest
from py4j.protocol import Py4JNetworkError
from starlette.testclient import TestClient

from sqlext.docs import TOPICS
from sqlext.page.app import PageApp
from sqlext.page.snapshot import Overview
from tests.pages import HOSTILE, NINE, MadePages, no_drawing

PAGES = ["/", "/flows/f1", "/flows/f2", "/views/v1", "/views/v2", "/jobs/j00ff", "/trace", "/docs", "/docs/options"]
REPORTS = [f"{page}/report.html" for page in PAGES[1:6]]


@pytest.fixture
def pages() -> MadePages:
    return MadePages()


@pytest.fixture
def client(pages: MadePages) -> Iterator[TestClient]:
    app = PageApp(pages, no_drawing, frozenset(["flows.example.com"]))
    yield TestClient(app.asgi, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)
    app.close()


class Elements(HTMLParser):
    """The elements of a page, each with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def token_of(client: TestClient) -> str:
    """What the page's own form sends along."""
    fields = {str(each["name"]): str(each["value"]) for each in Elements(client.get("/trace").text).of("input")}
    return fields["token"]


def text_of(html: str) -> str:
    """What a reader sees, roughly."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_the_overview_tells_flows_views_and_jobs(client: TestClient) -> None:
    text = text_of(client.get("/").text)
    assert "views RUNNING backlog 1 min 15 s 1,234,567 30 712 4 7.0" in text
    assert re.search(r"region_totals FAILED AUTO EVERY 10 MINUTES \S+ \S+ full 2 versions, 2 min ", text)
    assert re.search(r"region_totals: The view has too few columns\. Next try: \S+ \S+ \.", text)
    assert "j00ff FINISHED spark_catalog.default.totals" in text


def test_nothing_there_is_said_so(client: TestClient, pages: MadePages) -> None:
    pages.made = Overview(NINE, "process 1")
    text = text_of(client.get("/").text)
    assert "There are no flows." in text
    assert "There are no materialized views." in text
    assert "There are no jobs that survive their driver." in text
    assert "There is no flush yet." in text_of(client.get("/flows/f2").text)
    assert "The log of the view's table has no refresh." in unescape(text_of(client.get("/views/v2").text))


def test_a_flow_tells_its_flushes_its_graph_and_the_rules(client: TestClient) -> None:
    html = client.get("/flows/f1").text
    text = text_of(html)
    assert re.search(r"1 \S+ \S+ interval 0 to 6 7 225 35 1\.2 s 2 min 5 s", text)
    assert "Aggregate stage 1 is_output_idempotent" in text
    assert "1. count_distinct_to_set batch streaming aggregates" in text
    assert "2. having_to_column batch retractions" in text
    assert "<del> HAVING count(*) &gt; 2</del>" in html
    image, source = Elements(html).of("img")[0], Elements(html).of("source")[0]
    assert (image["src"], source["srcset"]) == ("/flows/f1/chart-wide.svg", "/flows/f1/chart-narrow.svg")
    assert str(image["alt"]).startswith("Bars for each of the last 2 flushes")


def test_a_view_tells_its_refreshes_and_its_sources(client: TestClient) -> None:
    html = client.get("/views/v1").text
    text = text_of(html)
    assert "behind its sources 2 versions, 2 min " in text
    assert re.search(r" 4 \S+ \S+ full FULL was requested all all 1,291 9\.1 s 3 \S+ \S+ append ", text), "the newest first"
    assert re.search(r" 1 \S+ \S+ merge groups by region 1,240 3 4 2\.2 s 0 ", text)
    assert re.search(r" 0 \S+ \S+ full first refresh all all 1,200 8\.5 s", text)
    assert "spark_catalog.default.orders 10 12 2 versions, 2 min " in text
    assert "spark_catalog.default.customers 7 7 up to date" in text
    assert "SELECT region, count(*) AS n" in text
    image, source = Elements(html).of("img")[0], Elements(html).of("source")[0]
    assert (image["src"], source["srcset"]) == ("/views/v1/chart-wide.svg", "/views/v1/chart-narrow.svg")
    assert "<title>4 rows<" in client.get("/views/v1/chart-wide.svg").text


def test_a_job_tells_what_was_skipped(client: TestClient) -> None:
    text = text_of(client.get("/jobs/j00ff").text)
    assert re.search(r"0 .* skipped 1 1 1 10 100", text)
    assert re.search(r"1 Sort runs 4 2 0 not known not known", text)


@pytest.mark.parametrize("path", [*PAGES, *REPORTS, f"/trace?sql={HOSTILE}", f"/flows/{HOSTILE}"])
def test_hostile_names_stay_text(client: TestClient, path: str) -> None:
    html = client.get(path).text
    elements = Elements(html)
    assert elements.of("script") == []
    assert {image.get("onerror") for image in elements.of("img")} <= {None}
    assert all(not name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert "49" not in text_of(html), "it was taken for a template"


@pytest.mark.parametrize("path", [*PAGES, "/flows/f1/chart-wide.svg", "/style.css", "/icon.svg", "/nothing", *REPORTS])
def test_every_answer_has_its_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert "server" not in headers


@pytest.mark.parametrize("path", PAGES)
def test_head_is_get_without_a_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/flows/f1", "/nothing"])
def test_it_is_for_reading_only(client: TestClient, method: str, path: str) -> None:
    refused = client.request(method, path)
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, HEAD"
    assert refused.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/flows/f9",
        "/flows/f1/chart-huge.svg",
        "/flows/f2/chart-wide.svg",
        "/views/f1",
        "/views/v2/chart-wide.svg",
        "/flows/../etc",
        "/docs/nothing",
        "/docs/<b>",
        "/docs/flows.md",
    ],
)
def test_what_is_not_there_is_404(client: TestClient, path: str) -> None:
    refused = client.get(path)
    assert refused.status_code == 404
    assert "<h1>Not found</h1>" in refused.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
        ("192.168.7.9:8080", 200),  # rebinding needs a name
        ("FLOWS.example.com:8080", 200),
        ("evil.example.com", 421),
        ("evil.example.com:8080", 421),
        ("localhost.evil.example.com", 421),
        ("127.0.0.1.evil.example.com", 421),
        ("localhost@evil.example.com", 421),
        ("", 421),
    ],
)
def test_only_known_names_are_answered(client: TestClient, host: str, status: int) -> None:
    assert client.get("/", headers={"host": host}).status_code == status


def test_a_chart_is_drawn_again_only_when_it_has_changed(client: TestClient) -> None:
    first = client.get("/flows/f1/chart-narrow.svg")
    assert first.headers["content-type"] == "image/svg+xml"
    assert 'width="330"><title>2 rows<' in first.text
    again = client.get("/flows/f1/chart-narrow.svg", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/flows/f1/chart-wide.svg").headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize("path", REPORTS)
def test_a_report_asks_for_nothing_else(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.headers["content-disposition"].startswith("attachment;")
    elements = Elements(answer.text)
    assert elements.of("link") == []
    places = [attributes.get(name) for _, attributes in elements.found for name in ("src", "href", "srcset", "action")]
    assert all(place is None or place.startswith(("data:image/svg+xml;base64,", "#")) for place in places)
    (policy,) = [meta["content"] for meta in elements.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'; img-src data:; style-src 'sha256-")


def test_a_page_comes_again_by_itself_only_when_asked_to(client: TestClient) -> None:
    assert 'http-equiv="refresh"' not in client.get("/flows/f1").text
    assert '<meta http-equiv="refresh" content="5">' in client.get("/flows/f1?refresh=5").text
    assert 'http-equiv="refresh"' not in client.get("/?refresh=0.001").text


def test_the_documentation_is_there_even_when_spark_is_gone(client: TestClient, pages: MadePages) -> None:
    pages.error = Py4JNetworkError("gone")
    listed = Elements(client.get("/docs").text)
    topics = [str(link["href"]) for link in listed.of("a") if str(link["href"]).startswith("/docs/")]
    assert topics == [f"/docs/{topic}" for topic in TOPICS]
    html = client.get("/docs/backlog").text
    assert "<title>Backlog and hybrid sources · sqlext</title>" in html
    assert '<h2 id="hybrid-sources">Hybrid sources</h2>' in html
    refused = client.get("/docs/<b>backlogs")
    assert "<b>" not in refused.text
    assert "Did you mean `backlog`?" in refused.text


def test_when_spark_is_gone_it_says_so(client: TestClient, pages: MadePages, caplog: pytest.LogCaptureFixture) -> None:
    pages.error = Py4JNetworkError("An error occurred while trying to connect to the Java server (127.0.0.1:1)")
    refused = client.get("/")
    assert refused.status_code == 503
    assert "Spark is stopping or has ended." in refused.text
    assert "127.0.0.1:1" not in refused.text
    pages.error = ZeroDivisionError("/secret/path")
    failed = client.get("/")
    assert failed.status_code == 500
    assert "/secret/path" not in failed.text
    assert failed.headers["x-frame-options"] == "DENY"


def test_a_trace_of_what_is_not_ours_of_what_is_wrong_and_of_nothing(client: TestClient) -> None:
    def traced(sql: str) -> str:
        return text_of(client.post("/trace", data={"sql": sql, "token": token_of(client)}).text)

    assert "reaches Spark byte for byte" in traced("SELECT 1")
    wrong = "CREATE STREAMING TABLE t AS\nSELECT /*+ FLUSH_INTERVALL('1 s') */ k, count(*) AS n FROM STREAM e GROUP BY k"
    assert "Did you mean `FLUSH_INTERVAL`?" in traced(wrong)
    assert "(line 2, column 12)" in traced(wrong)
    assert "Give one statement, not 2." in traced("SELECT 1; SELECT 2")
    assert "refused" not in traced("  ")
    assert "This is a command" in traced("SHOW FLOWS")
