-- Whole partitions: Python functions over all rows of a partition, or of a key, from SQL.
--
-- `last_row`, `partition_profile` and `json_lines` come with sqlext; your own are registered with
-- `sqlext.register_partition_function`. The calls are relations: they stand in joins, in INSERT and in CREATE TABLE .. AS, over
-- tables, views and subqueries.

CREATE OR REPLACE TABLE prices (product STRING, day DATE, price DECIMAL(6, 2)) USING delta;

INSERT INTO prices VALUES
  ('tea', DATE'2024-05-01', 4.20), ('coffee', DATE'2024-05-01', 7.90), ('cocoa', DATE'2024-05-02', 3.10),
  ('tea', DATE'2024-05-03', 4.50), ('coffee', DATE'2024-05-02', NULL), ('coffee', DATE'2024-05-04', 8.25);

SHOW PARTITION FUNCTIONS;

-- Where is the skew, and where are the nulls? One row for each product.
SELECT row_count, null_count
FROM aggregate_partition(TABLE(prices) PARTITION BY product, 'partition_profile')
ORDER BY row_count, null_count;

-- Each partition sorted for itself: nothing moves.
EXPLAIN SELECT * FROM sort_partition(TABLE(prices) ORDER BY price DESC);

-- The newest price of each product, kept in a table.
CREATE OR REPLACE TABLE newest_prices USING delta AS
SELECT * FROM reduce_partition(TABLE(SELECT * FROM prices WHERE price IS NOT NULL) PARTITION BY product ORDER BY day, 'last_row');

SELECT line FROM map_partition(TABLE(newest_prices), 'json_lines') WHERE line LIKE '%tea%';

SELECT n.product, n.day, n.price, p.price AS at_first
FROM newest_prices AS n
JOIN reduce_partition(TABLE(prices) PARTITION BY product ORDER BY day DESC, 'last_row') AS p USING (product)
ORDER BY n.product;
