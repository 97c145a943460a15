-- Several flows into one table: events of two applications as they come, and those of the past, once.

DROP FLOW IF EXISTS past_events;
DROP FLOW IF EXISTS web_events;
DROP FLOW IF EXISTS events;
CREATE OR REPLACE TABLE app_stream (id INT, text STRING) USING delta;
CREATE OR REPLACE TABLE web_stream (id INT, text STRING) USING delta;
CREATE OR REPLACE TABLE archive (id INT, text STRING) USING delta;

INSERT INTO app_stream VALUES (10, 'start'), (11, 'tap');
INSERT INTO web_stream VALUES (20, 'open');
INSERT INTO archive VALUES (1, 'start'), (2, 'tap');

CREATE OR REPLACE STREAMING TABLE events AS SELECT id, 'app' AS origin, text FROM STREAM app_stream;
CREATE FLOW web_events AS INSERT INTO events BY NAME SELECT id, 'web' AS origin, text FROM STREAM web_stream;
CREATE FLOW past_events AS INSERT INTO ONCE events BY NAME SELECT id, 'past' AS origin, text FROM archive;

INSERT INTO web_stream VALUES (21, 'click');

WAIT FLOW events;
WAIT FLOW web_events;
WAIT FLOW past_events;
INSERT INTO archive VALUES (3, 'too late');
SELECT origin, id, text FROM events ORDER BY id;
