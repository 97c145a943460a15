"""The documentation that ships with the package: its pages, their links, `sqlext docs`, and its HTML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from sqlext import docs
from sqlext.cli import cli
from sqlext.errors import NotFoundError
from sqlext.page.documents import html_of, slug
from tests import readme

FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """A document without its blocks of code."""
    return FENCED.sub("", text)


def headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose(path.read_text()), re.MULTILINE)


# Pages.


def test_each_file_is_a_topic() -> None:
    assert sorted(path.stem for path in readme.PAGES.glob("*.md")) == sorted(docs.TOPICS)


@pytest.mark.parametrize("topic", docs.TOPICS)
def test_a_page_begins_with_its_title_and_a_sentence(topic: str) -> None:
    page = docs.page(topic)
    assert page.text.startswith(f"# {page.title}\n\n{page.summary}\n\n")
    assert page.title
    assert re.fullmatch(r"[A-Z][^`*\[]{10,118}\.", page.summary), "plain text, in one line"
    assert "<!--" not in page.text


def test_an_unknown_topic_names_the_nearest_and_all() -> None:
    with pytest.raises(
        NotFoundError, match=r"There is no topic `flow`\. Did you mean `flows`\? The topics are flows, statements, "
    ):
        docs.page("flow")


@pytest.mark.parametrize("path", readme.DOCUMENTS, ids=lambda path: path.stem)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text())):
        if target.startswith("https://"):
            continue
        name, _, place = target.partition("#")
        other = path.parent / name if name else path
        assert other.exists(), target
        assert not place or place in [slug(heading) for heading in headings(other)], target


@pytest.mark.parametrize("path", readme.DOCUMENTS, ids=lambda path: path.stem)
def test_rows_of_a_table_have_as_many_cells_as_its_head(path: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", prose(path.read_text()), re.MULTILINE)
    for table in tables:
        bars = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert [row for row, number in zip(table.splitlines(), bars, strict=True) if number != bars[0]] == []


def test_the_readme_names_each_topic() -> None:
    text = readme.README.read_text()
    assert [topic for topic in docs.TOPICS if f"(sqlext/docs/{topic}.md)" not in text] == []


# The command.


def test_without_a_topic_the_command_lists_them() -> None:
    answer = CliRunner().invoke(cli, ["docs"])
    assert answer.exit_code == 0
    assert [line.split()[0] for line in answer.output.splitlines()] == list(docs.TOPICS)
    assert re.search(r"^kafka +How read_kafka reads topics, ", answer.output, re.MULTILINE)


def test_a_page_is_written_as_it_is_where_nobody_looks() -> None:
    answer = CliRunner().invoke(cli, ["docs", "shell"])
    assert (answer.exit_code, answer.output) == (0, docs.page("shell").text)


def test_a_page_is_laid_out_at_a_terminal() -> None:
    environment = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "100"}
    shown = CliRunner().invoke(cli, ["docs", "options"], env=environment, color=True).output
    assert "\x1b[" in shown
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "## " not in text
    assert "|---|" not in text
    assert "(statements.md#hints)" in text
    listed = re.sub(r"\x1b\[[0-9;]*m", "", CliRunner().invoke(cli, ["docs"], env=environment, color=True).output)
    assert [line.split()[0] for line in listed.splitlines() if not line.startswith(" ")] == list(docs.TOPICS)


def test_an_unknown_topic_is_wrong_usage() -> None:
    answer = CliRunner().invoke(cli, ["docs", "kafak"])
    assert answer.exit_code == 2
    assert "There is no topic `kafak`. Did you mean `kafka`? The topics are flows, " in answer.output


# HTML.


@pytest.mark.parametrize("topic", docs.TOPICS)
def test_html_has_its_links_in_the_page_itself_and_nothing_that_the_page_forbids(topic: str) -> None:
    html = html_of(topic)
    places = [f"/docs/{topic}{place}" if place.startswith("#") else place for place in re.findall(r'href="([^"]*)"', html)]
    known = {f"/docs/{each}#{place}" for each in docs.TOPICS for place in re.findall(r'id="([^"]*)"', html_of(each))}
    known |= {f"/docs/{each}" for each in docs.TOPICS}
    assert [place for place in places if place not in known and not place.startswith("https://")] == []
    assert html.count("<h1") == 1
    assert html.count("<table>") == html.count('<div class="wide"')
    assert not re.search(r"<(?:script|style|img|iframe)|\sstyle=|\son\w+=", html)


def test_html_keeps_what_looks_like_tags_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = docs.Page("x", "X", "Y.", "# X\n\n<script>alert(1)</script> [a](javascript:alert(1)) [b](../b.txt) `<b>`\n")
    monkeypatch.setattr(docs, "page", lambda topic: hostile)
    html = html_of.__wrapped__("x")
    assert "<p>&lt;script&gt;alert(1)&lt;/script&gt; [a](javascript:alert(1)) b <code>&lt;b&gt;</code></p>" in html


def test_a_bar_in_code_does_not_end_its_cell() -> None:
    assert "<td><code>REFRESH STREAMING TABLE t [FULL] [SYNC | ASYNC]</code></td>" in html_of("statements")
