-- Backlog: fewer, larger micro-batches while a source catches up.
--
-- The orders of the past are there when the streaming table is made: they are its backlog. It is worked off in micro-batches of about
-- half an hour of work each, back to back, and written by one flush at its end. Then the flow is live: orders are taken two seconds
-- after each other, and flushed within a minute. Should it ever lag by more than five minutes, it is in backlog again, by itself.

DROP FLOW IF EXISTS sales_by_customer;
CREATE OR REPLACE TABLE past_orders (customer STRING, amount DECIMAL(10, 2)) USING delta;

INSERT INTO past_orders VALUES ('Ada', 10.00), ('Bob', 20.00), ('Ada', 5.50);
INSERT INTO past_orders VALUES ('Cleo', 7.25);

CREATE OR REPLACE STREAMING TABLE sales_by_customer
TBLPROPERTIES ('execution.checkpointing.interval' = '2 seconds', 'execution.flush.max-interval' = '1 minute')
AS SELECT /*+ BACKLOG_INTERVAL(o, '30 minutes'), BACKLOG_THRESHOLD(o, '5 minutes') */
  o.customer, count(*) AS orders, sum(o.amount) AS amount
FROM STREAM past_orders AS o
GROUP BY o.customer;

WAIT FLOW sales_by_customer;
SELECT * FROM sales_by_customer ORDER BY customer;

-- Live: two more arrive.
INSERT INTO past_orders VALUES ('Bob', 1.00), ('Dan', 2.00);
WAIT FLOW sales_by_customer;
SELECT * FROM sales_by_customer ORDER BY customer;
