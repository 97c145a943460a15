-- A materialized view: a query over tables that change in any way, brought up to date by REFRESH.
--
-- A streaming table sees rows that are appended. Here orders are corrected and canceled, and customers move: UPDATE, DELETE and
-- MERGE. Each refresh is one commit. It computes what changed, and SHOW MATERIALIZED VIEWS says how.

DROP MATERIALIZED VIEW IF EXISTS region_totals;
CREATE OR REPLACE TABLE shop_orders (id INT, customer INT, amount DECIMAL(8, 2) NOT NULL) USING delta;
CREATE OR REPLACE TABLE shop_customers (id INT, region STRING) USING delta;

INSERT INTO shop_orders VALUES (1, 1, 10.00), (2, 1, 20.00), (3, 2, 30.00);
INSERT INTO shop_customers VALUES (1, 'north'), (2, 'south');

-- How each operator of the query would be kept up to date, or why all of it is computed in full.
EXPLAIN CREATE MATERIALIZED VIEW region_totals
AS SELECT c.region, count(*) AS orders, sum(o.amount) AS total
FROM shop_orders AS o JOIN shop_customers AS c ON o.customer = c.id
GROUP BY c.region;

-- count(*) says when a group is empty, so groups can be added to and subtracted from. With so few rows, the policy AUTO may find
-- that the query in full takes less time.
CREATE MATERIALIZED VIEW region_totals
REFRESH POLICY INCREMENTAL
AS SELECT c.region, count(*) AS orders, sum(o.amount) AS total
FROM shop_orders AS o JOIN shop_customers AS c ON o.customer = c.id
GROUP BY c.region;

SELECT * FROM region_totals ORDER BY region;

-- A new order, a corrected one, and one that was canceled.
INSERT INTO shop_orders VALUES (4, 2, 40.00);
UPDATE shop_orders SET amount = 25.00 WHERE id = 2;
DELETE FROM shop_orders WHERE id = 3;

-- One customer moves, and one is new: all orders of the first go to another region.
MERGE INTO shop_customers AS t
USING (SELECT * FROM VALUES (1, 'west'), (3, 'east') AS v(id, region)) AS s
ON t.id = s.id
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED THEN INSERT *;

REFRESH MATERIALIZED VIEW region_totals;
SHOW MATERIALIZED VIEWS;

-- It may also refresh itself: after changes, or every so often.
ALTER MATERIALIZED VIEW region_totals ADD TRIGGER ON UPDATE AT MOST EVERY 5 MINUTES;
ALTER MATERIALIZED VIEW region_totals DROP TRIGGER;

SELECT * FROM region_totals ORDER BY region;
