-- Operating flows: look at them, change them, stop and start them.

DROP FLOW IF EXISTS temperatures;
CREATE OR REPLACE TABLE readings (sensor STRING, celsius DOUBLE) USING delta;
INSERT INTO readings VALUES ('roof', 21.5), ('cellar', 11.0), ('roof', 22.5);

-- What a statement would do: sources, operators and their attributes, stages, whether rows are buffered and why, rules that fired.
EXPLAIN CREATE STREAMING TABLE temperatures
TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')
AS SELECT sensor, count(*) AS readings, avg(celsius) AS celsius FROM STREAM readings GROUP BY sensor;

CREATE OR REPLACE STREAMING TABLE temperatures
TBLPROPERTIES ('execution.flush.max-interval' = '10 minutes')
AS SELECT sensor, count(*) AS readings, avg(celsius) AS celsius FROM STREAM readings GROUP BY sensor;

-- WAIT FLOW: all that had arrived when it was called is in the table. After TIMEOUT it gives up, and the flow keeps running.
WAIT FLOW temperatures TIMEOUT 5 minutes;

-- All flows of this warehouse, and all about one of them. Both are tables with columns, also for Thrift and JDBC clients.
SHOW FLOWS;
DESCRIBE FLOW temperatures;

-- Changed options apply to a running flow at once.
ALTER FLOW temperatures SET ('execution.flush.max-interval' = '30 seconds');

-- FLUSH FLOW writes what is buffered now, and does not wait for what has not been read yet.
FLUSH FLOW temperatures;

-- A stopped flow stays stopped, also when this process ends and another one starts, until it is started again. Nothing is lost
-- meanwhile: it resumes where it was.
STOP FLOW temperatures;
INSERT INTO readings VALUES ('cellar', 12.0), ('attic', 25.0);
START FLOW temperatures;
WAIT FLOW temperatures;
SELECT * FROM temperatures ORDER BY sensor;

-- The flow goes, the table stays.
DROP FLOW temperatures;
SELECT count(*) AS sensors FROM temperatures;
