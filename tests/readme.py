"""The parts of the README that the code writes: `python -m tests.readme` puts them in; tests hold the README to them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pyspark.sql import Row, SparkSession

import sqlext
from sqlext import options
from sqlext.app import reference
from sqlext.plan.explain import explain_bounded
from sqlext.planner import planner
from sqlext.rules import BATCHES
from sqlext.shell.meta import COMMANDS
from sqlext.sql import grammar, statements
from sqlext.sql.scripts import split
from sqlext.sql.tokens import is_ours

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
Run = Callable[[str], list[Row]]
"""Runs a statement, and gives its rows."""


def options_table() -> str:
    return options.reference()


def examples() -> list[Path]:
    return sorted((ROOT / "sql_examples").glob("*.sql"))


def explained(example: Path, run: Run) -> str:
    """EXPLAIN of every flow and job in an example, as Markdown; its tables are made for it."""
    blocks = []
    for script in split(example.read_text()):
        text = re.sub(r"^(\s*--[^\n]*\n)+", "", script.text).strip()
        statement = grammar.parse(script.text) if is_ours(script.text) else None
        if statement is None and text.startswith(("CREATE OR REPLACE TABLE", "INSERT INTO")):
            run(text)
        if isinstance(statement, (statements.CreateStreamingTable, statements.Insert)):
            plan = run(f"EXPLAIN {text}")[0].plan
        elif isinstance(statement, statements.BoundedStatement):  # Spark's own plan follows, with numbers of its own
            bounded = planner.plan_bounded(statement.query, BATCHES, is_sorted=True)
            plan = "\n".join(explain_bounded(bounded, ".".join(statement.target))).rstrip()
        else:
            continue
        blocks.append(f"`{example.relative_to(ROOT)}`:\n\n```sql\nEXPLAIN {text}\n```\n\n```\n{plan}\n```\n")
    return "\n".join(blocks)


def explained_examples() -> str:
    """As `explained`, of all examples, in a session of its own."""
    with tempfile.TemporaryDirectory() as folder:
        builder = cast(Any, SparkSession.builder).master("local[2]").config("spark.sql.warehouse.dir", folder)
        spark = sqlext.configure(builder.config("spark.sql.catalogImplementation", "in-memory")).getOrCreate()
        found = [explained(example, lambda text: spark.sql(text).collect()) for example in examples()]
        sqlext.disable(spark)
        spark.stop()
    return "\n".join(text for text in found if text)


def shell_table() -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in COMMANDS.items()]
    return "\n".join(["| typed | what it does |", "|---|---|", *rows]) + "\n"


def section(title: str) -> str:
    """What stands under a heading of the second or third level."""
    found = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^##|\Z)", README.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, f"the README has no section {title}"
    return found[2]


def blocks(text: str, language: str) -> list[str]:
    """The code blocks in some language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


PARTS = {
    "shell": shell_table,
    "statements": reference.statements_table,
    "hints": reference.hints_table,
    "options": options_table,
    "errors": reference.errors_table,
}
"""What can be written without Spark."""


def main() -> None:
    text = README.read_text()
    for name, write in {**PARTS, "explain": explained_examples}.items():
        part = f"<!-- {name} -->\n{write()}<!-- end of {name} -->\n"
        text = re.sub(f"<!-- {name} -->\n(.*<!-- end of {name} -->\n)?", lambda _, part=part: part, text, flags=re.DOTALL)  # type: ignore[misc]
    README.write_text(text)


if __name__ == "__main__":
    main()
