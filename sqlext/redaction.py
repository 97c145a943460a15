r"""Redaction of secrets in statements, settings, options and messages: `REDACTED` replaces each secret.

A secret is recognized by the name in front of it, by the patterns of Spark's own redaction, or by its form: the password in a
URL, or `password=..` inside an option's value. Only the text is examined, not its meaning, so a value that is not secret may
occasionally be hidden.

>>> show = Redaction()
>>> show.sql("SELECT * FROM STREAM read_kafka(subscribe => 't', `kafka.ssl.key.password` => 'p4ss')")
"SELECT * FROM STREAM read_kafka(subscribe => 't', `kafka.ssl.key.password` => '*********(redacted)')"
>>> show.message("jdbc:postgresql://ann:p4ss@db/shop does not answer")
'jdbc:postgresql://ann:*********(redacted)@db/shop does not answer'
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

REDACTED = "*********(redacted)"
"""The replacement for a secret, as in Spark's own output."""
SECRET_NAMES = "(?i)secret|password|token|access[.]?key"  # noqa: S105  # a pattern
"""The default of spark.redaction.regex."""
ADDRESS_NAMES = "(?i)url"
"""The default of spark.sql.redaction.options.regex."""

_MORE_NAMES = re.compile(  # names that those patterns miss: of Hadoop's file systems, Kafka, Elasticsearch, HTTP and JDBC
    r"(?i)passw|passphrase|passcode|credential|jaas|authorization|signature|access[-_.]?key"
    r"|(account|api|private|shared|storage|sas|signing|encryption|keystore|master)[-_.]?key(?![a-z])"
    r"|(?<![a-z])(pass|pwd|sas|sig)(?![a-z])|(?-i:[a-z]Pass(?![a-z]))"
)
_TOKEN = re.compile(  # possessive quantifiers, so that no text is scanned twice
    r"""(?P<literal>[rR](?:'[^']*+(?:'|\Z)|"[^"]*+(?:"|\Z))|(?:[bBeEnNxX]|[uU]&)?(?:'(?:[^'\\]|\\.|'')*+(?:'|\Z)|"(?:[^"\\]|\\.|"")*+(?:"|\Z)))"""
    r"""|(?P<dollars>\$(?P<tag>\w*+)\$.*?(?:\$(?P=tag)\$|\Z))|(?P<name>`(?:[^`]|``)*+(?:`|\Z)|[\w.]++(?:-[\w.]++)*+)"""
    r"|(?P<comment>--[^\n]*+|/\*.*?(?:\*/|\Z))|(?P<space>\s++)|(?P<sign>=>|==?|,|:|\|\|)|(?P<other>.)",
    re.DOTALL,
)
_SET = re.compile(r"(?is)(?:\s|--[^\n]*+\n|/\*.*?\*/)*+set\s+([^=;]++)=\s*")
"""SET key = value: Spark takes the value literally, without quotes."""
_EDGES = re.compile(r"""(?:[rRbBeEnNxX]|[uU]&)?["']|\$\w*\$""")
_ENDS = frozenset("and or then else end when from where group order having limit union select on join as".split())
"""Words that end an expression, and so the value of an option."""
_USER_INFO = re.compile(r"""(://[^\s:@/?#'"]{0,999}:)[^\s'"]{1,1024}(@)""")  # //user:password@host
_USER = re.compile(  # //token@host; Azure's storages have a container there
    r"""(?i)((?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://)[^\s/?#@:'"]{1,1024}(:?@)"""
)
_ORACLE = re.compile(r"""(?i)(jdbc:oracle:\w+:[^\s/@'"]{0,999}/)[^\s@'"]{1,999}(@)""")  # user/password@host
_HEADER = re.compile(  # an HTTP header
    r"""(?i)\b(authorization\\*["']?\s{0,9}[:=]\s{0,9}\\*["']?)[^"'\\\r\n]++|\b(bearer\s{1,9})(?!\*\*)[^\s"',;)\\]++"""
    r"""|\b(basic\s{1,9})(?=[\w+/-]{0,99}?[0-9A-Z=])[\w+/-]{6,}+={0,2}"""
)
_BEFORE = re.compile(  # a name inside a value, up to the name's own value
    r"""(?<![\w.-])([\w.-]++)(?:(?:\\*["']){0,4}\s*(?:=[=>]?\s*|:\s*(?=\\*["'])|:(?=[^\s:/=]))"""
    r"""|(?:\\*["']){1,4}\s*,\s*(?=\\*["']))"""
)
_VALUE = re.compile(  # in quotes that are themselves escaped or doubled, in plain quotes, in braces, or without quotes
    r"""(?P<edge>\\+["']|'{2,}|"{2,})(?:(?!(?P=edge)).)*|(?P<quote>["'])(?:\\.|(?P=quote){2}|(?!(?P=quote)).)*"""
    r"""|\{(?:[^}]|\}\}(?![\s,;)\]}'"]|\Z)){0,999}+\}|[^\s;&,'"\\]+""",
    re.DOTALL,
)
_NOTE = re.compile(r"""(?<![\w.-])([\w.-]++)(\s*:\s+)(?:(?!\*/)[^\s'"])++""")
"""A name and a value in a comment."""
_LISTS = frozenset("dbproperties options serdeproperties set tblproperties with".split())
"""What stands before a list of options in brackets, whose values may be bare words."""
_EXCERPT = "== SQL"
"""What stands, with a place, before the statement in Spark's message about it."""
_AFTER_NOTHING = re.compile(r"[\s,;:)}\]&]")
"""A character that may follow an empty pair of quotes."""


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a Java pattern; one that Python cannot read becomes a pattern that matches everywhere."""
    try:
        return re.compile(text)
    except re.error:
        return re.compile("")


class SqlText(str):
    """A text that is SQL, or ends with SQL; all other texts are messages."""

    __slots__ = ()


@dataclass(frozen=True)
class Redaction:
    """The patterns by which secrets are recognized.

    Attributes:
        names: spark.redaction.regex.
        addresses: spark.sql.redaction.options.regex; it applies only to options of sources and tables.
    """

    names: str = SECRET_NAMES
    addresses: str = ADDRESS_NAMES

    def is_secret(self, key: str, value: str) -> bool:
        """Return whether a setting's value must not be written down."""
        return self.names_secret(key) or self.message(value) != value

    def setting(self, key: str, value: str) -> str:
        """Return the value of a setting or option as it may be shown."""
        return REDACTED if self.names_secret(key) else self.message(value)

    def text(self, text: str) -> str:
        """Redact a text: as SQL if it is a `SqlText`, else as a message."""
        return self.sql(text) if isinstance(text, SqlText) else self.message(text)

    def message(self, text: str) -> str:
        """Redact a text that is not SQL, such as an error message, but for Spark's excerpts of statements in it."""
        prose, *excerpts = text.split(_EXCERPT)
        return _EXCERPT.join((self._prose(prose), *(self._prose(self.sql(each)) for each in excerpts)))

    def _prose(self, text: str) -> str:
        shown = _HEADER.sub(lambda found: f"{found[1] or found[2] or found[3]}{REDACTED}", self._addresses(text))
        return self._pairs(shown, is_code=False)

    def sql(self, text: str) -> str:
        """Redact a statement or query. It can still be parsed: only the content of literals and comments is replaced.

        Literals are recognized as Spark's lexer does. Some settings of Spark change what it takes for a literal; secrets with a
        recognizable form are found even then, since the whole text is searched at the end.
        """
        if (found := _SET.match(text)) is not None and self.names_secret(found[1]):
            return f"{found[0]}'{REDACTED}'"
        statement = _Statement(self)
        for token in _TOKEN.finditer(text):
            statement.take(token)
        return self._pairs(self._addresses(statement.end()), is_code=True)

    def names_secret(self, name: str, is_option: bool = False) -> bool:
        """Return whether the value of a name is a secret.

        Args:
            is_option: whether the name is an option of a source or table.
        """
        is_secret = _pattern(self.names).search(name) or _MORE_NAMES.search(name)
        return bool(is_secret or (is_option and _pattern(self.addresses).search(name)))

    def note(self, text: str) -> str:
        """Redact a comment of a statement: there, `password: p4ss` is no prose."""

        def shown(found: re.Match[str]) -> str:
            return f"{found[1]}{found[2]}{REDACTED}" if self.names_secret(found[1]) else found[0]

        return _NOTE.sub(shown, self.message(text))

    def _addresses(self, text: str) -> str:
        for form in (_USER_INFO, _USER, _ORACLE):
            text = form.sub(rf"\1{REDACTED}\2", text)
        return text

    def _pairs(self, text: str, is_code: bool) -> str:
        """Replace the values of secret names, as in `user="ann" password="p4ss"`, `?user=ann&password=p4ss`.

        Args:
            is_code: replace only values in quotes; `a.password = b.hash` compares columns.
        """
        shown, at = list[str](), 0
        while (found := _BEFORE.search(text, at)) is not None:
            shown.append(text[at : found.end()])
            at = found.end()
            may_have = not is_code or text.startswith(("'", '"'), at)
            value = _VALUE.match(text, at) if may_have and self.names_secret(found[1]) else None
            if value is None or (is_code and not value["quote"]):
                continue
            edge = value["edge"] or value["quote"] or ""
            begin, end = at + len(edge), value.end()
            if value["edge"] and edge[0] != "\\" and (begin == len(text) or _AFTER_NOTHING.match(text, begin)):
                end = len(text)  # an empty pair of quotes, or doubled quotes around a value: the end is ambiguous
            if begin < len(text) and not text.startswith(REDACTED, begin):
                shown += [edge, REDACTED]
                at = end
        return "".join([*shown, text[at:]])


