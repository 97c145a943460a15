"""The parts of the README that the code writes: `python -m tests.readme` puts them in; a test holds the README to them."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from sqlext import grammar, options, planner, reference, statements
from sqlext.detect import is_ours
from sqlext.explain import explain_bounded, explain_flow
from sqlext.options import Given, Level, is_option_key
from sqlext.plan import FlowPlan, OutputMode
from sqlext.rules import BATCHES
from sqlext.script import split
from sqlext.shell.meta import COMMANDS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def options_table() -> str:
    return options.reference()


def explained_examples() -> str:
    """EXPLAIN of every flow in the examples, as Markdown."""
    blocks = []
    for path in sorted((ROOT / "sql_examples").glob("*.sql")):
        for script in split(path.read_text()):
            statement = grammar.parse(script.text) if is_ours(script.text) else None
            if isinstance(statement, (statements.CreateStreamingTable, statements.Insert, statements.BoundedStatement)):
                query = re.sub(r"^(\s*--[^\n]*\n)+", "", script.text).strip()
                blocks.append(f"`{path.relative_to(ROOT)}`:\n\n```sql\nEXPLAIN {query}\n```\n\n```\n{_explain(statement)}\n```\n")
    return "\n".join(blocks)


def _explain(statement: statements.CreateStreamingTable | statements.Insert | statements.BoundedStatement) -> str:
    if isinstance(statement, statements.BoundedStatement):  # Spark's own plan follows, which needs a JVM
        lines = explain_bounded(planner.plan_bounded(statement.query, BATCHES, is_sorted=True), ".".join(statement.target))
        return "\n".join(lines).rstrip()
    plan = planner.plan_flow(statement.query, BATCHES)
    own: dict[str, Given] = {}
    if isinstance(statement, statements.CreateStreamingTable):
        own = {key: given for key, given in statement.definition.properties.items() if is_option_key(key)}
    given = {Level.HINT: plan.hints, Level.PROPERTY: own}
    table = statement.name if isinstance(statement, statements.CreateStreamingTable) else statement.target
    of_streams = {
        stream.alias: options.resolve(options.with_own(given, stream.options), _seconds_or_minutes)
        for stream in plan.graph.streams
    }
    resolved = options.resolve(given, _seconds_or_minutes)
    return "\n".join(explain_flow(plan, resolved, ".".join(table), of_streams=of_streams, states=_states(plan, resolved)))


def _states(plan: FlowPlan, resolved: options.Options) -> list[str]:
    """As `creation.state_shown` tells them; of other backends, only Spark could."""
    backend = resolved[options.STATE_BACKEND]
    assert backend == "auto"
    is_aggregate = plan.output_mode is OutputMode.UPDATE
    return [f"{each.name or 'aggregate'}: rocksdb: state.backend.type is {backend}." for each in plan.queries if is_aggregate]


def _seconds_or_minutes(text: str) -> timedelta:
    """The examples' durations; Spark's own parser needs a JVM."""
    number, unit = text.split()
    return timedelta(**{{"second": "seconds", "minute": "minutes"}[unit.rstrip("s")]: int(number)})


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
    "explain": explained_examples,
}


def main() -> None:
    text = README.read_text()
    for name, write in PARTS.items():
        part = f"<!-- {name} -->\n{write()}<!-- end of {name} -->\n"
        text = re.sub(f"<!-- {name} -->\n(.*<!-- end of {name} -->\n)?", lambda _, part=part: part, text, flags=re.DOTALL)  # type: ignore[misc]
    README.write_text(text)


if __name__ == "__main__":
    main()
