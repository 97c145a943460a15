"""The queries of materialized views, by name: every operator over three sources.

Each has one result, however rows come: they may be there twice, so an order has all columns that are shown; sums of doubles are
exact, as the sources make them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ViewQuery:
    """A query.

    Attributes:
        operators: what it covers.
        approximate: its columns that depend on the order of additions in their last bits.
        is_incremental: whether a refresh in full is a failure.
    """

    name: str
    operators: tuple[str, ...]
    text: str
    approximate: frozenset[str] = frozenset()
    is_incremental: bool = False


SQL_VIEWS = {
    "big_orders": "SELECT oid, cid, region, amount, qty FROM orders WHERE amount > 20 OR qty >= 5",
    "customer_totals": (
        "SELECT c.id, c.region, count(o.oid) AS n, sum(o.amount) AS total FROM customers c LEFT JOIN orders o ON o.cid = c.id "
        "GROUP BY c.id, c.region"
    ),
}
"""Permanent views, by name."""

_QUERIES = """
# rows: filter, project +
SELECT oid, cid, amount * 2 AS twice, upper(region) AS region FROM orders WHERE qty > 1

# nulls: filter, project +
SELECT oid, coalesce(region, 'none') AS region, region IS NULL AS is_null, nullif(region, '') AS some, region <=> 'n' AS same
FROM orders WHERE NOT (qty = 3) OR price IS NULL

# case: CASE +
SELECT oid, CASE WHEN qty > 4 THEN 'many' WHEN qty > 0 THEN 'few' WHEN qty IS NULL THEN NULL ELSE 'none' END AS size,
  CASE region WHEN 'n' THEN 1 WHEN '' THEN 2 END AS code, if(isnan(price), 0.0D, price) AS price FROM orders

# floats: project +
SELECT id, score, score = score AS same, -score AS minus, coalesce(score, DOUBLE('NaN')) AS score_or_nan FROM customers
WHERE score > 0

# nothing_left_out: filter, project +
SELECT iid, oid, kind, units, cost, weight, ok FROM items

# without_key: project +
SELECT region, qty FROM orders

# nested_output: nested types +
SELECT oid, struct(info.a AS a, struct(region, qty) AS deep) AS s, array(qty, NULL, 1) AS xs, map('k', amount) AS m,
  transform(tags, t -> concat(t, '!')) AS tags FROM orders

# maps: nested types +
SELECT id, flags, flags['a'] AS a, map_keys(flags) AS names, size(flags) AS count FROM customers

# scalars: project +
SELECT oid, date_trunc('HOUR', at) AS hour, year(at) AS year, length(region) AS long, md5(region) AS hashed, info.b AS b,
  try_divide(amount, qty) AS each, concat_ws('-', region, cid) AS joined FROM orders WHERE at >= TIMESTAMP'2024-03-31 00:00:00'

# never: filter +
SELECT oid, amount FROM orders WHERE qty > 1 AND qty < 1

# explode: explode +
SELECT oid, explode(tags) AS tag FROM orders

# explode_outer: explode +
SELECT oid, posexplode_outer(tags) AS (at, tag) FROM orders WHERE qty IS NOT NULL

# lateral_view: LATERAL VIEW +
SELECT oid, region, tag FROM orders LATERAL VIEW OUTER explode(tags) t AS tag WHERE region <> 's'

# lateral_view_map: LATERAL VIEW, GROUP BY
SELECT name, count(*) AS n, sum(v) AS total FROM customers LATERAL VIEW explode(flags) f AS name_of, v GROUP BY name

# table_function: LATERAL join, explode +
SELECT o.oid, t.tag FROM orders o, LATERAL explode(o.tags) AS t(tag) WHERE o.qty > 0

# stack: generator
SELECT iid, what, value FROM items LATERAL VIEW stack(2, 'units', units, 'twice', units * 2) s AS what, value

# union_all: UNION ALL +
SELECT oid AS id, region FROM orders UNION ALL SELECT id, region FROM customers

# union_all_self: UNION ALL +
SELECT oid, 1 AS part FROM orders WHERE qty > 1 UNION ALL SELECT oid, 2 FROM orders WHERE qty > 2
UNION ALL SELECT oid, 2 FROM orders

# union: UNION
SELECT region FROM orders UNION SELECT region FROM customers

