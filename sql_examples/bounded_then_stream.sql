-- A stream joined with what a bounded query made of the history, as one statement (FLIP-331).
--
-- The part with GLOBAL WINDOW END OF STREAM is a stage of its own: it runs first and ends, and its result is kept with the flow.
-- Only then does the stream start, and takes resources. A restarted flow reads the result and does not compute it again;
-- CREATE OR REPLACE does.

CREATE OR REPLACE TABLE history (customer STRING, amount DECIMAL(8, 2)) USING delta;
CREATE OR REPLACE TABLE new_orders (customer STRING, amount DECIMAL(8, 2)) USING delta;

INSERT INTO history VALUES ('ann', 4.20), ('ann', 3.10), ('bob', 7.90), ('ann', 4.70), ('cem', 4.20);
INSERT INTO new_orders VALUES ('ann', 9.00), ('bob', 2.00), ('bob', 12.00), ('dan', 1.00);

-- Per customer, how many of the new orders are larger than what they have spent before on average.
EXPLAIN CREATE OR REPLACE STREAMING TABLE larger_orders
AS SELECT n.customer, count(*) AS orders, count_if(n.amount > h.average) AS larger
FROM STREAM new_orders AS n
LEFT JOIN (
  SELECT customer, avg(amount) AS average FROM STREAM history GROUP BY customer GLOBAL WINDOW END OF STREAM
) AS h ON n.customer = h.customer
GROUP BY n.customer;

CREATE OR REPLACE STREAMING TABLE larger_orders
AS SELECT n.customer, count(*) AS orders, count_if(n.amount > h.average) AS larger
FROM STREAM new_orders AS n
LEFT JOIN (
  SELECT customer, avg(amount) AS average FROM STREAM history GROUP BY customer GLOBAL WINDOW END OF STREAM
) AS h ON n.customer = h.customer
GROUP BY n.customer;

WAIT FLOW larger_orders;

-- The rows `stage ..` tell the stage's state, rows and times.
DESCRIBE FLOW larger_orders;

SELECT * FROM larger_orders ORDER BY customer;

DROP FLOW larger_orders;
