-- A flow into a table that exists.
--
-- CREATE STREAMING TABLE makes its table. Where the table is there already, with a layout, comments and grants of its own, INSERT
-- INTO .. SELECT .. FROM STREAM makes a flow into it, which has the table's name.

DROP FLOW IF EXISTS sales_by_region;

CREATE OR REPLACE TABLE sales_by_region (
  region STRING COMMENT 'as the shop reports it',
  revenue DECIMAL(22, 2),
  orders BIGINT
) USING delta CLUSTER BY (region);

CREATE OR REPLACE TABLE sales (order_id BIGINT, region STRING, amount DECIMAL(12, 2)) USING delta;
INSERT INTO sales VALUES (1, 'north', 20.00), (2, 'south', 15.50), (3, 'north', 4.25), (4, 'west', 99.90);

-- BY NAME matches the query's columns with the table's by their names; without it they match by position, as in any INSERT. The
-- hint says how long changes may wait before they are merged in one commit. A misspelt hint is an error, not silently ignored.
INSERT INTO sales_by_region BY NAME
SELECT /*+ FLUSH_INTERVAL('2 minutes') */
  region,
  count(*) AS orders,
  sum(amount) AS revenue
FROM STREAM sales
GROUP BY region;

WAIT FLOW sales_by_region;
SELECT * FROM sales_by_region ORDER BY region;

INSERT INTO sales VALUES (5, 'east', 12.00), (6, 'south', 0.50);
WAIT FLOW sales_by_region;
SELECT * FROM sales_by_region ORDER BY region;
