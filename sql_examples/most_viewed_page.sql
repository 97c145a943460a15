-- The most-viewed page, once every two minutes: FLIP-365's own example.
--
-- ORDER BY and LIMIT need all groups at once, which no streaming query has. So the counts are kept in a table of the flow's own,
-- and at each flush the rest of the query runs over that table and replaces the rows of the target.

-- So that this file can be run again: the flow goes before the table that it reads.
DROP FLOW IF EXISTS most_viewed_page;

CREATE OR REPLACE TABLE page_hits (page STRING, user_id BIGINT) USING delta;

INSERT INTO page_hits VALUES ('home', 1), ('docs', 1), ('home', 2), ('blog', 3), ('docs', 3), ('docs', 4);

CREATE OR REPLACE STREAMING TABLE most_viewed_page
TBLPROPERTIES ('execution.flush.max-interval' = '2 minutes')
AS SELECT page, count(*) AS views
FROM STREAM page_hits
GROUP BY page
ORDER BY views DESC, page
LIMIT 1;

WAIT FLOW most_viewed_page;

SELECT * FROM most_viewed_page;

-- Another page takes the lead; the row of the first one leaves.
INSERT INTO page_hits VALUES ('blog', 1), ('blog', 2), ('blog', 4);
WAIT FLOW most_viewed_page;

SELECT * FROM most_viewed_page;
