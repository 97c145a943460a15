"""What is taken for a secret in statements, settings and messages."""

from __future__ import annotations

import logging
import sys

import pytest

from sqlext.redaction import REDACTED, RedactedFormatter, Redaction

SHOW = Redaction()


@pytest.mark.parametrize(
    "text",
    [
        "read_kafka(subscribe => 't', `kafka.ssl.truststore.password` => 'k3y')",
        """read_kafka(`kafka.sasl.jaas.config` => 'PlainLoginModule required username="ann" password="k3y";')""",
        """STREAM t WITH ('config' = 'PlainLoginModule required username="ann" password="k3y k3y";')""",
        r"""STREAM t WITH ("config" = "required password=\"k3y k3y\";")""",
        "USING jdbc OPTIONS (url 'jdbc:postgresql://db/shop?user=ann&password=k3y', dbtable 'orders')",
        "OPTIONS (address = 'jdbc:mysql://ann:k3y@db/shop')",
        "OPTIONS (address = 'jdbc:mysql://ann:k/3@y@db/shop k3y')".replace(" k3y", ""),
        "LOCATION 's3a://AKIA:k3y@bucket/t'",
        "LOCATION 'wasbs://c@shop.blob.core.windows.net/t?sv=2024&sig=k3y&se=2025'",
        "TBLPROPERTIES ('fs.azure.account.key.shop' = 'k3y')",
        "SET `spark.hadoop.fs.s3a.secret.key` = 'k3y'",
        "OPTIONS (address = 'jdbc:oracle:thin:scott/k3y@db:1521:shop')",
    ],
)
def test_secrets_in_statements(text: str) -> None:
    shown = SHOW.sql(text)
    assert "k3y" not in shown
    assert "3@y" not in shown
    assert REDACTED in shown
    assert SHOW.sql(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "SELECT token, count(*) FROM STREAM s WHERE url = '/home' AND a.password = b.hash GROUP BY token",
        "SELECT 'it''s', r'\\d', \"a\", DATE '2024-01-01' FROM t -- it's",
        "read_kafka(subscribe => 'orders', `kafka.security.protocol` => 'SASL_SSL')",
        "LOCATION 'abfss://container@shop.dfs.core.windows.net/t'",
        "SELECT get_json_object(j, '$.a:b') FROM t WHERE x = 'http://host:8080/path'",
    ],
)
def test_all_else_stays(text: str) -> None:
    assert SHOW.sql(text) == text


def test_patterns_of_the_application() -> None:
    show = Redaction(names="(?i)pin", addresses="(?i)path")
    assert show.sql("STREAM t WITH ('pin' = '12', 'path' = '/x', 'other' = 'y')") == (
        f"STREAM t WITH ('pin' = '{REDACTED}', 'path' = '{REDACTED}', 'other' = 'y')"
    )
    assert show.setting("spark.pin", "12") == REDACTED


def test_a_pattern_that_only_java_reads_hides_every_option() -> None:
    assert Redaction(names="pin(?i)").sql("STREAM t WITH ('a' = 'b')") == f"STREAM t WITH ('a' = '{REDACTED}')"


@pytest.mark.parametrize(
    ("key", "value", "is_secret"),
    [
        ("spark.sql.shuffle.partitions", "2", False),
        ("fs.azure.account.key.shop", "x", True),
        ("spark.sql.streaming.checkpointLocation", "s3a://ann:k3y@bucket/x", True),
        ("spark.sql.streaming.checkpointLocation", "s3a://bucket/x", False),
    ],
)
def test_settings(key: str, value: str, is_secret: bool) -> None:
    assert SHOW.is_secret(key, value) == is_secret
    assert (SHOW.setting(key, value) != value) == is_secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jdbc:postgresql://ann:k3y@db:5432/shop refused", f"jdbc:postgresql://ann:{REDACTED}@db:5432/shop refused"),
        ('{"password": "k3y", "user": "ann"}', f'{{"password": "{REDACTED}", "user": "ann"}}'),
        ("STREAM t WITH ('password' => 'k3y')", f"STREAM t WITH ('password' => '{REDACTED}')"),
        ("Syntax error at 'token': extra input", "Syntax error at 'token': extra input"),
        ("The token expired at http://[::1]:80/x", "The token expired at http://[::1]:80/x"),
    ],
)
def test_messages(text: str, shown: str) -> None:
    assert SHOW.message(text) == shown


def test_what_is_logged_with_its_traceback() -> None:
    try:
        raise ValueError("jdbc:postgresql://ann:k3y@db/shop")
    except ValueError:
        record = logging.LogRecord("sqlext", logging.ERROR, "", 0, "option %s", ("password=k3y",), sys.exc_info())
    shown = RedactedFormatter("%(message)s").format(record)
    assert "k3y" not in shown
    assert "Traceback" in shown
