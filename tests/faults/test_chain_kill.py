"""Four layers of views, killed by kill -9 between and within them: each version is at a cut, and no wave is lost or doubled.

python -m pytest tests/faults/test_chain_kill.py --kills 20
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.faults.test_view_kill import World, changes
from tests.faults.views_killed_at import ViewMoment
from tests.support import rows

IN_CI = 1
VIEWS = {
    "cleaned": "SELECT id, g, x FROM {items} WHERE x IS NOT NULL",
    "named": "SELECT g, max(w) AS w FROM {dims} GROUP BY g",
    "joined": "SELECT c.id, c.x, n.w FROM {cleaned} AS c LEFT JOIN {named} AS n ON c.g = n.g",
    "sums": "SELECT g, sum(x) AS s, count(*) AS n FROM {cleaned} GROUP BY g",
    "top": "SELECT j.w, count(*) AS n, sum(j.x) AS s, max(t.s) AS most "
    "FROM {joined} AS j CROSS JOIN (SELECT max(s) AS s FROM {sums}) AS t GROUP BY j.w",
    "most": "SELECT g, s FROM {sums} WHERE s > 100",
}
"""Layer by layer, over `items` and `dims`."""
NAMES = {name: name for name in ("items", "dims", *VIEWS)}
SET_UP = [
    "CREATE TABLE items (id INT, g INT, x INT) USING delta",
    "CREATE TABLE dims (g INT, w STRING) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "INSERT INTO items SELECT id, id % 12, IF(id % 9 = 0, NULL, id % 50) FROM range(300)",
    "INSERT INTO dims SELECT id, concat('w', id % 4) FROM range(12)",
    *(f"CREATE MATERIALIZED VIEW {name} AS {text.format_map(NAMES)}" for name, text in VIEWS.items()),
]
WHOLE = "REFRESH MATERIALIZED VIEW {} CASCADE"
ALWAYS_CHANGE = ("cleaned", "joined", "sums", "top", "most")
MOMENTS = (ViewMoment.BEGUN, ViewMoment.WRITTEN, ViewMoment.COMMITTED, ViewMoment.NO_STATUS)


@dataclass(frozen=True)
class Death:
    """Where a process dies: a view of the wave, a moment of it, and how many seconds later."""

    view: str
    moment: ViewMoment
    seconds: float
    is_made: bool = False

    def __str__(self) -> str:
        return f"{self.view}: {self.moment.value}{' + some seconds' if self.seconds else ''}"


class Chain(World):
    """A warehouse with the chain."""

    def said(self, view: str) -> list[tuple[int, dict[str, Any]]]:
        """The versions of a view with what their commits say."""
        found = []
        for file in sorted(self.warehouse.glob(f"{view}/_delta_log/*.json")):
            infos = (json.loads(line).get("commitInfo") for line in file.read_text().splitlines())
            info = next(each for each in infos if each is not None)
            if "userMetadata" in info:
                found.append((int(file.stem), json.loads(info["userMetadata"])["sqlext"]))
        return found

    def composed(self, view: str, cut: dict[str, int]) -> str:
        """The query of a view over the first sources at a cut, with those of the views below it in their places."""
        parts = {name: f"(SELECT * FROM delta.`{self.warehouse / name}` VERSION AS OF {at})" for name, at in cut.items()}
        for name, text in VIEWS.items():
            parts[name] = f"({text.format_map(Counted(parts))})"
            if name == view:
                break
        return parts[view]


class Counted(dict[str, str]):
    """Parts of a query; what the view does not read may be missing."""

    def __missing__(self, key: str) -> str:
        return key


@pytest.mark.timeout(7200)
def test_every_version_of_a_chain_is_at_its_cut(tmp_path: Path, spark: SparkSession, kills: int) -> None:
    chain = Chain(tmp_path)
    chain.live(SET_UP)
    for _ in range(max(kills, IN_CI)):
        death = Death(random.choice(ALWAYS_CHANGE), random.choice(MOMENTS), random.choice((0.0, 0.0, random.uniform(0.1, 3.0))))
        root = "top" if death.view not in ("most", "sums") else "cleaned"
        chain.live([*changes(chain.lives), WHOLE.format(root)], death)  # type: ignore[arg-type]  # it has what a Kill has
        chain.killed[str(death)] += 1
    chain.live([*changes(chain.lives), WHOLE.format("top"), WHOLE.format("sums")])

    checked: Counter[str] = Counter()
    for view in VIEWS:
        said = chain.said(view)
        assert [each["refresh"] for _, each in said] == list(range(1, len(said) + 1)), f"{view}: a refresh is lost or doubled"
        for version, each in said:
            if each["mixed"]:
                checked["mixed"] += 1
                continue
            cut = {name.rpartition(".")[2]: int(source["version"]) for name, source in each["cut"].items()}
            found = rows(spark.sql(f"SELECT * FROM delta.`{chain.warehouse / view}` VERSION AS OF {version}"))
            assert found == rows(spark.sql(f"SELECT * FROM {chain.composed(view, cut)}")), f"{view}, version {version}, cut {cut}"
            checked["at their cuts"] += 1
        assert not said[-1][1]["mixed"], f"{view}: the last wave has no cut"
    print(f"killed: {chain.killed.total()}, at {dict(sorted(chain.killed.items()))}; versions: {dict(checked)}")
