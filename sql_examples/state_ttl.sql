-- State that ends: of a customer without an order for 7 days, nothing is kept but the result.
--
-- The state of an aggregate grows with its keys. A time to live bounds it: a group that no micro-batch has had a row for so long
-- leaves the state, with the next flush. What becomes of its row in the table is an option. `keep`, the default, makes it final:
-- later orders of that customer are dropped, and counted in the commit's metadata and DESCRIBE FLOW. `delete` removes the row, and a
-- later order begins a new group.

DROP FLOW IF EXISTS recent_orders;
CREATE OR REPLACE TABLE customer_orders (customer STRING, product STRING, amount DECIMAL(10, 2)) USING delta;
INSERT INTO customer_orders VALUES ('ann', 'tea', 3.00), ('bob', 'rice', 2.50), ('ann', 'rice', 2.50);

CREATE OR REPLACE STREAMING TABLE recent_orders
TBLPROPERTIES ('execution.flush.max-interval' = '1 minute', 'table.exec.state.ttl.expired-rows' = 'delete')
AS SELECT /*+ STATE_TTL(o, '7 days') */
  customer,
  count(*) AS orders,
  count(DISTINCT product) AS products,
  sum(amount) AS total
FROM STREAM customer_orders AS o
GROUP BY customer;

WAIT FLOW recent_orders;
SELECT * FROM recent_orders ORDER BY customer;
