"""Rewrite rules, one per file; `BATCHES` defines their order."""

if __name__ != "sqlext.rules":  # a second import under another name would register every rule twice
    raise ImportError(f"import sqlext.rules, not {__name__}")

from sqlext.rules.aggregate_distinct_to_set import aggregate_distinct_to_set
from sqlext.rules.collect_distinct_to_set import collect_distinct_to_set
from sqlext.rules.count_distinct_to_set import count_distinct_to_set
from sqlext.rules.distinct_to_group_by_all import distinct_to_group_by_all
from sqlext.rules.expand_collect import expand_collect
from sqlext.rules.expand_sum0 import expand_sum0
from sqlext.rules.having_to_column import having_to_column
from sqlext.rules.listagg_distinct_to_set import listagg_distinct_to_set
from sqlext.rules.ordered_value_to_min_max_by import ordered_value_to_min_max_by
from sqlext.rules.pivot_to_filter import pivot_to_filter
from sqlext.rules.python_aggregate_over_list import python_aggregate_over_list
from sqlext.rules.remove_hints import remove_hints
from sqlext.rules.remove_idle_distinct import remove_idle_distinct
from sqlext.rules.remove_source_options import remove_source_options
from sqlext.rules.stream_of_function import stream_of_function
from sqlext.rules.top_n_to_max_by import top_n_to_max_by
from sqlext.sql.rewriter import Batch, FixedPoint, Once, Scope

BATCHES: tuple[Batch, ...] = (
    Batch("options", Once(), (remove_hints, remove_source_options, stream_of_function)),
    Batch("user", FixedPoint()),
    Batch("relations", Once(), (pivot_to_filter, top_n_to_max_by), Scope.RELATIONS),
    Batch(
        "streaming aggregates",
        FixedPoint(),
        (
            distinct_to_group_by_all,
            expand_sum0,
            expand_collect,
            remove_idle_distinct,
            count_distinct_to_set,
            collect_distinct_to_set,
            aggregate_distinct_to_set,
            listagg_distinct_to_set,
            ordered_value_to_min_max_by,
            python_aggregate_over_list,
        ),
        Scope.AGGREGATE,
    ),
    Batch("retractions", Once(), (having_to_column,), Scope.AGGREGATE),
)
