"""What is told before Spark is started: where a server may listen, and settings of Hive's."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sqlext.errors import SetupError
from sqlext.server.server import ConnectServer, ThriftServer, check_address, hive_settings
from sqlext.spark import java


def test_a_taken_port_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for server in (ThriftServer("127.0.0.1", port), ConnectServer("127.0.0.1", port)):
            with pytest.raises(SetupError, match=rf"cannot listen on 127\.0\.0\.1:{port}: another program uses that port\."):
                server.check()
    ThriftServer("127.0.0.1", port).check()


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.77", "that is not an address of this machine. Choose another with --host."),
        ("no such host", "there is no such host. Choose another with --host."),
    ],
)
def test_a_wrong_host_is_told(host: str, reason: str) -> None:
    with pytest.raises(SetupError) as error:
        check_address("Thrift", host, 10000)
    assert error.value.message.endswith(reason)


@pytest.mark.parametrize(
    ("conf", "environment", "expected"),
    [
        ({}, {}, "none"),
        ({"spark.connect.authenticate.token": "x"}, {}, "token"),
        ({}, {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "x"}, "token"),  # which Java inherits
    ],
)
def test_a_token_is_told_wherever_it_comes_from(
    conf: dict[str, str], environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SimpleNamespace(start=lambda _: None, localPort=lambda: 7)
    monkeypatch.setattr(java, "scala_object", lambda *_: service)
    monkeypatch.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    spark = SimpleNamespace(conf=conf, _jsparkSession=SimpleNamespace(sparkContext=lambda: None))
    assert ConnectServer("127.0.0.1", 7).start(cast(SparkSession, spark)).authentication == expected


def test_settings_of_hive_go_through_hadoop() -> None:
    given = {"hive.server2.authentication": "LDAP", "spark.driver.memory": "4g"}
    assert hive_settings(given) == {"spark.hadoop.hive.server2.authentication": "LDAP", "spark.driver.memory": "4g"}
