-- Going back after wrong data: the totals are kept at a savepoint, spoilt by hand, and set back; then the flow goes on.

DROP FLOW IF EXISTS sales;
CREATE OR REPLACE TABLE orders (item STRING, amount INT) USING delta;
INSERT INTO orders VALUES ('pen', 2), ('ink', 5), ('pen', 3);

CREATE OR REPLACE STREAMING TABLE sales
TBLPROPERTIES ('execution.flush.max-interval' = '1 min')
AS SELECT item, count(*) AS orders, sum(amount) AS total FROM STREAM orders GROUP BY item;

WAIT FLOW sales;
SAVEPOINT FLOW sales AS before_repair;
SHOW SAVEPOINTS OF sales;

UPDATE sales SET total = 0;

RESTORE FLOW sales TO SAVEPOINT before_repair;
INSERT INTO orders VALUES ('ink', 1);
WAIT FLOW sales;
SELECT * FROM sales ORDER BY item;

DROP SAVEPOINT before_repair ON FLOW sales;
