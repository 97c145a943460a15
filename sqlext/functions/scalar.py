"""What sqlext knows of functions: which names aggregate, and which functions were registered from Python."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlext.errors import NameTakenError, SchemaError
from sqlext.functions.registry import NamedFunctions

# Spark 4.2's functions of the group `agg_funcs`; a test holds this list against Spark's own registry.
AGGREGATES = frozenset(
    """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or
    collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value
    grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double
    kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value
    listagg max max_by mean measure median min min_by mode percentile percentile_approx percentile_cont
    percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
    skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg
    theta_union_agg try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp
    variance
    """.split()
) | {"sum0", "collect"}  # FLIP-365's: sum, but 0 of nothing; the multiset of a group's values

AGGREGATES_OF_SETS = frozenset(
    "avg bit_xor kurtosis mean skewness std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance".split()
)
"""Those that Spark can run over the members of a set (`rules/aggregate_distinct_to_set.py`): of one number each."""

AGGREGATE_SET = "__sqlext_aggregate_set"
"""`__sqlext_aggregate_set('sum', array)`: one of them, over an array; `spark/set_aggregates.py` makes its expression."""


@dataclass(frozen=True)
class PythonFunction:
    """A SQL function written in Python.

    Attributes:
        name: as SQL calls it; case does not matter.
        function: takes the arguments of one row; an aggregate takes the list of a group's values, without nulls.
        returns: its type, as Spark's DDL writes it.
        is_aggregate: whether it makes one value of many rows.
        is_output_idempotent: whether the last value of a group may stand for all before it (FLIP-365).
    """

    name: str
    function: Callable[..., Any]
    returns: str
    is_aggregate: bool = False
    is_output_idempotent: bool = True

    @property
    def over_list_name(self) -> str:
        """The scalar function that takes an aggregate's values as an array; streams use it (see `rules/`)."""
        return f"__sqlext_{self.name}_of_list"


@dataclass(frozen=True)
class Reduction:
    """FLIP-365's reduce: an associative function of two values, over all values of a group; null of none.

    Attributes:
        combine: makes one value of two; of the same type as they are.

    Raises:
        SchemaError: it cannot be called with two arguments, or can be with fewer.
    """

    combine: Callable[[Any, Any], Any]

    def __post_init__(self) -> None:
        try:
            signature = inspect.signature(self.combine)
        except ValueError:  # some functions of C do not say what they take
            return
        parameters = signature.parameters.values()
        places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if len(places) != 2 or needed != places:
            name = getattr(self.combine, "__name__", repr(self.combine))
            raise SchemaError(f"A reduce function takes two values and makes one of them; {name}{signature} does not.")

    def __call__(self, values: list[Any]) -> Any:
        return functools.reduce(self.combine, values) if values else None


class SqlFunctions(NamedFunctions[PythonFunction]):
    """Those that SQL calls as functions of its own."""

    def __init__(self) -> None:
        super().__init__("function")

    def add(self, function: PythonFunction) -> None:
        """Add a function; the same one may be added again.

        Raises:
            SchemaError: the name is no SQL identifier.
            NameTakenError: Spark has an aggregate of that name, or another function is registered under it.
        """
        name = function.name.lower()
        if not name.isidentifier():
            raise SchemaError(f"`{function.name}` cannot name a SQL function: letters, digits and _ only.")
        if name in AGGREGATES:
            raise NameTakenError(f"There is a function `{function.name}` already. Register yours under another name.")
        super().add(function)


FUNCTIONS = SqlFunctions()
