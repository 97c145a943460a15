-- Every statement of sqlext, as each kind of client runs it, each in a database of its own. Behind `-->` stands what it answers, a
-- row a line (beeline joins the lines of one value); `...` is any text. The sums are worked out by hand from the two INSERTs.
CREATE TABLE orders (customer STRING, amount INT) USING delta;
INSERT INTO orders VALUES ('ann', 3), ('bob', 4), ('ann', 5);

-- Flows.
EXPLAIN CREATE STREAMING TABLE spent AS SELECT customer, sum(amount) AS amount FROM STREAM orders GROUP BY customer;
--> == Job graph ==...Sink spent [upsert by customer]...+- Aggregate key: customer; customer, sum(amount) AS amount [is_output_idempotent]...
CREATE STREAMING TABLE spent TBLPROPERTIES ('execution.flush.max-interval' = '1 hour')
AS SELECT customer, sum(amount) AS amount FROM STREAM orders GROUP BY customer;
--> flow spent (<id>) started into spark_catalog.<database>.spent
WAIT FLOW spent TIMEOUT 5 minutes;
--> flow spent is up to date
SELECT * FROM spent ORDER BY customer;
--> ann | 8
--> bob | 4
SHOW FLOWS;
--> spent | streaming table | spark_catalog.<database>.spent | RUNNING | live | ... | 0 | bytes | ... | 3 | ... | 0 | ...
DESCRIBE FLOW spent;
--> name | spent
--> kind | streaming table
--> target | spark_catalog.<database>.spent
--> status | RUNNING
--> ...
ALTER FLOW spent SET ('execution.flush.max-interval' = '2 hours');
--> flow spent altered: execution.flush.max-interval
FLUSH FLOW spent;
--> flow spent flushed
STOP FLOW spent;
--> flow spent stopped
INSERT INTO orders VALUES ('cem', 7);
START FLOW spent;
--> flow spent (<id>) started
WAIT FLOW spent TIMEOUT 5 minutes;
--> flow spent is up to date
SELECT * FROM spent ORDER BY customer;
--> ann | 8
--> bob | 4
--> cem | 7
ALTER FLOW spent AS SELECT customer, max(amount) AS largest, sum(amount) AS amount FROM STREAM orders GROUP BY customer;
--> flow spent (<id>) altered: `largest` added, computed over the history
SELECT * FROM spent ORDER BY customer;
--> ann | 5 | 8
--> bob | 4 | 4
--> cem | 7 | 7
CREATE TABLE large_orders (customer STRING, amount INT) USING delta;
CREATE FLOW large AS INSERT INTO large_orders SELECT customer, amount FROM STREAM orders WHERE amount > 4;
--> flow large (<id>) started into spark_catalog.<database>.large_orders
WAIT FLOW large TIMEOUT 5 minutes;
--> flow large is up to date
SELECT * FROM large_orders ORDER BY amount;
--> ann | 5
--> cem | 7
DROP FLOW large;
--> flow large dropped; its target spark_catalog.<database>.large_orders stays

-- What arrives: constraints, several flows, changes, streams with names, savepoints.
CREATE TABLE lines (id INT, amount STRING) USING delta;
INSERT INTO lines VALUES (1, '3'), (2, 'x'), (3, '-4');
CREATE STREAMING TABLE amounts (
  CONSTRAINT readable EXPECT (NO ERROR) ON VIOLATION QUARANTINE INTO unreadable,
  CONSTRAINT positive EXPECT (amount > 0) ON VIOLATION DROP ROW
) AS SELECT id, CAST(amount AS INT) AS amount FROM STREAM lines IDENTIFIED BY lines;
--> flow amounts (<id>) started into spark_catalog.<database>.amounts
WAIT FLOW amounts TIMEOUT 5 minutes;
--> flow amounts is up to date
SELECT id, amount, _constraints[0], _input FROM unreadable;
--> 2 | NULL | readable | {"id":2,"amount":"x"}
UPDATE unreadable SET amount = 5, _input = NULL;
--> 1
REPLAY QUARANTINE unreadable WHERE id = 2;
--> ...1 row...
CREATE TABLE older USING delta AS SELECT 9 AS id, 90 AS amount;
CREATE FLOW past AS INSERT INTO ONCE amounts SELECT id, amount FROM older;
--> flow past (<id>) started into spark_catalog.<database>.amounts...
WAIT FLOW past TIMEOUT 5 minutes;
--> flow past is ...
SELECT * FROM amounts ORDER BY id;
--> 1 | 3
--> 2 | 5
--> 9 | 90
CREATE TABLE more_lines (id INT, amount STRING) USING delta;
INSERT INTO more_lines VALUES (4, '8');
ALTER FLOW amounts AS SELECT id, CAST(amount AS INT) AS amount FROM STREAM lines IDENTIFIED BY lines
UNION ALL SELECT id, CAST(amount AS INT) FROM STREAM more_lines IDENTIFIED BY more;
--> flow amounts (<id>) altered: the added stream `more` is read from its beginning, and the others on from where they are
WAIT FLOW amounts TIMEOUT 5 minutes;
--> flow amounts is up to date
SELECT count(*), sum(amount) FROM amounts;
--> 4 | 106
CREATE TABLE customer_changes (op STRING, at INT, id INT, name STRING) USING delta;
INSERT INTO customer_changes VALUES ('I', 1, 1, 'ann'), ('I', 2, 2, 'bob'), ('U', 3, 1, 'anna'), ('D', 4, 2, NULL);
CREATE STREAMING TABLE customers FLOW AUTO CDC FROM STREAM customer_changes KEYS (id) APPLY AS DELETE WHEN op = 'D'
SEQUENCE BY at COLUMNS * EXCEPT (op, at);
--> flow customers (<id>) started into spark_catalog.<database>.customers...
WAIT FLOW customers TIMEOUT 5 minutes;
--> flow customers is up to date
SELECT * FROM customers;
--> 1 | anna
SAVEPOINT FLOW customers AS before;
--> ...before...
INSERT INTO customer_changes VALUES ('I', 5, 3, 'cem');
WAIT FLOW customers TIMEOUT 5 minutes;
--> flow customers is up to date
SHOW SAVEPOINTS;
--> ...before...
RESTORE FLOW customers TO before;
--> ...before...
WAIT FLOW customers TIMEOUT 5 minutes;
--> flow customers is up to date
SELECT * FROM customers ORDER BY id;
--> 1 | anna
--> 3 | cem
DROP SAVEPOINT before ON FLOW customers;
--> ...before...
CREATE STREAMING TABLE recent TBLPROPERTIES ('table.exec.state.ttl' = '7 days')
AS SELECT id, count(*) AS changes FROM STREAM customer_changes GROUP BY id;
--> flow recent (<id>) started into spark_catalog.<database>.recent...
WAIT FLOW recent TIMEOUT 5 minutes;
--> flow recent is up to date
SELECT * FROM recent ORDER BY id;
--> 1 | 2
--> 2 | 2
--> 3 | 1
DROP STREAMING TABLE recent;
--> ...recent...
DROP STREAMING TABLE customers;
--> ...customers...
DROP FLOW past;
--> ...past...
DROP STREAMING TABLE amounts;
--> ...amounts...

