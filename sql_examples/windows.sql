-- Counts in windows of event time, with a watermark.
--
-- WATERMARK says how late an event may be: once an event of 12:30 has been seen, DELAY OF 10 MINUTES closes all windows that end
-- at 12:20 or before. Their groups leave the state, so that it does not grow for ever; their rows stay in the table.

DROP FLOW IF EXISTS clicks_per_window;
CREATE OR REPLACE TABLE clicks (page STRING, at TIMESTAMP) USING delta;

INSERT INTO clicks VALUES
  ('home', TIMESTAMP '2024-05-01 12:01:00'),
  ('home', TIMESTAMP '2024-05-01 12:04:00'),
  ('docs', TIMESTAMP '2024-05-01 12:09:59'),
  ('home', TIMESTAMP '2024-05-01 12:10:00');

-- A window is a struct; its start (or its end) is enough of a key for the target.
CREATE OR REPLACE STREAMING TABLE clicks_per_window
TBLPROPERTIES ('execution.flush.max-interval' = '1 minute')
AS SELECT
  window.start AS from_time,
  window.end AS to_time,
  page,
  count(*) AS clicks
FROM STREAM clicks WATERMARK at DELAY OF INTERVAL 10 MINUTES
GROUP BY window(at, '10 minutes'), page;

WAIT FLOW clicks_per_window;
SELECT * FROM clicks_per_window ORDER BY from_time, page;

-- An event of 12:40 moves the watermark to 12:30 ...
INSERT INTO clicks VALUES ('docs', TIMESTAMP '2024-05-01 12:40:00');
WAIT FLOW clicks_per_window;

-- ... so that an event of 12:05 is too late and is not counted, while one of 12:35 is.
INSERT INTO clicks VALUES ('home', TIMESTAMP '2024-05-01 12:05:00'), ('home', TIMESTAMP '2024-05-01 12:35:00');
WAIT FLOW clicks_per_window;
SELECT * FROM clicks_per_window ORDER BY from_time, page;
