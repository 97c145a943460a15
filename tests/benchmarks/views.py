"""Materialized views refreshed incrementally and in full, in one run: python tests/benchmarks/views.py [--rows 10000000]

Both sides refresh a view of the same query after the same change; they take turns in which comes first. The tables: sales with a
million groups, and an order table with its lines and customers in the manner of TPC-H, of which Q1, Q3, Q5, Q6, Q13 and Q18 are
there. The changes: 1,000 rows of the sales; 0.1% of the orders with their lines deleted, as many inserted (RF1 and RF2), and 0.1%
of the lines updated. The results of both sides are compared after each.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import altair as alt
from pyspark.sql import SparkSession

from tests.benchmarks.common import session

RESULT = Path(__file__).with_suffix(".json")
QUERIES = {
    "sum by 1,000,000 groups": "SELECT g, count(*) AS n, sum(v) AS s FROM sales GROUP BY g",
    "Q1": "SELECT flag, status, sum(quantity) AS q, count(quantity) AS cq, sum(price) AS p, count(price) AS cp, count(*) AS n "
    "FROM lines WHERE shipped <= DATE'1998-09-02' GROUP BY flag, status",
    "Q1 with averages": "SELECT flag, status, avg(quantity) AS q, avg(price) AS p, count(*) AS n FROM lines "
    "WHERE shipped <= DATE'1998-09-02' GROUP BY flag, status",
    "Q3": "SELECT l.oid, o.ordered, sum(l.price * (1 - l.discount)) AS revenue FROM customers c JOIN orders o ON c.cid = o.cid "
    "JOIN lines l ON l.oid = o.oid WHERE c.segment = 'BUILDING' AND o.ordered < DATE'1995-03-15' "
    "AND l.shipped > DATE'1995-03-15' GROUP BY l.oid, o.ordered",
    "Q5": "SELECT c.nation, sum(l.price * (1 - l.discount)) AS revenue FROM customers c JOIN orders o ON c.cid = o.cid "
    "JOIN lines l ON l.oid = o.oid WHERE o.ordered >= DATE'1994-01-01' AND o.ordered < DATE'1995-01-01' GROUP BY c.nation",
    "Q6": "SELECT count(*) AS n, sum(price * discount) AS revenue, count(price * discount) AS c FROM lines "
    "WHERE shipped >= DATE'1994-01-01' AND shipped < DATE'1995-01-01' AND discount BETWEEN 0.05 AND 0.07 AND quantity < 24",
    "Q13": "SELECT orders_of, count(*) AS customers FROM (SELECT c.cid, count(o.oid) AS orders_of FROM customers c "
    "LEFT JOIN orders o ON c.cid = o.cid GROUP BY c.cid) GROUP BY orders_of",
    "Q18": "SELECT o.oid, o.cid, sum(l.quantity) AS q FROM orders o JOIN lines l ON o.oid = l.oid WHERE o.oid IN "
    "(SELECT oid FROM lines GROUP BY oid HAVING sum(quantity) > 180) GROUP BY o.oid, o.cid",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the sales, and lines of the orders")
    given = parser.parse_args()
    spark = session(Path(tempfile.mkdtemp()))
    tables(spark, given.rows)
    for at, query in enumerate(QUERIES.values()):
        for policy in ("INCREMENTAL", "FULL"):
            spark.sql(f"CREATE MATERIALIZED VIEW {policy}_{at} REFRESH POLICY {policy} AS {query}").collect()
    times: dict[str, dict[str, list[float]]] = {name: {"incremental": [], "full": []} for name in QUERIES}
    done: dict[str, set[str]] = {name: set() for name in QUERIES}
    for step, change in enumerate(changes(given.rows)):
        for text in change:
            spark.sql(text).collect()
        for at, name in enumerate(QUERIES):
            sides = ("INCREMENTAL", "FULL") if (at + step) % 2 else ("FULL", "INCREMENTAL")
            for policy in sides:
                began = time.perf_counter()
                said = spark.sql(f"REFRESH MATERIALIZED VIEW {policy}_{at}").collect()[0][0]
                if "no change" not in said and step:  # the first step warms up
                    times[name][policy.lower()].append(time.perf_counter() - began)
                if policy == "INCREMENTAL":
                    done[name].add(said.split(": ", 1)[1].split(",")[0])
            check(spark, at, name)
    began = time.perf_counter()
    spark.sql("REFRESH MATERIALIZED VIEW INCREMENTAL_0").collect()
    report(times, done, time.perf_counter() - began, given.rows)


def tables(spark: SparkSession, rows: int) -> None:
    """Make the tables: four lines an order, ten orders a customer."""
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    groups = min(1_000_000, rows // 4)
    spark.sql(
        f"CREATE TABLE sales USING delta {properties} AS SELECT id, hash(id) % {groups} AS g, id % 97 AS v FROM range({rows})"
    )
    spark.sql(
        f"CREATE TABLE customers USING delta {properties} AS SELECT id AS cid, element_at(array('BUILDING', 'AUTOMOBILE', "
        f"'MACHINERY', 'HOUSEHOLD', 'FURNITURE'), cast(id % 5 + 1 AS INT)) AS segment, id % 25 AS nation FROM range({rows // 40})"
    )
    spark.sql(f"CREATE TABLE orders USING delta {properties} AS {orders(0, rows // 4, rows)}")
    spark.sql(f"CREATE TABLE lines USING delta {properties} AS {lines(0, rows)}")


def orders(first: int, last: int, rows: int) -> str:
    """Return a query for the orders of a range of numbers."""
    customer, day = f"pmod(hash(id), {rows // 40})", "date_add(DATE'1992-01-01', pmod(hash(id, 1), 2400))"
    return f"SELECT id AS oid, {customer} AS cid, {day} AS ordered FROM range({first}, {last})"


def lines(first: int, last: int) -> str:
    """Return a query for the lines of a range of numbers."""
    return (
        "SELECT id AS lid, id DIV 4 AS oid, cast(pmod(hash(id), 50) + 1 AS DECIMAL(12, 2)) AS quantity, "
        "cast(pmod(hash(id, 2), 100000) / 100 AS DECIMAL(12, 2)) AS price, "
        "cast(pmod(hash(id, 3), 11) / 100 AS DECIMAL(4, 2)) AS discount, "
        "element_at(array('A', 'N', 'R'), pmod(hash(id, 4), 3) + 1) AS flag, "
        "element_at(array('O', 'F'), pmod(hash(id, 5), 2) + 1) AS status, "
        "date_add(DATE'1992-01-01', pmod(hash(id DIV 4, 1), 2400) + pmod(hash(id, 6), 90)) AS shipped "
        f"FROM range({first}, {last})"
    )


def changes(rows: int) -> list[list[str]]:
    """Return steps of statements; the first one is not measured."""
    some = rows // 4 // 1000  # 0.1% of the orders

    def step(at: int) -> list[str]:
        first = rows // 4 + at * some
        return [
            f"UPDATE sales SET v = v + 1 WHERE id >= {at * 1000} AND id < {at * 1000 + 1000}",
            f"DELETE FROM orders WHERE pmod(hash(oid), 1000) = {at}",
            f"DELETE FROM lines WHERE pmod(hash(oid), 1000) = {at}",
            f"INSERT INTO orders {orders(first, first + some, rows)}",
            f"INSERT INTO lines {lines(4 * first, 4 * (first + some))}",
            f"UPDATE lines SET price = price + 1 WHERE pmod(hash(lid, 7), 1000) = {at}",
        ]

    return [step(at) for at in range(4)]


def check(spark: SparkSession, at: int, name: str) -> None:
    """Raise AssertionError if both sides differ."""
    one, other = (f"SELECT * FROM {policy}_{at}" for policy in ("INCREMENTAL", "FULL"))
    for left, right in ((one, other), (other, one)):
        assert spark.sql(f"{left} EXCEPT ALL {right}").isEmpty(), f"{name} differs"


def report(times: dict[str, dict[str, list[float]]], done: dict[str, set[str]], idle: float, rows: int) -> None:
    """Print both sides, and save them."""
    found = {
        name: {side: round(statistics.median(each), 2) for side, each in sides.items() if each} for name, sides in times.items()
    }
    sums = {side: round(sum(each.get(side, 0.0) for each in found.values()), 2) for side in ("incremental", "full")}
    for name, sides in found.items():
        ratio = sides["full"] / sides["incremental"]
        print(
            f"{name}: full {sides['full']} s, incremental {sides['incremental']} s ({', '.join(sorted(done[name]))}): {ratio:.1f}"
        )
    print(f"all: full {sums['full']} s, incremental {sums['incremental']} s: {sums['full'] / sums['incremental']:.1f}")
    print(f"no change: {idle * 1000:.0f} ms")
    result = {
        "rows": rows,
        "seconds": found,
        "done": {name: sorted(each) for name, each in done.items()},
        "sum": sums,
        "no_change_ms": round(idle * 1000),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    bars = [{"query": name, "refresh": side, "seconds": each} for name, sides in found.items() for side, each in sides.items()]
    chart = (
        alt.Chart(alt.InlineData(values=bars)).mark_bar().encode(x="seconds:Q", y="refresh:N", color="refresh:N", row="query:N")
    )
    chart.save(str(RESULT.with_suffix(".svg")))


if __name__ == "__main__":
    main()
