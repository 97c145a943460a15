-- A query that changes: its table gets other columns in one commit, and the stream is not read anew.

DROP FLOW IF EXISTS spending;
CREATE OR REPLACE TABLE shop_sales (city STRING, amount DOUBLE) USING delta;
INSERT INTO shop_sales VALUES ('rome', 12.0), ('oslo', 0.5), ('rome', 9.0);

CREATE OR REPLACE STREAMING TABLE spending
TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')
AS SELECT city, count(*) AS sales, avg(amount) AS mean FROM STREAM shop_sales GROUP BY city;

WAIT FLOW spending;

-- What is new is computed over all rows that the flow has read, and joined to what it keeps; what the query lacks is removed.
EXPLAIN ALTER FLOW spending AS
SELECT city, count(*) AS sales, sum(amount) AS total, max(amount) AS highest FROM STREAM shop_sales GROUP BY city;

ALTER FLOW spending AS
SELECT city, count(*) AS sales, sum(amount) AS total, max(amount) AS highest FROM STREAM shop_sales GROUP BY city;

INSERT INTO shop_sales VALUES ('oslo', 8.0), ('rome', 21.0);
WAIT FLOW spending;
SELECT * FROM spending ORDER BY total DESC;

-- Streams that have names can get company: the new one is read from its beginning, the other one on from where it is.
DROP FLOW IF EXISTS revenue;
CREATE OR REPLACE TABLE web_sales (city STRING, amount DOUBLE) USING delta;
INSERT INTO web_sales VALUES ('rome', 30.0), ('bern', 4.0);

CREATE OR REPLACE STREAMING TABLE revenue AS
SELECT city, sum(amount) AS total FROM (SELECT city, amount FROM STREAM shop_sales IDENTIFIED BY shops) GROUP BY city;

WAIT FLOW revenue;

ALTER FLOW revenue AS
SELECT city, sum(amount) AS total FROM (
  SELECT city, amount FROM STREAM shop_sales IDENTIFIED BY shops
  UNION ALL
  SELECT city, amount FROM STREAM web_sales IDENTIFIED BY web
) GROUP BY city;

WAIT FLOW revenue;
SELECT * FROM revenue ORDER BY total DESC;
