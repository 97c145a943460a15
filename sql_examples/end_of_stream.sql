-- Bounded queries: what the sources hold now, aggregated key by key, and then it ends.
--
-- GLOBAL WINDOW END OF STREAM (FLIP-331) stands after GROUP BY or HAVING, or after FROM and WHERE where there is no GROUP BY. A
-- stream below it is read to where it is now. Rows are exchanged by key, sorted, and aggregated one key at a time (FLIP-140), so
-- memory does not depend on the number of keys.

CREATE OR REPLACE TABLE orders (customer STRING, item STRING, amount DECIMAL(8, 2)) USING delta;

INSERT INTO orders VALUES
  ('ann', 'tea', 4.20), ('ann', 'cocoa', 3.10), ('bob', 'coffee', 7.90), ('ann', 'tea', 4.50), ('cem', 'tea', 4.20);

EXPLAIN SELECT customer, sum(amount) AS total FROM STREAM orders GROUP BY customer GLOBAL WINDOW END OF STREAM;

-- A job: it fills a table, and tells its id and its rows when it has ended.
CREATE OR REPLACE TABLE totals USING delta AS
SELECT customer, count(*) AS orders, count(DISTINCT item) AS items, sum(amount) AS total
FROM STREAM orders GROUP BY customer GLOBAL WINDOW END OF STREAM;

INSERT INTO totals
SELECT 'everybody', count(*), count(DISTINCT item), sum(amount) FROM STREAM orders GLOBAL WINDOW END OF STREAM;

-- As a part of a larger query.
SELECT o.item, max(t.total) AS best_customer
FROM orders AS o
JOIN (SELECT customer, sum(amount) AS total FROM STREAM orders GROUP BY customer GLOBAL WINDOW END OF STREAM) AS t
  USING (customer)
GROUP BY o.item ORDER BY o.item;

SELECT * FROM totals ORDER BY customer;
