"""Topics of Kafka from SQL, with a real broker: read to their end, streamed, and caught up with (FLIP-309)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException

from sqlext.execution.streaming.pace import Phase
from tests.integration.test_backlog import batches, is_live, phases
from tests.integration.workshop import DEADLINE, Workshop
from tests.kafka import Broker
from tests.support import eventually

PROPERTIES = (
    "'execution.flush.max-interval' = '10 minutes', 'backlog.lag-threshold' = '1 minute', "
    "'execution.checkpointing.interval-during-backlog' = '0'"
)
DECODED = "SELECT CAST(o.key AS STRING) AS k, from_json(CAST(o.value AS STRING), 'v INT').v AS v FROM {} AS o"
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total FROM (" + DECODED + ") GROUP BY k"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("kafka"))
    yield made
    made.stop()


def call(broker: Broker, topic: str, more: str = "") -> str:
    return f"read_kafka(bootstrapServers => '{broker.servers}', subscribe => '{topic}', startingOffsets => 'earliest'{more})"


def send(broker: Broker, topic: str, number: int, age: float = 0.0) -> None:
    broker.send(topic, [(f"k{at % 3}", json.dumps({"v": at}).encode()) for at in range(number)], age)


def test_a_topic_is_read_to_its_end(sql: Workshop, broker: Broker) -> None:
    broker.create("ended")
    send(broker, "ended", 9)
    expected = [("k0", 3, 9), ("k1", 3, 12), ("k2", 3, 15)]
    assert sql.batch(COUNTS.format(call(broker, "ended"))) == expected
    assert sql.batch(COUNTS.format("STREAM " + call(broker, "ended")) + " GLOBAL WINDOW END OF STREAM") == expected


def test_avro_is_decoded(sql: Workshop, broker: Broker) -> None:
    broker.create("avro", 1)
    broker.send("avro", [("a", b"\x06"), ("b", b"\x08")])  # Avro writes 3 and 4 as zigzag varints
    decoded = f"SELECT from_avro(value, '\"int\"', map()) AS v FROM {call(broker, 'avro')} ORDER BY v"
    assert sql.batch(decoded) == [(3,), (4,)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'h:9092'", "read_kafka takes named arguments only. Write read_kafka(bootstrapServers => 'host:9092', subscribe => 't"),
        ("bootstrapServers => 'h:1', subscrib => 't'", "read_kafka has no argument `subscrib`. Did you mean `subscribe`?"),
        ("bootstrapServers => 'h:1'", "read_kafka needs bootstrapServers and one of subscribe, subscribePattern, assign."),
        ("bootstrapServers => 'h:1', subscribe => uuid()", "read_kafka: `subscribe` is `uuid()`, which is not a constant."),
    ],
)
def test_a_mistake_in_the_arguments_is_told(sql: Workshop, arguments: str, said: str) -> None:
    with pytest.raises(PySparkException) as caught:
        sql(f"SELECT * FROM read_kafka({arguments})")
    assert said in str(caught.value)


def test_an_option_of_the_source_is_an_argument(sql: Workshop) -> None:
    with pytest.raises(PySparkException) as caught:
        sql("INSERT INTO t SELECT value FROM STREAM read_kafka(subscribe => 't') WITH ('maxOffsetsPerTrigger' = '1')")
    assert "Give it to read_kafka as an argument: maxOffsetsPerTrigger => .." in str(caught.value)


def test_live_backlog_and_live_again(sql: Workshop, broker: Broker) -> None:
    """At the user's limit, two messages a micro-batch; in backlog all at once; then at the user's limit again."""
    broker.create("orders")
    stream = "STREAM " + call(broker, "orders", ", maxOffsetsPerTrigger => '2'")
    sql(f"CREATE STREAMING TABLE t TBLPROPERTIES ({PROPERTIES}) AS {COUNTS.format(stream)}")
    flow = sql.flow("t")
    send(broker, "orders", 6)
    sql("WAIT FLOW t")
    taken = batches(sql)
    assert (phases(flow), taken >= 3) == ([], True)
    sql("STOP FLOW t")
    send(broker, "orders", 300, age=600)
    sql("START FLOW t")
    flow = sql.flow("t")
    eventually(lambda: is_live(flow), DEADLINE)
    assert (phases(flow), batches(sql)) == ([Phase.BACKLOG, Phase.LIVE], taken + 1)
    assert "300 offsets unread" in flow._backlog.status.switches[0].because
    expected = sql.batch(COUNTS.format(call(broker, "orders")))
    eventually(lambda: sql.batch("SELECT k, n, total FROM t") == expected, DEADLINE)
    assert sql.commits("t")[-1]["reason"] == "backlog end"
    send(broker, "orders", 4)
    sql("WAIT FLOW t")
    assert phases(flow) == [Phase.BACKLOG, Phase.LIVE]
    assert batches(sql) >= taken + 3
    assert sql.batch("SELECT k, n, total FROM t") == sql.batch(COUNTS.format(call(broker, "orders")))
