-- Files as a stream: orders arrive as files of JSON, and what does not fit their columns is kept.
--
-- The columns are inferred from the files that are there when the flow is made, and stay: EXPLAIN shows them in the query for
-- Spark. The second delivery has an amount that is no number, and a field that the first one did not have.

DROP FLOW IF EXISTS delivered_orders;
INSERT OVERWRITE DIRECTORY '/tmp/sqlext-example/orders/1' USING json
SELECT * FROM VALUES (1, 'pen', 3), (2, 'ink', 1) AS o(id, item, amount);
INSERT OVERWRITE DIRECTORY '/tmp/sqlext-example/orders/2' USING json
SELECT 0 AS id WHERE false;

CREATE OR REPLACE STREAMING TABLE delivered_orders
AS SELECT o.id, o.item, o.amount, o.rescued, regexp_extract(o._metadata.file_path, 'orders/(.*)/', 1) AS delivery
FROM STREAM read_files('/tmp/sqlext-example/orders/*', format => 'json', rescuedDataColumn => 'rescued') AS o;

WAIT FLOW delivered_orders;
SELECT * FROM delivered_orders ORDER BY id;

INSERT OVERWRITE DIRECTORY '/tmp/sqlext-example/orders/2' USING json
SELECT * FROM VALUES (3, 'cup', 'two', true), (4, 'mug', NULL, false) AS o(id, item, amount, gift);

-- The files as they are now, with a schema that is given.
SELECT item, count(*) AS orders FROM read_files('/tmp/sqlext-example/orders/*', format => 'json', schema => 'item STRING')
GROUP BY item ORDER BY item;

WAIT FLOW delivered_orders;
SELECT * FROM delivered_orders ORDER BY id;
