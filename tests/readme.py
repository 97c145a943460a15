"""What the code writes into the README and the pages of the documentation: `python -m tests.readme`; tests hold them to it.

What EXPLAIN says of the examples lies beside them: `pytest --complete tests/integration/test_readme.py` writes that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Row

from sqlext import docs, options
from sqlext.app import reference
from sqlext.plan.explain import explain_bounded, lines_of
from sqlext.planner import planner
from sqlext.rules import BATCHES
from sqlext.shell.meta import COMMANDS
from sqlext.sql import grammar, statements
from sqlext.sql.scripts import split
from sqlext.sql.tokens import is_ours

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = ROOT / "sqlext" / "docs"
DOCUMENTS = (README, *(PAGES / f"{topic}.md" for topic in docs.TOPICS))
SHOWN = ROOT / "sql_examples" / "having.sql"
"""The example whose EXPLAIN the documentation explains."""
Run = Callable[[str], list[Row]]
"""Runs a statement, and gives its rows."""


def examples() -> list[Path]:
    return sorted((ROOT / "sql_examples").glob("*.sql"))


def golden(example: Path) -> Path:
    """The file beside an example that has its EXPLAIN; there is none where nothing in it can be explained."""
    return example.with_suffix(".explain.txt")


def explained(example: Path, run: Run) -> str:
    """EXPLAIN of every flow and job in an example, behind its statement; the example's tables are made for it."""
    found = []
    for script in split(example.read_text()):
        text = re.sub(r"^(\s*--[^\n]*\n)+", "", script.text).strip()
        statement = grammar.parse(script.text) if is_ours(script.text) else None
        if statement is None and text.startswith(("CREATE OR REPLACE TABLE", "INSERT INTO", "INSERT OVERWRITE DIRECTORY")):
            run(text)
        if isinstance(statement, (statements.CreateStreamingTable, statements.Insert, statements.AutoCdc)):
            plan = run(f"EXPLAIN {text}")[0].plan
        elif isinstance(statement, statements.BoundedStatement):  # Spark's own plan follows, with numbers of its own
            bounded = planner.plan_bounded(statement.query, BATCHES, is_sorted=True)
            plan = "\n".join(lines_of(explain_bounded(bounded, ".".join(statement.target))))
        else:
            continue
        found.append(f"EXPLAIN {text};\n\n{plan}\n")
    return "\n\n".join(found)


def explained_table() -> str:
    """The example that the documentation explains, as a block of Markdown."""
    return f"```\n{golden(SHOWN).read_text()}```\n"


def topics_table() -> str:
    rows = [f"| [{each.title}](sqlext/docs/{each.topic}.md) | {each.summary} |" for each in docs.pages()]
    return "\n".join(["| page | what it is about |", "|---|---|", *rows]) + "\n"


def shell_table() -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in COMMANDS.items()]
    return "\n".join(["| typed | what it does |", "|---|---|", *rows]) + "\n"


def blocks(text: str, language: str) -> list[str]:
    """The code blocks in some language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


PARTS = {
    "topics": topics_table,
    "explain": explained_table,
    "shell": shell_table,
    "statements": reference.statements_table,
    "hints": reference.hints_table,
    "options": options.reference,
    "errors": reference.errors_table,
}
"""What the code writes, by the name that stands in the marks around it."""


def marked(part: str) -> str:
    """A part with its marks."""
    return f"<!-- {part} -->\n{PARTS[part]()}<!-- end of {part} -->\n"


def main() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        for name in PARTS:
            old = re.compile(f"<!-- {name} -->\n(.*<!-- end of {name} -->\n)?", re.DOTALL)
            text = old.sub(lambda _, name=name: marked(name), text)  # type: ignore[misc]
        document.write_text(text)


if __name__ == "__main__":
    main()