# union_mixed: UNION, UNION ALL
(SELECT oid AS id FROM orders UNION SELECT oid FROM items) UNION ALL SELECT id FROM customers

# union_widened: UNION ALL
SELECT oid AS id, qty AS n FROM orders UNION ALL SELECT CAST(units AS DECIMAL(5, 1)), cost FROM items

# values: VALUES, inner join
SELECT o.oid, v.label FROM orders o JOIN (VALUES ('n', 'north'), ('s', 'south'), (NULL, 'nowhere')) v(region, label)
ON o.region <=> v.region

# union_values: VALUES, UNION ALL
SELECT region, qty FROM orders UNION ALL VALUES ('all', 0), (NULL, NULL)

# inner: inner join +
SELECT o.oid, o.amount, c.name, c.level FROM orders o JOIN customers c ON o.cid = c.id

# inner_filtered: inner join +
SELECT o.oid, c.name FROM orders o JOIN customers c ON o.cid = c.id AND o.region = c.region WHERE o.qty > 0 AND c.level < 3

# inner_three: inner join +
SELECT o.oid, c.name, i.kind, i.units * o.qty AS n FROM orders o JOIN customers c ON o.cid = c.id JOIN items i ON i.oid = o.oid

# using: inner join, USING +
SELECT oid, region, kind, units FROM orders JOIN items USING (oid)

# natural: inner join, NATURAL
SELECT oid, units, level FROM (SELECT oid, units FROM items) NATURAL JOIN (SELECT oid, cid FROM orders)
NATURAL JOIN (SELECT id AS cid, level FROM customers)

# null_safe_join: inner join +
SELECT o.oid, c.id FROM orders o JOIN customers c ON o.region <=> c.region AND o.qty = c.level

# self_join: self join +
SELECT a.oid AS one, b.oid AS other, a.amount FROM orders a JOIN orders b ON a.cid = b.cid AND a.oid < b.oid

# self_join_three: self join
SELECT a.id AS a, b.id AS b, c.id AS c FROM customers a JOIN customers b ON a.level = b.level AND a.id < b.id
JOIN customers c ON b.region = c.region AND b.id < c.id

# non_equal: non-equal join
SELECT o.oid, c.id FROM orders o JOIN customers c ON o.qty > c.level AND o.amount > c.score WHERE o.amount < 30

# comma: cross join
SELECT c.id, i.iid FROM customers c, items i WHERE c.level = 1 AND i.units = 4

# cross: cross join
SELECT c.id, m.most FROM customers c CROSS JOIN (SELECT max(qty) AS most FROM orders) m

# double_join_key: inner join
SELECT c.id, i.iid FROM customers c JOIN items i ON c.score = i.weight

# left: left join +
SELECT c.id, c.name, o.oid, o.amount FROM customers c LEFT JOIN orders o ON o.cid = c.id

# left_condition: left join
SELECT c.id, o.oid FROM customers c LEFT JOIN orders o ON o.cid = c.id AND o.qty > 2 AND c.level = 2

# left_null: left join
SELECT c.id, c.region FROM customers c LEFT JOIN orders o ON o.cid = c.id WHERE o.oid IS NULL

# left_chain: left join
SELECT c.id, o.oid, i.iid, coalesce(i.units, 0) AS units FROM customers c LEFT JOIN orders o ON o.cid = c.id
LEFT JOIN items i ON i.oid = o.oid

# right: right join
SELECT o.oid, c.id, c.name FROM orders o RIGHT JOIN customers c ON o.cid = c.id AND o.region = c.region

# full: full join
SELECT o.oid, i.iid, coalesce(o.oid, i.oid) AS either FROM orders o FULL JOIN items i ON o.oid = i.oid

# full_using: full join, USING
SELECT region, o.n, c.m FROM (SELECT region, count(*) AS n FROM orders GROUP BY region) o
FULL JOIN (SELECT region, count(*) AS m FROM customers GROUP BY region) c USING (region)

# left_non_equal: left join, non-equal join
SELECT c.id, o.oid FROM customers c LEFT JOIN orders o ON o.qty < c.level AND o.amount > 80

# semi: semi join
SELECT c.id, c.name FROM customers c LEFT SEMI JOIN orders o ON o.cid = c.id

