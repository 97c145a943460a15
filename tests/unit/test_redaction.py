"""What is taken for a secret in statements, settings and messages."""

from __future__ import annotations

import logging
import sys
import time

import pytest

from sqlext.logs import JsonFormatter
from sqlext.redaction import REDACTED, RedactedFormatter, Redaction

SHOW = Redaction()


@pytest.mark.parametrize(
    "text",
    [
        "read_kafka(subscribe => 't', `kafka.ssl.truststore.password` => 'k3y')",
        "STREAM read_files('s3a://b/x', format => 'json', `fs.s3a.secret.key` => 'k3y')",
        "read_files('s3a://AKIA:k3y@b/x', format => 'json')",
        """read_kafka(`kafka.sasl.jaas.config` => 'PlainLoginModule required username="ann" password="k3y";')""",
        """STREAM t WITH ('config' = 'PlainLoginModule required username="ann" password="k3y k3y";')""",
        r"""STREAM t WITH ("config" = "required password=\"k3y k3y\";")""",
        "USING jdbc OPTIONS (url 'jdbc:postgresql://db/shop?user=ann&password=k3y', dbtable 'orders')",
        "OPTIONS (address = 'jdbc:mysql://ann:k3y@db/shop')",
        "OPTIONS (address = 'jdbc:mysql://ann:k/3@y@db/shop k3y')".replace(" k3y", ""),
        "LOCATION 's3a://AKIA:k3y@bucket/t'",
        "SELECT 1 -- it's a `test`\nFROM STREAM t WITH ('password' /* of ann's */ = 'k3y')",
        "SELECT 1 FROM t -- 'password' = 'k3y'",
        "LOCATION 'wasbs://c@shop.blob.core.windows.net/t?sv=2024&sig=k3y&se=2025'",
        "TBLPROPERTIES ('fs.azure.account.key.shop' = 'k3y')",
        "SET `spark.hadoop.fs.s3a.secret.key` = 'k3y'",
        "SET spark.hadoop.fs.s3a.secret.key=k3y",
        "-- it's\nset spark.my.password = a k3y; SELECT 1",
        "OPTIONS (address = 'jdbc:oracle:thin:scott/k3y@db:1521:shop')",
        "STREAM t WITH ('es.net.http.auth.pass'='k3y')",
        "STREAM t WITH ('access_key' = 'k3y')",
        "STREAM t WITH ('access-key' = 'k3y')",
        "STREAM t WITH (dbPass => 'k3y')",
        "SELECT from_json(j, 's', map('password','k3y')) FROM t",
        "SELECT map('a', 'b', 'password', concat('k', '3y', 'k3y')) FROM t",
        "STREAM t WITH ('password' = 'a' 'k3y')",
        "STREAM t WITH ('password' = 'a' /* and */ 'k3y')",
        "STREAM t WITH ('pass' 'word' = 'k3y')",
        "STREAM t WITH ('address' = 'jdbc:mysql://ann:k3' 'y@db/k3y@db')",
        "SELECT 'password=' || 'k3y'",
        "STREAM t WITH ('password' = $$k3y$$)",
        "STREAM t WITH ('password' = $a$k3'y$$k3y$a$)",
        "STREAM t WITH ('password' = U&'k3y')",
        "STREAM t WITH ('pattern' = r'\\', 'password' = 'k3y')",
        "EXECUTE IMMEDIATE 'SELECT * FROM STREAM t WITH (''password'' = ''k3y'')'",
        "EXECUTE IMMEDIATE 'SELECT map(''password'', ''k3y'')'",
        "STREAM t WITH ('at' = 'https://k3y@host/x')",
        "STREAM t WITH ('at' = 'https://k3y:@host/x')",
        "STREAM t WITH ('header' = 'Bearer k3y')",
        "STREAM t WITH ('header' = 'Authorization: Basic k3y')",
        "SELECT 1 /* a /* b */ it's */ FROM STREAM t WITH ('password' = 'k3y')",
        "CREATE STREAMING TABLE t TBLPROPERTIES (x.token = k3y) AS SELECT 1",
        "ALTER FLOW f SET (x = 1, x.token=k3y, y = 2)",
        "STREAM t WITH (password k3y)",
        "STREAM t WITH (password = a k3y = k3y$k3y, b = c)",
        "USING jdbc OPTIONS (url = k3y, b c)",
        "SELECT * FROM parquet.`abfss://c@a.dfs.core.windows.net/x?sig=k3y&v=1` AS x",
        "SELECT * FROM parquet.`abfss://c@a.dfs.core.windows.net/x?sig=k3y",
        "STREAM t WITH ('config' = 'jdbc:sqlserver://db;user=ann;password={a;k3y};x=y')",
        "STREAM t WITH ('config' = 'password={a}}k3y}')",
        "SELECT 1 FROM t -- password: k3y",
        "SELECT 1 /* the token : k3y*/ FROM t",
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
        "SET spark.sql.session.timeZone = UTC",
        "SELECT token = b.token AND name = 'x', coalesce(token, 'y') FROM t WHERE mail = 'ann@example.com'",
        "STREAM t WITH (format = json, `a.b` c) WHERE a.token = b.token AND token IN (SELECT token FROM u) -- at: 3, for: token",
        "WITH c AS (SELECT token t, password = p FROM u) SELECT * FROM parquet.`s3a://b/x` SET (a = b)",
        "SELECT map('a', 'b'), 'a' 'b', split(x, '://'), $$it's$$ FROM t GROUP BY token HAVING count(*) = 5",
    ],
)
def test_all_else_stays(text: str) -> None:
    assert SHOW.sql(text) == text