-- Bounded queries and jobs.
SELECT customer, count(*) AS orders FROM STREAM orders GROUP BY customer GLOBAL WINDOW END OF STREAM ORDER BY customer;
--> ann | 2
--> bob | 1
--> cem | 1
CREATE TABLE totals USING delta AS
SELECT customer, sum(amount) AS total FROM STREAM orders GROUP BY customer GLOBAL WINDOW END OF STREAM;
--> job <id> finished into totals, 3 rows, <seconds>
SET execution.batch.job-recovery.enabled = true;
--> execution.batch.job-recovery.enabled | true
INSERT INTO totals SELECT 'all', sum(amount) FROM STREAM orders GLOBAL WINDOW END OF STREAM;
--> job <id> finished into spark_catalog.<database>.totals, ...
SELECT * FROM totals ORDER BY total;
--> bob | 4
--> cem | 7
--> ann | 8
--> all | 19
SHOW JOBS;
--> <id> | FINISHED | spark_catalog.<database>.totals | ...

-- Partitions.
SHOW PARTITION FUNCTIONS;
--> ...
SELECT * FROM sort_partition(TABLE(totals) WITH SINGLE PARTITION ORDER BY total DESC);
--> all | 19
--> ann | 8
--> cem | 7
--> bob | 4

-- What is refused.
STOP FLOW nobody;
--> ERROR There is no flow `nobody` in spark_catalog.<database>. SHOW FLOWS lists them.
SHOW JOB EVENTS none;
--> ERROR There is no job `none`...
RESUME JOB none;
--> ERROR There is no job `none`...
CANCEL JOB none;
--> ERROR There is no job `none`...
ALTER FLOW spent AS SELECT customer, sum(amount) AS amount FROM STREAM orders WHERE amount > 4 GROUP BY customer;
--> ERROR The query of flow `spent` cannot be changed in place: WHERE differs, ...
CREATE STREAMING TABLE bad TBLPROPERTIES ('execution.flush.max-intervall' = '1 hour') AS SELECT count(*) AS n FROM STREAM orders;
--> ERROR sqlext has no option `execution.flush.max-intervall`. Did you mean `execution.flush.max-interval`? (line 1, pos 76)...
INSERT INTO totals SELECT /*+ FLUSH_INTERVALL('1 hour') */ customer, sum(amount) FROM STREAM orders GROUP BY customer;
--> ERROR There is no hint `FLUSH_INTERVALL`. Did you mean `FLUSH_INTERVAL`? ...(line 1, pos 30)...
CREATE STREAMING TABLE bad AS SELECT customer, sum(amont) AS amount FROM STREAM orders GROUP BY customer;
--> ERROR [UNRESOLVED_COLUMN.WITH_SUGGESTION] ...`amont`...
CREATE TABLE bad AS SELECT customer FROM STREAM orders;
--> ERROR CREATE TABLE .. AS ends, a stream does not. ...
CREATE STREAMING;
--> ERROR [PARSE_SYNTAX_ERROR] Syntax error at or near end of input. SQLSTATE: 42601 (line ...
SELECT * FROM nowhere;
--> ERROR [TABLE_OR_VIEW_NOT_FOUND] The table or view `nowhere` cannot be found. ...
DROP FLOW boom;
--> ERROR sqlext failed on this statement (RuntimeError: no file notes.txt). Please report it.
SELECT divide_by_zero(amount) FROM orders;
--> ERROR ...ZeroDivisionError: integer division or modulo by zero...

DROP FLOW spent;
--> flow spent dropped; its target spark_catalog.<database>.spent stays
DROP FLOW IF EXISTS spent;
--> there is no flow spark_catalog.<database>.spent
