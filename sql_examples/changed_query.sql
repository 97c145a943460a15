-- A query that changes: its table gets other columns in one commit, and the stream is not read anew.

DROP FLOW IF EXISTS spending;
CREATE OR REPLACE TABLE sales (city STRING, amount DOUBLE) USING delta;
INSERT INTO sales VALUES ('rome', 12.0), ('oslo', 0.5), ('rome', 9.0);

CREATE OR REPLACE STREAMING TABLE spending
TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')
AS SELECT city, count(*) AS sales, avg(amount) AS mean FROM STREAM sales GROUP BY city;

WAIT FLOW spending;

-- What is new is computed over all rows that the flow has read, and joined to what it keeps; what the query lacks is removed.
EXPLAIN ALTER FLOW spending AS
SELECT city, count(*) AS sales, sum(amount) AS total, max(amount) AS highest FROM STREAM sales GROUP BY city;

ALTER FLOW spending AS
SELECT city, count(*) AS sales, sum(amount) AS total, max(amount) AS highest FROM STREAM sales GROUP BY city;

INSERT INTO sales VALUES ('oslo', 8.0), ('rome', 21.0);
WAIT FLOW spending;
SELECT * FROM spending ORDER BY total DESC;