def test_only_the_value_of_a_bare_option_is_hidden() -> None:
    shown = SHOW.sql(
        "CREATE TABLE t TBLPROPERTIES (a.token = on k3y-k3y:k3y, b = c) AS SELECT a = b FROM parquet.`abfss://c@a/x?sig=k`"
    )
    assert shown == (
        f"CREATE TABLE t TBLPROPERTIES (a.token = '{REDACTED}' , b = c) AS SELECT a = b FROM parquet.`abfss://c@a/x?sig={REDACTED}`"
    )


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
        ("Spark's state WITH ('password' = 'k3y')", f"Spark's state WITH ('password' = '{REDACTED}')"),
        ("no answer (Authorization: Bearer k3y)", f"no answer (Authorization: {REDACTED}"),
        ("https://k3y@host refused", f"https://{REDACTED}@host refused"),
        ("password='', secret=''k3y''", f"password=''{REDACTED}"),
    ],
)
def test_messages(text: str, shown: str) -> None:
    assert SHOW.message(text) == shown


@pytest.mark.parametrize(
    "piece",
    [
        "'",
        "`",
        '"',
        "\\'",
        "a'",
        "://a:",
        "'a' ",
        "password=",
        "x = ",
        "a",
        "$",
        "$a$",
        "password=''",
        "password,'",
        "password={",
        "password={}}a",
        "-- password: ",
        "with (password ",
        "bearer ",
        "basic a",
        "authorization:",
        "|| 'a' ",
        "== SQL",
        "== SQL '",
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    """As one that was written to exhaust the host."""
    text, started = piece * 30_001, time.process_time()
    SHOW.sql(text)
    SHOW.message(text)
    assert time.process_time() - started < 10


def test_what_is_logged_with_its_traceback() -> None:
    try:
        raise ValueError("jdbc:postgresql://ann:k3y@db/shop")
    except ValueError:
        record = logging.LogRecord("sqlext", logging.ERROR, "", 0, "option %s", ("password=k3y",), sys.exc_info())
    shown = RedactedFormatter("%(message)s").format(record)
    assert "k3y" not in shown
    assert "Traceback" in shown


REFUSED = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'BAD': extra input 'BAD'. SQLSTATE: 42601 (line 1, pos 43)

== SQL ==
CREATE TABLE x USING jdbc OPTIONS (user 'ann', password 'k3y') BAD
---------------------------------------------------------------^^^
"""
"""What Spark says of a statement that it cannot parse."""


def test_the_statement_in_spark_s_message_about_it() -> None:
    assert SHOW.message(REFUSED) == REFUSED.replace("k3y", REDACTED)
    context = "The value cannot be cast.\n== SQL (line 1, position 8) ==\nCAST('password=k3y' AS INT)\n^^^^^^\n"
    assert SHOW.message(context) == context.replace("k3y", REDACTED)
    assert SHOW.message(SHOW.message(REFUSED)) == SHOW.message(REFUSED)


def test_what_is_logged_of_refused_statements() -> None:
    """Of two exceptions, with prose of their own."""
    texts = [
        f"it can't be parsed, password=k3y {REFUSED}",
        f"Spark's answer at jdbc:postgresql://ann:k3y@db, token=k3y {REFUSED}",
    ]
    try:
        try:
            raise ValueError(texts[0])
        except ValueError as first:
            raise TypeError(texts[1]) from first
    except TypeError:
        record = logging.LogRecord("sqlext", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    for formatter in (RedactedFormatter(), JsonFormatter()):
        shown = formatter.format(record)
        assert "k3y" not in shown
        assert shown.count(f"CREATE TABLE x USING jdbc OPTIONS (user 'ann', password '{REDACTED}') BAD") == 2
        assert "The above exception was the direct cause of the following exception" in shown