# anti: anti join
SELECT c.id, c.name FROM customers c LEFT ANTI JOIN orders o ON o.cid = c.id AND o.qty > 1

# in: IN
SELECT oid, region FROM orders WHERE cid IN (SELECT id FROM customers WHERE level = 1)

# in_pair: IN
SELECT oid FROM orders WHERE (cid, region) IN (SELECT id, region FROM customers)

# in_distinct: IN, DISTINCT +
SELECT oid, region FROM orders WHERE cid IN (SELECT DISTINCT id FROM customers WHERE level < 3)

# in_union: IN, UNION +
SELECT oid, qty FROM orders WHERE cid IN (SELECT id FROM customers WHERE level = 1 UNION SELECT oid FROM items)

# in_nested: IN, INTERSECT +
SELECT id, name FROM customers WHERE id IN (SELECT cid FROM orders WHERE oid IN (SELECT oid FROM items WHERE ok
INTERSECT SELECT oid FROM items WHERE units > 0))

# not_in: NOT IN
SELECT id FROM customers WHERE id NOT IN (SELECT cid FROM orders WHERE cid IS NOT NULL AND qty > 2)

# not_in_nulls: NOT IN
SELECT id, region FROM customers WHERE region NOT IN (SELECT region FROM orders WHERE qty = 7)

# exists: EXISTS
SELECT id, name FROM customers c WHERE EXISTS (SELECT 1 FROM orders o WHERE o.cid = c.id AND o.amount > 40)

# not_exists: NOT EXISTS
SELECT oid, region FROM orders o WHERE NOT EXISTS (SELECT 1 FROM items i WHERE i.oid = o.oid AND i.units > 1)

# exists_any: EXISTS
SELECT id, name FROM customers WHERE EXISTS (SELECT 1 FROM items WHERE ok AND units > 3)

# exists_none: NOT EXISTS
SELECT region, count(*) AS n FROM orders WHERE NOT EXISTS (SELECT 1 FROM customers WHERE level = 3) GROUP BY region

# exists_either: EXISTS
SELECT id FROM customers c WHERE level = 3 OR EXISTS (SELECT 1 FROM orders o WHERE o.cid = c.id)

# scalar_where: scalar subquery
SELECT oid, amount FROM orders WHERE amount > (SELECT avg(amount) FROM orders)

# scalar_of_distinct: scalar subquery, DISTINCT
SELECT oid, amount FROM orders WHERE amount > (SELECT avg(units) FROM (SELECT DISTINCT units FROM items))

# scalar_of_sets: scalar subquery, EXCEPT
SELECT oid, qty FROM orders WHERE qty >= (SELECT count(*) FROM (SELECT id FROM customers c WHERE EXISTS (SELECT 1 FROM items i
WHERE i.oid = c.id) EXCEPT SELECT oid FROM items WHERE ok))

# scalar_select: scalar subquery
SELECT id, (SELECT max(amount) FROM orders) AS most, (SELECT count(*) FROM items WHERE ok) AS fine FROM customers

# scalar_correlated: correlated scalar subquery
SELECT id, (SELECT sum(o.amount) FROM orders o WHERE o.cid = c.id) AS total,
  (SELECT count(*) FROM orders o WHERE o.cid = c.id) AS n FROM customers c

# scalar_correlated_where: correlated scalar subquery
SELECT oid, amount FROM orders o WHERE amount >= (SELECT max(p.amount) FROM orders p WHERE p.region = o.region)

# lateral: LATERAL join
SELECT c.id, l.n, l.total FROM customers c, LATERAL (SELECT count(*) AS n, sum(qty) AS total FROM orders o WHERE o.cid = c.id) l

# lateral_row: LATERAL join +
SELECT o.oid, l.twice, l.text FROM orders o, LATERAL (SELECT o.qty * 2 AS twice, CAST(o.price AS STRING) AS text) l

# lateral_map: LATERAL join, explode +
SELECT c.id, e.key, e.value FROM customers c, LATERAL explode(c.flags) e

# lateral_left: LATERAL join
SELECT c.id, l.oid FROM customers c LEFT JOIN LATERAL (SELECT oid FROM orders o WHERE o.cid = c.id AND o.qty > c.level) l

# distinct: DISTINCT +
SELECT DISTINCT region, qty FROM orders

# distinct_expression: DISTINCT
SELECT DISTINCT upper(region) AS region, price FROM orders

