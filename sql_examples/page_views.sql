-- A streaming table: the main job.
--
-- Events go into an ordinary Delta table. A streaming table counts them per page and stays up to date by itself.

-- So that this file can be run again: the flow goes before the table that it reads.
DROP FLOW IF EXISTS page_views;

CREATE OR REPLACE TABLE page_view_events (page STRING, user_id BIGINT, seconds DOUBLE) USING delta;

INSERT INTO page_view_events VALUES
  ('home', 1, 3.5), ('home', 2, 12.0), ('docs', 1, 240.0), ('home', 3, 1.0), ('docs', 3, 61.5), ('blog', 2, 90.0);

-- STREAM reads what is in the table and whatever arrives later. Without a flush interval each micro-batch would be one commit on
-- page_views; with one, changed rows wait in a buffer for up to two minutes, the newest row of a page replacing the older one,
-- and are then merged in a single commit.
CREATE OR REPLACE STREAMING TABLE page_views
COMMENT 'Views and reading time per page'
TBLPROPERTIES ('execution.flush.max-interval' = '2 minutes')
AS SELECT
  page,
  count(*) AS views,
  round(avg(seconds), 1) AS avg_seconds,
  max(seconds) AS longest
FROM STREAM page_view_events
GROUP BY page;

-- The statement above returns at once, and the flow runs in the background. WAIT FLOW returns when all that has arrived is in the table.
WAIT FLOW page_views;

SELECT * FROM page_views ORDER BY views DESC, page;

-- New events reach the table without any further statement.
INSERT INTO page_view_events VALUES ('blog', 4, 30.0), ('blog', 5, 45.0), ('blog', 6, 15.0);
WAIT FLOW page_views;

SELECT * FROM page_views ORDER BY views DESC, page;
