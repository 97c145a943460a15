"""The functions that sqlext knows: the names of Spark's aggregates, and the functions registered from Python."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlext.errors import NameTakenError, SchemaError
from sqlext.functions.registry import NamedFunctions

# Spark 4.2's functions of the group `agg_funcs`; a test compares this list with Spark's own registry.
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
) | {"sum0", "collect"}  # FLIP-365's: a sum that is 0 for no values; the multiset of a group's values

AGGREGATES_OF_SETS = frozenset(
    "avg bit_xor kurtosis mean skewness std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance".split()
)
"""The aggregates of one number that Spark can run over the members of a set (`rules/aggregate_distinct_to_set.py`)."""

AGGREGATE_SET = "__sqlext_aggregate_set"
"""The name of the function that applies such an aggregate to an array, as in `__sqlext_aggregate_set('sum', array)`.

`spark/set_aggregates.py` makes its expression.
"""


@dataclass(frozen=True)
class PythonFunction:
    """A SQL function written in Python.

    Attributes:
        name: its name in SQL; case does not matter.
        function: the function of one row's arguments; for an aggregate, of the list of a group's values, without nulls.
        returns: the type of its result, as Spark's DDL.
        is_aggregate: whether it computes one value from many rows.
        is_output_idempotent: whether the last result of a group replaces all earlier ones (FLIP-365).
    """

    name: str
    function: Callable[..., Any]
    returns: str
    is_aggregate: bool = False
    is_output_idempotent: bool = True

    @property
    def over_list_name(self) -> str:
        """The name of the scalar function that takes an aggregate's values as an array; streams use it (see `rules/`)."""
        return f"__sqlext_{self.name}_of_list"


@dataclass(frozen=True)
class Reduction:
    """FLIP-365's reduce: an associative function of two values, applied to all values of a group; null for no values.

    Attributes:
        combine: the function that combines two values into one of the same type.

    Raises:
        SchemaError: the function cannot be called with two arguments, or can be called with fewer.
    """

    combine: Callable[[Any, Any], Any]

    def __post_init__(self) -> None:
        try:
            signature = inspect.signature(self.combine)
        except ValueError:  # some C functions have no signature
            return
        parameters = signature.parameters.values()
        places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if len(places) != 2 or needed != places:
            name = getattr(self.combine, "__name__", repr(self.combine))
            raise SchemaError(f"A reduce function takes exactly two values and returns one; {name}{signature} does not.")

    def __call__(self, values: list[Any]) -> Any:
        """Combine all values; return None if there are none."""
        return functools.reduce(self.combine, values) if values else None


class SqlFunctions(NamedFunctions[PythonFunction]):
    """The Python functions that SQL calls like its own functions."""

    def __init__(self) -> None:
        super().__init__("function")

    def add(self, function: PythonFunction) -> None:
        """Add a function; the same function may be added again.

        Raises:
            SchemaError: the name is not a SQL identifier.
            NameTakenError: Spark has an aggregate of that name, or another function is registered under it.
        """
        name = function.name.lower()
        if not name.isidentifier():
            raise SchemaError(f"`{function.name}` cannot name a SQL function: letters, digits and _ only.")
        if name in AGGREGATES:
            raise NameTakenError(f"There is a function `{function.name}` already. Register yours under another name.")
        super().add(function)


FUNCTIONS = SqlFunctions()