# distinct_join: DISTINCT, inner join
SELECT DISTINCT c.name, i.kind FROM customers c JOIN orders o ON o.cid = c.id JOIN items i ON i.oid = o.oid

# count: GROUP BY +
SELECT region, count(*) AS n, count(qty) AS some FROM orders GROUP BY region

# sums: GROUP BY +
SELECT region, sum(qty) AS ints, sum(amount) AS decimals, sum(price) AS doubles, avg(amount) AS mean, avg(price) AS mean_double,
  avg(qty) AS mean_int FROM orders GROUP BY region

# extremes: GROUP BY +
SELECT cid, min(amount) AS least, max(amount) AS most, min(price) AS cheapest, max(price) AS dearest, min(at) AS first_at,
  max(region) AS last_region, max(struct(qty, oid)) AS last FROM orders GROUP BY cid

# spread: GROUP BY ~ sd, var, sdp, varp, covar, skew
SELECT level, stddev(id) AS sd, variance(id) AS var, stddev_pop(id) AS sdp, var_pop(id) AS varp,
  covar_samp(id, length(region)) AS covar, skewness(id) AS skew FROM customers GROUP BY level

# correlation: GROUP BY, VALUES, UNION ALL ~ c, slope
SELECT kind, corr(units, x) AS c, regr_slope(units, x) AS slope FROM (SELECT kind, units, cost + 0.25D AS x FROM items
UNION ALL SELECT kind, units, x FROM (SELECT DISTINCT kind FROM items) CROSS JOIN (VALUES (0, 1.0D), (9, 3.0D)) v(units, x))
GROUP BY kind

# booleans: GROUP BY
SELECT kind, bool_and(ok) AS every_ok, bool_or(ok) AS any_ok, count_if(ok) AS fine, bit_xor(units) AS x, bit_or(units) AS o,
  bit_and(units) AS a FROM items GROUP BY kind

# sketches: GROUP BY
SELECT region, approx_count_distinct(cid) AS about, percentile(qty, 0.5) AS middle, percentile_approx(qty, array(0.25, 0.75)) AS
  quarters, median(amount) AS med, mode(qty, true) AS often FROM orders GROUP BY region

# picked: GROUP BY
SELECT cid, max_by(region, struct(oid, region)) AS newest, min_by(qty, struct(amount, oid, qty)) AS cheapest,
  first(cid) AS same, any_value(cid) AS any_of_one FROM orders GROUP BY cid

# lists: GROUP BY
SELECT cid, sort_array(collect_list(qty)) AS qtys, sort_array(collect_set(region)) AS regions,
  array_sort(collect_list(struct(oid, amount))) AS each FROM orders GROUP BY cid

# listagg: GROUP BY
SELECT region, listagg(cid, ',') WITHIN GROUP (ORDER BY cid) AS cids FROM orders GROUP BY region

# distinct_aggregates: GROUP BY, count DISTINCT
SELECT region, count(DISTINCT cid) AS cids, sum(DISTINCT qty) AS qtys, count(*) AS n, count(DISTINCT cid, qty) AS pairs
FROM orders GROUP BY region

# filtered_aggregates: GROUP BY, FILTER
SELECT region, count(*) FILTER (WHERE qty > 2) AS many, sum(amount) FILTER (WHERE price IS NULL) AS unpriced,
  count(DISTINCT cid) FILTER (WHERE qty IS NOT NULL) AS cids FROM orders GROUP BY region

# case_sums: GROUP BY, CASE +
SELECT kind, sum(CASE WHEN ok THEN units ELSE 0 END) AS fine, sum(cost * units) AS paid, max(CASE WHEN ok THEN cost END) AS most
FROM items GROUP BY kind

# having: HAVING +
SELECT cid, count(*) AS n FROM orders GROUP BY cid HAVING count(*) > 1 AND sum(qty) > 3

# having_unshown: HAVING
SELECT region FROM orders GROUP BY region HAVING max(amount) > 50

# global: global aggregate +
SELECT count(*) AS n, sum(amount) AS total, min(oid) AS first_id, max(at) AS newest, avg(qty) AS mean FROM orders

# global_filtered: global aggregate
SELECT count(*) AS n, sum(units) AS total, size(collect_set(kind)) AS kinds FROM items WHERE ok AND units > 1

