"""The sqlglot nodes of our clauses."""

from __future__ import annotations

from sqlglot import exp


class Stream(exp.Expression):
    """`STREAM t [WITH (key = value, ..)] [IDENTIFIED BY name] [WATERMARK expr DELAY OF interval] [AS alias]`.

    `t` may be a call, such as of `read_kafka`.

    Args: `this` the table; `options` a list of `StreamOption`; `identified` and `watermark` a `VerbatimText`; `alias` a
    TableAlias; `is_bounded` whether only its current content is read: Spark then reads it as a table; `is_call` whether Spark
    gets it as a call of the function's streaming twin.
    """

    arg_types = {  # noqa: RUF012  # sqlglot's own form
        "this": True,
        "options": False,
        "identified": False,
        "watermark": False,
        "alias": False,
        "is_bounded": False,
        "is_call": False,
    }

    @property
    def function(self) -> str:
        """The name of the function that is called; empty for a table."""
        return function_of(self.this)


class Hybrid(exp.Expression):
    """`hybrid(TABLE history, STREAM live [WITH (..)] [, on => column])` after STREAM: relations read one after the other.

    Args: `parts` a list of `HybridPart`; `on` the Identifier of a column.
    """

    arg_types = {"parts": True, "on": False}  # noqa: RUF012


class HybridPart(exp.Expression):
    """A relation of a hybrid source.

    Args: `this` the table; `options` a list of `StreamOption`; `is_stream` whether it is written with STREAM.
    """

    arg_types = {"this": True, "options": False, "is_stream": False}  # noqa: RUF012


class StreamOption(exp.Expression):
    """A `key = value` of a stream's WITH clause.

    Args: `this` the key; `value` the value's text; `source` both as written.
    """

    arg_types = {"this": True, "value": True, "source": True}  # noqa: RUF012


class HintCall(exp.Expression):
    """A hint.

    Args: `this` its name in upper case; `arguments` a list of texts without quotes; `source` the hint as written.
    """

    arg_types = {"this": True, "arguments": False, "source": True}  # noqa: RUF012


class VerbatimText(exp.Expression):
    """A text that is passed through unparsed."""

    arg_types = {"this": True}  # noqa: RUF012


class UnsignedRightShift(exp.Expression, exp.Binary):
    """`a >>> b`."""


class TableArgument(exp.Expression):
    """A table argument of a table function, `TABLE(query)`.

    Args: `this` the query or table; `clauses` a `VerbatimText` of PARTITION BY and ORDER BY.
    """

    arg_types = {"this": True, "clauses": False}  # noqa: RUF012


def function_of(table: exp.Expr) -> str:
    """Return the name of the function that a relation calls; an empty string for a table."""
    called = table.this if isinstance(table, exp.Table) else None
    return str(called.name) if isinstance(called, exp.Func) else ""