class _Statement:
    """A statement that is redacted token by token.

    The text behind the name of a secret is hidden up to the end of its expression: the next comma, bracket or word such as AND.
    """

    def __init__(self, show: Redaction) -> None:
        self._show = show
        self._shown: list[str] = []
        self._name = ""  # the last word, or the value of the last literal
        self._between = ""  # the signs and spaces after it
        self._run: list[tuple[int, str, str, str]] = []  # literals that form one string: index in _shown, edge, value, edge
        self._hides = False
        self._depth = 0  # of brackets, since hiding began
        self._in_list = 0  # how many brackets are open since that of a list of options
        self._has_word = False  # whether bare words are hidden already

    def take(self, token: re.Match[str]) -> None:
        """Read the next token."""
        kind, piece = token.lastgroup, token[0]
        if kind in ("literal", "dollars"):
            self._literal(piece)
        elif kind == "comment":
            self._shown.append(self._show.note(piece))
        elif kind == "space":
            self._shown.append(piece)
            self._between += piece[:1]
        elif kind == "sign":
            self._sign(piece)
        else:
            self._word(piece, is_name=kind == "name")

    def end(self) -> str:
        """Return the redacted statement."""
        self._end_run()
        return "".join(self._shown)

    def _literal(self, piece: str) -> None:
        found = _EDGES.match(piece)
        assert found is not None
        edge = found[0]
        close = edge if edge[0] == "$" else edge[-1]
        is_whole = len(piece) >= len(edge) + len(close) and piece.endswith(close)
        value, close = (piece[len(edge) : len(piece) - len(close)], close) if is_whole else (piece[len(edge) :], "")
        if not self._hides and self._name and self._between and not self._between.strip():  # OPTIONS (password 'p4ss')
            self._hide_if(self._show.names_secret(self._name, is_option=True))
        self._run.append((len(self._shown), edge, value, close))
        self._shown.append(f"{edge}{REDACTED if self._hides else self._show.message(value)}{close}")
        self._name, self._between = value, ""

    def _sign(self, piece: str) -> None:
        is_hidden = self._hides and self._has_word and piece != ","
        self._shown.append("" if is_hidden else piece)
        is_literal = bool(self._run)
        if is_literal and piece != "||":
            self._name = "".join(value for _, _, value, _ in self._run)
        if piece != "||":
            self._end_run()
        if piece == "," and self._hides and not self._depth:
            self._hides = self._has_word = False
        if not self._hides and self._name and not self._between.strip():
            is_pair = piece in (",", ":", "||")
            is_option = not is_pair and (is_literal or piece == "=>" or self._in_list > 0)
            self._hide_if((is_literal or not is_pair) and self._show.names_secret(self._name, is_option))
        self._between += piece

    def _word(self, piece: str, is_name: bool) -> None:
        self._end_run()
        if self._in_list and is_name and not self._hides and self._name and self._between and not self._between.strip():
            self._hide_if(self._show.names_secret(self._name, is_option=True))  # OPTIONS (password p4ss)
        if self._hides:
            self._brackets(piece)
        if piece in ("(", ")"):
            self._open_or_close(piece)
        self._shown.append(self._shown_word(piece))
        self._name, self._between = (piece if is_name else ""), ""

    def _shown_word(self, piece: str) -> str:
        """Return what is shown of a word or of a character that is no sign."""
        if self._hides and self._in_list and not self._depth and piece != ")":
            shown = "" if self._has_word else f"'{REDACTED}'"
            self._has_word = True
            return shown
        if piece.startswith("`") and "://" in piece:
            end = 1 if piece.endswith("`", 1) else 0
            return f"`{self._show.message(piece[1 : len(piece) - end])}{'`' * end}"  # parquet.`abfss://..`
        return f"'{REDACTED}'" if piece.isdigit() and self._hides and self._between else piece

    def _open_or_close(self, bracket: str) -> None:
        begins = self._name.lower() in _LISTS and not self._between.strip()
        if bracket == ")":
            self._in_list = max(self._in_list - 1, 0)
        elif self._in_list or begins:
            self._in_list += 1

    def _brackets(self, piece: str) -> None:
        self._depth += {"(": 1, ")": -1}.get(piece, 0)
        if self._depth < 0 or piece == ";" or (not self._depth and not self._in_list and piece.lower() in _ENDS):
            self._hides = False

    def _hide_if(self, is_secret: bool) -> None:
        if is_secret:
            self._hides, self._depth, self._has_word = True, 0, False

    def _end_run(self) -> None:
        """Redact adjacent literals, which Spark joins, as the one string that they form."""
        run, self._run = self._run, []
        if len(run) < 2:
            return
        whole = "".join(value for _, _, value, _ in run)
        if self._show.message(whole) != whole:
            hidden = run
        elif self._show.names_secret(whole):
            hidden = run[1:]
        else:
            return
        for at, edge, _, close in hidden:
            self._shown[at] = f"{edge}{REDACTED}{close}"


_of_application = Redaction()  # a process has one application


def use_patterns(names: str) -> None:
    """Set the application's own pattern for the errors and logs of this process."""
    global _of_application  # loggers and errors know no session
    _of_application = Redaction(names)


def of_application() -> Redaction:
    """Return the redaction of this process's application, for errors and logs, which may come from any session."""
    return _of_application


class RedactedFormatter(logging.Formatter):
    """A formatter that redacts secrets in log records, including tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's text, redacted."""
        return of_application().message(super().format(record))