# global_having: global aggregate, HAVING
SELECT sum(qty) AS total FROM orders HAVING count(*) > 40

# global_distinct: global aggregate, count DISTINCT
SELECT count(DISTINCT region) AS regions, sum(DISTINCT units) AS units FROM (SELECT region, level AS units FROM customers)

# by_expression: GROUP BY expression +
SELECT date_trunc('DAY', at) AS day, qty % 2 AS odd, count(*) AS n, sum(amount) AS total FROM orders GROUP BY 1, 2

# by_window: GROUP BY expression
SELECT window.start AS start, region, count(*) AS n FROM orders GROUP BY window(at, '6 hours'), region

# by_double: GROUP BY expression
SELECT price, count(*) AS n FROM orders GROUP BY price

# by_struct: GROUP BY expression
SELECT info, tags, count(*) AS n, sum(qty) AS total FROM orders GROUP BY info, tags

# key_not_shown: GROUP BY
SELECT count(*) AS n, max(amount) AS most FROM orders GROUP BY cid

# part_of_key: GROUP BY
SELECT region, sum(amount) AS total FROM orders GROUP BY region, qty

# no_aggregate: GROUP BY
SELECT cid, region FROM orders GROUP BY cid, region

# over_aggregates: GROUP BY +
SELECT region, sum(amount) / nullif(count(*), 0) AS mean, max(qty) - min(qty) AS between, coalesce(sum(qty), 0) + 1 AS more
FROM orders GROUP BY region

# rollup: ROLLUP
SELECT region, qty, count(*) AS n, grouping(region) AS g, grouping_id() AS gid FROM orders GROUP BY ROLLUP (region, qty)

# cube: CUBE
SELECT kind, ok, sum(units) AS total, grouping_id() AS gid FROM items GROUP BY CUBE (kind, ok)

# grouping_sets: GROUPING SETS
SELECT region, level, count(*) AS n, sum(id) AS total FROM customers GROUP BY GROUPING SETS ((region), (level), ())

# row_number: window
SELECT oid, cid, qty, row_number() OVER (PARTITION BY cid ORDER BY oid, qty) AS nr FROM orders

# ranks: window
SELECT iid, oid, units, rank() OVER w AS r, dense_rank() OVER (PARTITION BY oid ORDER BY units DESC) AS d,
  percent_rank() OVER w AS p, cume_dist() OVER w AS c, ntile(2) OVER (PARTITION BY oid ORDER BY units, iid) AS half FROM items
WINDOW w AS (PARTITION BY oid ORDER BY units)

# neighbours: window
SELECT oid, region, amount, lag(amount) OVER w AS before, lead(amount, 1, 0.00BD) OVER w AS after,
  first_value(oid) OVER w AS first_oid FROM orders WINDOW w AS (PARTITION BY region ORDER BY oid, amount)

# running: window
SELECT oid, cid, amount, sum(amount) OVER (PARTITION BY cid ORDER BY oid, amount ROWS UNBOUNDED PRECEDING) AS so_far,
  count(*) OVER (PARTITION BY cid) AS n, max(amount) OVER (PARTITION BY cid) AS most FROM orders

# range_frame: window
SELECT id, level, score, sum(id) OVER (PARTITION BY region ORDER BY id RANGE BETWEEN 2 PRECEDING AND CURRENT ROW) AS near
FROM customers

# window_all: window without PARTITION BY
SELECT id, level, row_number() OVER (ORDER BY id, level) AS nr, sum(level) OVER () AS total FROM customers

# two_windows: window
SELECT oid, sum(qty) OVER (PARTITION BY cid) AS by_cid, sum(qty) OVER (PARTITION BY region) AS by_region FROM orders

# ratio: window
SELECT iid, kind, cost, try_divide(cost, sum(cost) OVER (PARTITION BY kind)) AS share FROM items

# top: top n a partition
SELECT * FROM (SELECT oid, cid, amount, row_number() OVER (PARTITION BY cid ORDER BY amount DESC, oid) AS nr FROM orders)
WHERE nr <= 2

# qualify: QUALIFY
SELECT oid, region, qty, amount FROM orders QUALIFY row_number() OVER (PARTITION BY region ORDER BY amount DESC, oid, qty) <= 3

