-- count(DISTINCT ..) over a stream.
--
-- Spark's streaming refuses DISTINCT aggregates. sqlext keeps the values that each group has seen, as rows of a table of the flow's
-- own, and adds the new ones. They grow with the number of different values; where a few percent are good enough,
-- approx_count_distinct costs far less.

DROP FLOW IF EXISTS visitors_per_page;
CREATE OR REPLACE TABLE visits (page STRING, visitor STRING) USING delta;
INSERT INTO visits VALUES ('home', 'ann'), ('home', 'bob'), ('home', 'ann'), ('docs', 'ann'), ('docs', NULL);

-- OR REFRESH keeps an existing table and its flow; OR REPLACE recomputes it from all that the stream holds.
CREATE OR REPLACE STREAMING TABLE visitors_per_page
TBLPROPERTIES ('execution.flush.max-interval' = '1 minute')
AS SELECT
  page,
  count(*) AS visits,
  count(DISTINCT visitor) AS visitors,
  approx_count_distinct(visitor) AS roughly
FROM STREAM visits
GROUP BY page;

WAIT FLOW visitors_per_page;
SELECT * FROM visitors_per_page ORDER BY page;

-- Ann again, and somebody new.
INSERT INTO visits VALUES ('docs', 'ann'), ('docs', 'cid'), ('blog', 'bob');
WAIT FLOW visitors_per_page;
SELECT * FROM visitors_per_page ORDER BY page;
