"""Changes as Debezium and Maxwell write them to Kafka, by the statements of docs/changes.md, with a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

from tests.integration.workshop import Workshop
from tests.kafka import Broker

pytestmark = pytest.mark.usefixtures("lean")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("kafka"))
    yield made
    made.stop()


def statements(table: str, broker: Broker) -> list[str]:
    """The statements of the page that make the table of changes, and the table."""
    page = (files("sqlext") / "docs" / "changes.md").read_text()
    block: str = next(each for each in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if f"TABLE {table}_changes" in each)
    return block.replace("broker:9092", broker.servers).strip().removesuffix(";").split(";\n")


def debezium(op: str, lsn: int, before: dict[str, object] | None, after: dict[str, object] | None) -> tuple[str, bytes]:
    """A change event as Debezium's connector for PostgreSQL writes it, with its key."""
    source = {
        "version": "3.0.0.Final",
        "connector": "postgresql",
        "db": "shop",
        "schema": "public",
        "table": "customers",
        "lsn": lsn,
    }
    key = json.dumps({"id": (after or before or {}).get("id")})
    return key, json.dumps({"before": before, "after": after, "source": source, "op": op, "ts_ms": 1732600000000 + lsn}).encode()


def maxwell(kind: str, position: int, xoffset: int | None, data: dict[str, object], table: str = "orders") -> tuple[str, bytes]:
    """A row as Maxwell writes it; the last one of a transaction is marked as its end, and has no offset in it."""
    row: dict[str, object] = {"database": "shop", "table": table, "type": kind, "ts": 1732600000, "xid": position}
    end: dict[str, object] = {"commit": True} if xoffset is None else {"xoffset": xoffset}
    key = json.dumps({"database": "shop", "table": table, "pk.id": data["id"]})
    return key, json.dumps({**row, **end, "position": f"binlog.000007:{position}", "data": data}).encode()


def test_debezium(sql: Workshop, broker: Broker) -> None:
    topic = "shop.public.customers"
    broker.create(topic)
    ann, bo = {"id": 1, "name": "Ann"}, {"id": 2, "name": "Bo"}
    broker.send(
        topic, [debezium("r", 10, None, ann), debezium("c", 11, None, bo), debezium("u", 12, None, {"id": 1, "name": "Anna"})]
    )
    for statement in statements("customer", broker):
        sql(statement)
    sql("WAIT FLOW customers")
    assert sorted(map(tuple, sql("SELECT * FROM customers"))) == [(1, "Anna"), (2, "Bo")]
    broker.send(topic, [debezium("d", 13, bo, None), (json.dumps({"id": 2}), None)])  # type: ignore[list-item]  # no value
    broker.send(topic, [debezium("u", 12, ann, {"id": 1, "name": "Anna"})])  # once more
    sql("WAIT FLOW customers")
    assert sorted(map(tuple, sql("SELECT * FROM customers"))) == [(1, "Anna")]
    broker.send(topic, [debezium("t", 14, None, None), debezium("c", 15, None, {"id": 3, "name": "Cy"})])
    sql("WAIT FLOW customers")
    assert sorted(map(tuple, sql("SELECT * FROM customers"))) == [(3, "Cy")]


def test_maxwell(sql: Workshop, broker: Broker) -> None:
    broker.create("maxwell")
    lamp, sofa = {"id": 1, "item": "lamp", "amount": 1}, {"id": 2, "item": "sofa", "amount": 5}
    broker.send("maxwell", [maxwell("insert", 999, 0, lamp), maxwell("insert", 999, None, sofa)])
    broker.send("maxwell", [maxwell("insert", 1000, None, {"id": 1}, table="people")])
    for statement in statements("order", broker):
        sql(statement)
    sql("WAIT FLOW orders")
    assert sorted(map(tuple, sql("SELECT * FROM orders"))) == [(1, "lamp", 1), (2, "sofa", 5)]
    # of one transaction, the second change of a row counts, and so does a position that is greater as a number only
    twice = [maxwell("update", 1001, 0, {**lamp, "amount": 2}), maxwell("update", 1001, None, {**lamp, "amount": 3})]
    broker.send("maxwell", [*reversed(twice), maxwell("delete", 1002, None, sofa)])
    sql("WAIT FLOW orders")
    assert sorted(map(tuple, sql("SELECT * FROM orders"))) == [(1, "lamp", 3)]
