"""The grammar of aggregate functions; only calls whose result does not depend on the order of rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.differential.scalars import fill
from tests.differential.tree import Expression

# The kind of the value, and templates over rows; {id} is a column that tells rows apart, {any} an expression of a plain kind.
AGGREGATES: Mapping[str, tuple[str, ...]] = {
    "bigint": (
        "count(*)",
        "count(1)",
        "count({any})",
        "count({int}, {string})",
        "count(DISTINCT {any})",
        "count(DISTINCT {string})",
        "count(DISTINCT {int}, {string})",
        "count(DISTINCT {double})",
        "count_if({boolean})",
        "count_if(DISTINCT {boolean})",
        "sum({int})",
        "sum({bigint})",
        "sum(DISTINCT {int})",
        "try_sum({int})",
        "approx_count_distinct({any})",
        "max({bigint})",
        "min({bigint})",
        "COUNT ( DISTINCT {any} )",
        "Count(*)",
        "max(id)",
        "regr_count({int}, {double})",
        "bit_xor({bigint})",
        "hll_sketch_estimate(hll_sketch_agg({int}))",
    ),
    "int": (
        "max({int})",
        "min({int})",
        "max(DISTINCT {int})",
        "bit_and({int})",
        "bit_or({int})",
        "bit_xor({int})",
        "mode({int}, true)",
        "percentile_approx({int}, 0.5)",
        "approx_percentile({int}, 0.25, 100)",
        "mode() WITHIN GROUP (ORDER BY {int})",
        "bit_xor(DISTINCT {int})",
        "any_value(7)",
        "first(1)",
    ),
    "decimal": (
        "sum({decimal})",
        "avg({decimal})",
        "max({decimal})",
        "min({decimal})",
        "sum(DISTINCT {decimal})",
        "try_sum({decimal})",
        "try_avg({decimal})",
        "avg(DISTINCT {decimal})",
    ),
    "double": (
        "sum({double})",
        "avg({int})",
        "avg({double})",
        "max({double})",
        "min({double})",
        "avg(DISTINCT {int})",
        "mean({int})",
        "median({int})",
        "percentile({int}, 0.3)",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY {int})",
        "try_avg({int})",
        "sum(DISTINCT {double})",
        "percentile_disc(0.5) WITHIN GROUP (ORDER BY {double})",
        "sum({float})",
        "median({double})",
    ),
    "float": ("max({float})", "min({float})"),
    "string": (
        "max({string})",
        "min({string})",
        "mode({string}, true)",
        "listagg({string}, ',') WITHIN GROUP (ORDER BY {same})",
        "listagg(DISTINCT {string}, '-') WITHIN GROUP (ORDER BY {same})",
        "listagg({string}) WITHIN GROUP (ORDER BY {same} DESC)",
        "string_agg({string}, ', ') WITHIN GROUP (ORDER BY {same})",
        "any_value('c')",
        "array_join(sort_array(collect_list({string})), '|')",
        "array_join(sort_array(collect_set({string})), '|')",
        "hex(count_min_sketch({int}, 0.5D, 0.5D, 1))",
        "hex(max({binary}))",
        "to_json(max(struct({int}, {string})))",
        "max(CAST({string} AS VARCHAR(3)))",
    ),
    "boolean": (
        "bool_and({boolean})",
        "bool_or({boolean})",
        "every({boolean})",
        "some({boolean})",
        "any({boolean})",
        "max({boolean})",
        "min({boolean})",
    ),
    "date": ("max({date})", "min({date})", "max(DISTINCT {date})", "mode({date}, true)"),
    "timestamp": ("max({timestamp})", "min({timestamp})", "max(TS)", "max(payload.ts)", "max(PAYLOAD.Ts)"),
    "strings": (
        "sort_array(collect_set({string}))",
        "array_sort(collect_list({string}))",
        "max({strings})",
        "min({strings})",
        "sort_array(collect_list(DISTINCT {string}))",
        "sort_array(array_agg({string}))",
    ),
    "ints": (
        "sort_array(collect_list({int}))",
        "sort_array(collect_set({int}), false)",
        "max({ints})",
        "percentile_approx({int}, array(0.1, 0.9))",
    ),
    "struct": ("max(struct({int}, {string}))", "min(named_struct('k', {string}, 'v', {int}))"),
    "map": (
        "map('n', CAST(count({any}) AS INT), 'N', max({int}))",
        "map_from_entries(sort_array(collect_set(struct({notnull}, 1))))",
    ),
    "binary": ("max({binary})", "min({binary})"),
}
ORDERED: Mapping[str, tuple[tuple[str, str], ...]] = {
    kind: (
        (f"min_by({{{kind}}}, {{id}})", ""),
        (f"max_by({{{kind}}}, {{id}})", ""),
        (f"max_by({{{kind}}}, -{{id}})", ""),
        (f"max_by({{{kind}}}, struct({{int}}, {{id}}))", ""),
        (f"first_value({{{kind}}} ORDER BY {{id}})", f"min_by({{{kind}}}, {{id}})"),
        (f"last_value({{{kind}}} ORDER BY {{id}})", f"max_by({{{kind}}}, {{id}})"),
        (f"last({{{kind}}} ORDER BY {{id}} DESC)", f"min_by({{{kind}}}, {{id}})"),
    )
    for kind in ("int", "string", "double", "date", "timestamp", "decimal", "boolean", "strings", "json", "struct", "map", "day")
}
"""Of rows in the order of a unique column: the template, and that of batch where it is sqlext's own."""
OWN: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bigint": (("sum0({int})", "coalesce(sum({int}), 0L)"),),
    "strings": (
        ("sort_array(collect({string}))", "sort_array(collect_list({string}))"),
        ("sort_array(collect(DISTINCT {string}))", "sort_array(collect_set({string}))"),
    ),
}
"""sqlext's own functions, and what they are in batch."""
APPROXIMATE = (
    "stddev({int})",
    "std({int})",
    "stddev_pop({int})",
    "stddev_samp({double})",
    "variance({int})",
    "var_pop({decimal})",
    "var_samp({int})",
    "covar_pop({int}, {id})",
    "covar_samp({int}, {id})",
    "corr({id}, {id} * {id})",
    "regr_slope({int}, {id})",
    "skewness({id})",
    "kurtosis({id})",
    "var_pop(DISTINCT {int})",
    "regr_avgx({int}, {double})",
    "stddev(DISTINCT {int})",
    "avg({int} / 3)",
    "sum(ln(abs({int}) + 1))",
    "regr_r2({id}, {id})",
)
UNORDERED = (
    ("collect_list({any})", ""),
    ("collect_set({int})", ""),
    ("array_agg({string})", ""),
    ("collect_list({struct})", ""),
    ("collect({string})", "collect_list({string})"),
    ("collect(DISTINCT {string})", "collect_set({string})"),
    ("collect_set({string})", ""),
)
UNIQUE_ID = Expression("id", "bigint", names=("id", "ID", "Id"))
"""What tells rows apart, so that their order by it is one; another column in its place would not."""
_NO_FILTER = (" WITHIN ", "array_join(", "to_json(", "hex(", "map", "sort_array(", "array_sort(", "hll_")


