-- A hybrid source: the history from one table, what comes after it from another, each row once.
--
-- The archive holds the readings up to some moment; the live table begins a little before it, so the two overlap. `on` names the
-- column that tells them apart: of the live table only readings count that are later than all of the archive.

DROP FLOW IF EXISTS readings_per_sensor;
CREATE OR REPLACE TABLE archived_readings (sensor STRING, celsius DOUBLE, at TIMESTAMP) USING delta;
CREATE OR REPLACE TABLE live_readings (sensor STRING, celsius DOUBLE, at TIMESTAMP) USING delta;

INSERT INTO archived_readings VALUES
  ('roof', 20.0, TIMESTAMP '2024-05-01 09:00:00'), ('cellar', 11.0, TIMESTAMP '2024-05-01 09:00:00'),
  ('roof', 22.0, TIMESTAMP '2024-05-01 10:00:00');
INSERT INTO live_readings VALUES
  ('roof', 22.0, TIMESTAMP '2024-05-01 10:00:00'), ('attic', 31.0, TIMESTAMP '2024-05-01 11:00:00');

CREATE OR REPLACE STREAMING TABLE readings_per_sensor
AS SELECT r.sensor, count(*) AS readings, max(r.celsius) AS hottest
FROM STREAM hybrid(TABLE archived_readings, STREAM live_readings, on => at) AS r
GROUP BY r.sensor;

WAIT FLOW readings_per_sensor;
SELECT * FROM readings_per_sensor ORDER BY sensor;

INSERT INTO live_readings VALUES ('cellar', 12.5, TIMESTAMP '2024-05-01 12:00:00');
WAIT FLOW readings_per_sensor;
SELECT * FROM readings_per_sensor ORDER BY sensor;