# qualify_rank: QUALIFY
SELECT iid, kind, units FROM items WHERE units > 0 QUALIFY rank() OVER (PARTITION BY kind ORDER BY units DESC) = 1

# newest_of_key: top n a partition
SELECT oid, region, amount FROM (SELECT oid, region, amount, row_number() OVER (PARTITION BY oid ORDER BY at DESC, amount, region)
  AS nr FROM orders) WHERE nr = 1

# limit: ORDER BY LIMIT
SELECT oid, region, amount FROM orders ORDER BY amount DESC NULLS LAST, oid, region LIMIT 7

# limit_offset: ORDER BY LIMIT
SELECT region, count(*) AS n FROM orders GROUP BY region ORDER BY n DESC, region LIMIT 2 OFFSET 1

# limit_within: ORDER BY LIMIT, inner join
SELECT t.oid, i.iid FROM (SELECT oid FROM orders ORDER BY amount DESC, oid LIMIT 10) t JOIN items i ON i.oid = t.oid

# ordered: ORDER BY
SELECT id, name FROM customers WHERE level > 1 ORDER BY id, name

# except: EXCEPT
SELECT cid FROM orders EXCEPT SELECT id FROM customers WHERE level = 2

# except_all: EXCEPT ALL
SELECT region FROM orders EXCEPT ALL SELECT region FROM customers

# intersect: INTERSECT
SELECT oid FROM orders INTERSECT SELECT oid FROM items

# intersect_all: INTERSECT ALL
SELECT region FROM orders INTERSECT ALL SELECT region FROM customers

# cte: CTE +
WITH big AS (SELECT oid, cid, amount FROM orders WHERE amount > 10)
SELECT b.oid, c.name FROM big b JOIN customers c ON b.cid = c.id

# cte_twice: CTE
WITH per AS (SELECT cid, sum(amount) AS total FROM orders GROUP BY cid)
SELECT p.cid, p.total FROM per p WHERE p.total > (SELECT avg(total) FROM per)

# cte_chain: CTE
WITH a AS (SELECT region, qty FROM orders), b AS (SELECT region, sum(qty) AS total FROM a GROUP BY region)
SELECT a.region, a.qty, b.total FROM a JOIN b ON a.region <=> b.region

# sql_view: SQL view +
SELECT oid, region, qty FROM big_orders WHERE qty IS NOT NULL

# sql_view_join: SQL view
SELECT t.id, t.total, o.oid FROM customer_totals t JOIN big_orders o ON o.cid = t.id

# sql_view_aggregate: SQL view
SELECT region, sum(total) AS total, max(n) AS most FROM customer_totals GROUP BY region

# pivot: PIVOT
SELECT * FROM (SELECT region, qty, amount FROM orders) PIVOT (sum(amount) AS total, count(*) AS n FOR qty IN (1 AS one, 2 AS two))

# unpivot: UNPIVOT
SELECT * FROM (SELECT iid, units, CAST(cost AS INT) AS cost FROM items) UNPIVOT INCLUDE NULLS (value FOR what IN (units, cost))

# aggregate_of_join: aggregate of a join +
SELECT c.region, count(*) AS n, sum(o.amount) AS total, max(o.qty) AS most FROM orders o JOIN customers c ON o.cid = c.id
GROUP BY c.region

# aggregate_of_three: aggregate of a join
SELECT c.level, i.kind, sum(i.units * o.qty) AS n, count(DISTINCT o.oid) AS oids FROM orders o JOIN customers c ON o.cid = c.id
JOIN items i ON i.oid = o.oid GROUP BY c.level, i.kind

# aggregate_of_left: aggregate of a join
SELECT c.id, count(o.oid) AS n, sum(o.amount) AS total FROM customers c LEFT JOIN orders o ON o.cid = c.id GROUP BY c.id

# join_of_aggregate: join of an aggregate
SELECT c.id, c.name, a.n, a.total FROM customers c
JOIN (SELECT cid, count(*) AS n, sum(amount) AS total FROM orders GROUP BY cid) a ON a.cid = c.id

# aggregate_join_aggregate: aggregate of a join, join of an aggregate
SELECT c.region, sum(a.total) AS total, max(a.n) AS most FROM customers c JOIN
(SELECT oid AS id, count(*) AS n, sum(units) AS total FROM items GROUP BY oid) a ON a.id = c.id GROUP BY c.region

