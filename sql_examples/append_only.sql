-- A flow without an aggregate: rows are appended.
--
-- A filter or a projection has no row to bring up to date, so there is nothing to buffer: each micro-batch is one commit, and each
-- row arrives exactly once, whatever happens to the process. EXPLAIN says so before anything runs.

DROP FLOW IF EXISTS server_errors;
CREATE OR REPLACE TABLE requests (at TIMESTAMP, path STRING, status INT, millis INT) USING delta;

INSERT INTO requests VALUES
  (TIMESTAMP '2024-05-01 09:00:00', '/', 200, 12),
  (TIMESTAMP '2024-05-01 09:00:01', '/search', 500, 2300),
  (TIMESTAMP '2024-05-01 09:00:02', '/cart', 503, 40);

CREATE OR REPLACE TABLE owners (path STRING, team STRING) USING delta;
INSERT INTO owners VALUES ('/search', 'discovery'), ('/cart', 'checkout');

EXPLAIN CREATE STREAMING TABLE server_errors
AS SELECT at, path, status FROM STREAM requests WHERE status >= 500;

-- A stream may be joined with an ordinary table, which is read as it is when a micro-batch runs.
CREATE OR REPLACE STREAMING TABLE server_errors
AS SELECT r.at, r.path, r.status, r.millis / 1000 AS seconds, o.team
FROM STREAM requests AS r LEFT JOIN owners AS o ON r.path = o.path
WHERE r.status >= 500;

WAIT FLOW server_errors;
INSERT INTO requests VALUES (TIMESTAMP '2024-05-01 09:01:00', '/cart', 500, 15), (TIMESTAMP '2024-05-01 09:01:01', '/', 204, 3);
WAIT FLOW server_errors;

SELECT * FROM server_errors ORDER BY at;
