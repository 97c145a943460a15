-- Going back after wrong data: the totals are kept at a savepoint, spoilt by hand, and set back; then the flow goes on.

DROP FLOW IF EXISTS item_sales;
CREATE OR REPLACE TABLE item_orders (item STRING, amount INT) USING delta;
INSERT INTO item_orders VALUES ('pen', 2), ('ink', 5), ('pen', 3);

CREATE OR REPLACE STREAMING TABLE item_sales
TBLPROPERTIES ('execution.flush.max-interval' = '1 min')
AS SELECT item, count(*) AS orders, sum(amount) AS total FROM STREAM item_orders GROUP BY item;

WAIT FLOW item_sales;
SAVEPOINT FLOW item_sales AS before_repair;
SHOW SAVEPOINTS OF item_sales;

UPDATE item_sales SET total = 0;

RESTORE FLOW item_sales TO SAVEPOINT before_repair;
INSERT INTO item_orders VALUES ('ink', 1);
WAIT FLOW item_sales;
SELECT * FROM item_sales ORDER BY item;

DROP SAVEPOINT before_repair ON FLOW item_sales;