# outer_of_aggregates: outer join of aggregates
SELECT coalesce(a.k, b.k) AS k, a.n, b.total FROM (SELECT cid AS k, count(*) AS n FROM orders GROUP BY cid) a
FULL JOIN (SELECT oid AS k, sum(units) AS total FROM items GROUP BY oid) b ON a.k = b.k

# left_of_aggregates: outer join of aggregates
SELECT c.id, coalesce(a.total, 0) AS total FROM customers c LEFT JOIN
(SELECT cid, sum(amount) AS total FROM orders GROUP BY cid HAVING count(*) > 1) a ON a.cid = c.id

# aggregate_of_aggregate: aggregate of an aggregate
SELECT n, count(*) AS times FROM (SELECT cid, count(*) AS n FROM orders GROUP BY cid) GROUP BY n

# global_of_aggregate: aggregate of an aggregate
SELECT avg(total) AS mean, max(n) AS most FROM (SELECT region, sum(amount) AS total, count(*) AS n FROM orders GROUP BY region)

# aggregate_of_distinct: aggregate of an aggregate
SELECT region, count(*) AS n FROM (SELECT DISTINCT region, cid FROM orders) GROUP BY region

# window_of_aggregate: window over an aggregate
SELECT region, qty, total, rank() OVER (PARTITION BY region ORDER BY total DESC) AS r FROM
(SELECT region, qty, sum(amount) AS total FROM orders GROUP BY region, qty)

# window_in_aggregate: window over an aggregate
SELECT region, count(*) AS n, sum(count(*)) OVER (ORDER BY region) AS so_far FROM orders GROUP BY region

# aggregate_of_window: window, GROUP BY
SELECT cid, max(gap) AS gap FROM (SELECT cid, amount - lag(amount) OVER (PARTITION BY cid ORDER BY oid, amount) AS gap
FROM orders) GROUP BY cid

# window_of_join: window, inner join
SELECT o.oid, c.id, row_number() OVER (PARTITION BY c.id ORDER BY o.oid, o.amount) AS nr, o.amount FROM orders o
JOIN customers c ON o.cid = c.id

# aggregate_of_union: aggregate of UNION ALL +
SELECT region, count(*) AS n, sum(x) AS total FROM (SELECT region, qty AS x FROM orders
UNION ALL SELECT region, level FROM customers) GROUP BY region

# aggregate_of_explode: explode, GROUP BY +
SELECT tag, count(*) AS n, sum(qty) AS total FROM (SELECT qty, explode(tags) AS tag FROM orders) GROUP BY tag

# union_of_aggregates: UNION ALL, GROUP BY
SELECT 'orders' AS what, region, count(*) AS n FROM orders GROUP BY region
UNION ALL SELECT 'customers', region, count(*) FROM customers GROUP BY region

# difference: EXCEPT, GROUP BY
SELECT cid, count(*) AS n FROM orders GROUP BY cid EXCEPT SELECT oid, count(*) FROM items GROUP BY oid

# deep: inner join, anti join, GROUP BY, HAVING
SELECT c.region, i.kind, count(*) AS n, sum(i.cost) AS cost FROM customers c JOIN orders o ON o.cid = c.id
LEFT JOIN items i ON i.oid = o.oid WHERE NOT EXISTS (SELECT 1 FROM items x WHERE x.oid = o.oid AND x.units = 0)
GROUP BY c.region, i.kind HAVING count(*) >= 1
"""


def _queries() -> dict[str, ViewQuery]:
    """Each begins with a line `# name: operators`, ` ~ ` and its approximate columns, ` +` if it must be incremental."""
    found: dict[str, ViewQuery] = {}
    for part in _QUERIES.strip().split("\n\n"):
        head, _, text = part.partition("\n")
        is_incremental = head.endswith(" +")
        head, _, approximate = head.removesuffix(" +").partition(" ~ ")
        name, _, operators = head.removeprefix("# ").partition(": ")
        assert name not in found, name
        columns = frozenset(approximate.split(", ")) if approximate else frozenset[str]()
        found[name] = ViewQuery(name, tuple(operators.split(", ")), text, columns, is_incremental)
    return found


QUERIES = _queries()
INCREMENTAL = frozenset(name for name, query in QUERIES.items() if query.is_incremental)
"""The queries of which a refresh in full is a failure."""
