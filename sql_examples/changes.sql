-- Changes from a database: customers as they are now, and as they were.
--
-- The rows of `customer_changes` come as a database's log brings them: late ones, some twice, a deletion. Of each customer the
-- change with the highest `lsn` counts, and the history has a row for each version.

DROP FLOW IF EXISTS customers;
DROP FLOW IF EXISTS customer_versions;
CREATE OR REPLACE TABLE customer_changes (op STRING, lsn BIGINT, id INT, name STRING, city STRING) USING delta;

INSERT INTO customer_changes VALUES ('I', 1, 1, 'Ann', 'Rome'), ('I', 2, 2, 'Bo', 'Oslo'), ('U', 5, 1, 'Ann', 'Bern');

CREATE OR REPLACE STREAMING TABLE customers
FLOW AUTO CDC FROM STREAM customer_changes
KEYS (id)
APPLY AS DELETE WHEN op = 'D'
SEQUENCE BY lsn
COLUMNS * EXCEPT (op, lsn);

CREATE OR REPLACE STREAMING TABLE customer_versions
FLOW AUTO CDC FROM STREAM customer_changes
KEYS (id)
APPLY AS DELETE WHEN op = 'D'
SEQUENCE BY lsn
COLUMNS * EXCEPT (op, lsn)
STORED AS SCD TYPE 2;

WAIT FLOW customers;
SELECT * FROM customers ORDER BY id;

-- Bo is gone, and was in Lima before that; what is said of Ann is older than what the table has, or came before.
INSERT INTO customer_changes VALUES
  ('D', 7, 2, NULL, NULL), ('U', 4, 2, 'Bo', 'Lima'), ('U', 3, 1, 'Anna', 'Rome'), ('U', 5, 1, 'Ann', 'Bern');

WAIT FLOW customers;
SELECT * FROM customers ORDER BY id;

WAIT FLOW customer_versions;
SELECT * FROM customer_versions ORDER BY id, __START_AT;