def aggregate(random_: random.Random, kind: str, has_unique_id: bool, child: Callable[[str], Expression]) -> Expression | None:
    """A call of an aggregate function whose value has this kind; None when there is none.

    Args:
        child: makes an argument of a kind.
    """
    pool = [(each, "") for each in AGGREGATES.get(kind, ())] + list(OWN.get(kind, ()))
    rewritten = [pair for pair in pool if pair[1] or "DISTINCT" in pair[0]]
    if rewritten and random_.random() < 0.3:  # sqlext's rules change them
        pool = rewritten
    ordered = ORDERED.get(kind, ()) if has_unique_id else ()
    if ordered and (not pool or random_.random() < 0.25):
        pool = list(ordered)
    return _call(random_, *random_.choice(pool), kind, child) if pool else None


def at_the_top(random_: random.Random, has_unique_id: bool, child: Callable[[str], Expression]) -> Expression:
    """A call that can only stand alone: its value is approximate, or an array in no order."""
    if random_.random() < 0.6 and has_unique_id:
        return replace(_call(random_, random_.choice(APPROXIMATE), "", "double", child), is_approximate=True)
    return replace(_call(random_, *random_.choice(UNORDERED), "strings", child), is_unordered=True)


def _call(random_: random.Random, template: str, batch: str, kind: str, child: Callable[[str], Expression]) -> Expression:
    same: list[Expression] = []

    def argument(inner: str) -> Expression:
        if inner == "same":  # what WITHIN GROUP orders by is the argument itself
            return same[0]
        if inner == "id":
            return UNIQUE_ID
        if inner == "notnull":
            return Expression("coalesce({0}, 'none')", "string", (child("string"),))
        made = child(random_.choice(("int", "string", "double", "date", "decimal", "boolean")) if inner == "any" else inner)
        same.append(made)
        return made

    call = fill(random_, template, kind, argument)
    if batch:
        numbered = fill(random_, batch, kind, lambda inner: call)
        call = replace(call, batch=numbered.template)
    call = replace(call, is_aggregate=True)
    if random_.random() < 0.2 and not any(each in template for each in _NO_FILTER) and "coalesce" not in batch:
        at = len(call.children)
        call = replace(
            call,
            template=f"{call.template} FILTER (WHERE {{{at}}})",
            batch=f"{call.batch} FILTER (WHERE {{{at}}})" if call.batch else "",
            children=(*call.children, child("boolean")),
        )
    return call
