"""A Kafka broker for tests: one node, in KRaft mode, on loopback, from the packages in Maven's repositories."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sqlext.extension import jars
from tests.maven import fetched
from tests.support import eventually, free_port

VERSION = "4.1.1"
_START_SECONDS = 60.0


def broker_jars() -> Path:
    """A folder of the broker's JARs."""
    return fetched("org.apache.kafka", "kafka_2.13", VERSION)


class Broker:
    """A broker that runs. Its topics and files lie in one folder.

    Args:
        folder: for its files; what lies there is taken up again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{self.port}"
        settings = folder / "server.properties"
        settings.write_text(_SETTINGS.format(port=self.port, controller=controller, data=folder / "data"))
        self._java = [str(jars.check_java()), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]
        self._java.append(str(broker_jars() / "*"))
        log = (folder / "broker.log").open("ab")
        format_it = [*self._java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(settings)]
        subprocess.run([*format_it, "--ignore-formatted"], check=True, stdout=log, stderr=log, timeout=_START_SECONDS)
        self._process = subprocess.Popen([*self._java, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
        eventually(self._answers, _START_SECONDS, lambda: (folder / "broker.log").read_text()[-2000:])

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "broker.log").read_text()[-2000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=120)

    def create(self, topic: str, partitions: int = 2) -> None:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self.servers})  # gone, it would give up what it was asked for
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(timeout=_START_SECONDS)

    def send(self, topic: str, messages: Iterable[tuple[str, bytes]], age: float = 0.0) -> None:
        """Produce messages, keys and values; `age` is how many seconds ago they say to have been made."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
        at = int((time.time() - age) * 1000)
        for number, (key, value) in enumerate(messages):
            producer.produce(topic, value, key, timestamp=at)
            if number % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(_START_SECONDS) == 0


_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.hours=-1
log.cleaner.enable=false
"""
