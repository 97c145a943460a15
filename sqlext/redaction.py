r"""Secrets in what is shown: statements, settings, options and messages, with each secret's place taken by `REDACTED`.

A secret is known by the name in front of it, by the patterns of Spark's own redaction, or by its form: the password in a URL, or
`password=..` inside an option's value. Text is looked at, not meaning, so what is no secret may be hidden now and then.

>>> show = Redaction()
>>> show.sql("SELECT * FROM STREAM read_kafka(subscribe => 't', `kafka.ssl.key.password` => 'p4ss')")
"SELECT * FROM STREAM read_kafka(subscribe => 't', `kafka.ssl.key.password` => '*********(redacted)')"
>>> show.message("jdbc:postgresql://ann:p4ss@db/shop does not answer")
'jdbc:postgresql://ann:*********(redacted)@db/shop does not answer'
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

REDACTED = "*********(redacted)"
"""What stands in a secret's place, as in Spark's own output."""
SECRET_NAMES = "(?i)secret|password|token|access[.]?key"  # noqa: S105  # a pattern
"""The default of spark.redaction.regex."""
ADDRESS_NAMES = "(?i)url"
"""The default of spark.sql.redaction.options.regex."""

_MORE_NAMES = re.compile(  # what those patterns miss, of Hadoop's file systems, Kafka and JDBC
    r"(?i)passw|passphrase|\bpwd\b|credential|jaas|(account|api|private|shared|storage|sas|signing|encryption|keystore)[-_.]?key\b"
    r"|\bsas\b|\bsig\b"
)
_LITERAL = r"""(?:[rR]?'(?:[^'\\]|\\.|'')*'|[rR]?"(?:[^"\\]|\\.|"")*")"""
_NAMED = re.compile(  # an option: its name, what stands between, and its value
    rf"(?P<name>`(?:[^`]|``)+`|{_LITERAL}|[\w.]+(?:-[\w.]+)*)(?P<between>\s*(?:=>|==?)\s*|\s+)(?P<value>{_LITERAL})", re.DOTALL
)
_ANY_LITERAL = re.compile(_LITERAL, re.DOTALL)
_USER_INFO = re.compile(r"""(://[^\s:@/?#'"]*:)[^\s'"]+(@)""")  # //user:password@host
_ORACLE = re.compile(r"""(?i)(jdbc:oracle:\w+:[^\s/@'"]*/)[^\s@'"]+(@)""")  # user/password@host
_BEFORE = re.compile(r"""([\w.\-]+)\\?["']?\s*(?:=[=>]?\s*|:\s*(?=\\?["']))""")  # a name inside a value, up to what it has
_VALUE = re.compile(  # between quotes that are escaped themselves, between quotes, or without
    r"""(?P<edge>\\["'])(?:(?!(?P=edge)).)*|(?P<quote>["'])(?:\\.|(?!(?P=quote)).)*|[^\s;&,'"\\]+""", re.DOTALL
)


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern of Java's; one that Python cannot read finds a secret everywhere."""
    try:
        return re.compile(text)
    except re.error:
        return re.compile("")


@dataclass(frozen=True)
class Redaction:
    """What is taken for a secret.

    Attributes:
        names: spark.redaction.regex.
        addresses: spark.sql.redaction.options.regex, of options of sources and tables only.
    """

    names: str = SECRET_NAMES
    addresses: str = ADDRESS_NAMES

    def is_secret(self, key: str, value: str) -> bool:
        """Whether a setting's value must not be written down."""
        return self._names_secret(key) or self.message(value) != value

    def setting(self, key: str, value: str) -> str:
        """A setting's or an option's value, as it is shown."""
        return REDACTED if self._names_secret(key) else self.message(value)

    def message(self, text: str) -> str:
        """A text that is no SQL, such as an error's message."""
        shown = _ORACLE.sub(rf"\1{REDACTED}\2", _USER_INFO.sub(rf"\1{REDACTED}\2", text))
        return self._pairs(shown)

    def sql(self, text: str) -> str:
        """A statement or query. It still can be parsed: only what stands in string literals is replaced."""
        return _ANY_LITERAL.sub(lambda found: self._literal(found[0], self.message), _NAMED.sub(self._option, text))

    def _names_secret(self, name: str) -> bool:
        return bool(_pattern(self.names).search(name) or _MORE_NAMES.search(name))

    def _pairs(self, text: str) -> str:
        """Replace what secrets' names have, as in `user="ann" password="p4ss"`, `?user=ann&password=p4ss`."""
        shown, at = "", 0
        while (found := _BEFORE.search(text, at)) is not None:
            shown, at = shown + text[at : found.end()], found.end()
            value = _VALUE.match(text, at) if self._names_secret(found[1]) else None
            edge = (value and (value["edge"] or value["quote"])) or ""
            if value is not None and not text.startswith(REDACTED, at + len(edge)):
                shown, at = shown + edge + REDACTED, value.end()
        return shown + text[at:]

    def _option(self, found: re.Match[str]) -> str:
        name = found["name"]
        is_option = "=>" in found["between"] or name[0] in "'\"" or not found["between"].strip()
        if self._names_secret(name) or (is_option and _pattern(self.addresses).search(name)):
            return f"{name}{found['between']}{self._literal(found['value'], lambda _: REDACTED)}"
        return found[0]

    def _literal(self, literal: str, redact: Callable[[str], str]) -> str:
        start = literal.index(literal[-1]) + 1
        return literal[:start] + redact(literal[start:-1]) + literal[-1]


class RedactedFormatter(logging.Formatter):
    """Formats what is logged, tracebacks too, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return Redaction().message(super().format(record))
