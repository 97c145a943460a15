-- HAVING over a stream: groups come and go.
--
-- A group that satisfies HAVING is a row of the streaming table. One that stops satisfying it is deleted from the table, and comes
-- back when it qualifies again. So `in_stock` always holds what is on the shelves, and nothing else.

DROP FLOW IF EXISTS in_stock;
CREATE OR REPLACE TABLE stock_movements (product STRING, quantity INT) USING delta;

INSERT INTO stock_movements VALUES ('tea', 20), ('coffee', 8), ('cocoa', 3), ('tea', -5);

CREATE OR REPLACE STREAMING TABLE in_stock
TBLPROPERTIES ('execution.flush.max-interval' = '1 minute')
AS SELECT product, sum(quantity) AS quantity, count(*) AS movements
FROM STREAM stock_movements
GROUP BY product
HAVING sum(quantity) > 0;

WAIT FLOW in_stock;
SELECT * FROM in_stock ORDER BY product;

-- The last three tins of cocoa are sold: cocoa leaves the table.
INSERT INTO stock_movements VALUES ('cocoa', -3), ('coffee', -1);
WAIT FLOW in_stock;
SELECT * FROM in_stock ORDER BY product;

-- A delivery: it is back, with all its movements.
INSERT INTO stock_movements VALUES ('cocoa', 12);
WAIT FLOW in_stock;
SELECT * FROM in_stock ORDER BY product;
