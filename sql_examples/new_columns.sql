-- Files with new fields: the table gets columns as deliveries have more fields.
--
-- The second delivery has a field that the first one did not have, and one inside of a struct. With `add columns` the flow sees
-- that before it takes the files in, adds both to its table, and reads the files with them.

DROP FLOW IF EXISTS parcels;
INSERT OVERWRITE DIRECTORY '/tmp/sqlext-example/parcels/1' USING json
SELECT * FROM VALUES (1, named_struct('city', 'Rome')), (2, named_struct('city', 'Oslo')) AS p(id, receiver);
INSERT OVERWRITE DIRECTORY '/tmp/sqlext-example/parcels/2' USING json
SELECT 0 AS id WHERE false;

CREATE OR REPLACE STREAMING TABLE parcels
TBLPROPERTIES ('schema-evolution' = 'add columns')
AS SELECT * FROM STREAM read_files('/tmp/sqlext-example/parcels/*', format => 'json');

WAIT FLOW parcels;
SELECT * FROM parcels ORDER BY id;

INSERT OVERWRITE DIRECTORY '/tmp/sqlext-example/parcels/2' USING json
SELECT * FROM VALUES (3, named_struct('city', 'Bern', 'zip', '3011'), 2.5), (4, named_struct('city', 'Lyon', 'zip', NULL), NULL)
AS p(id, receiver, weight);

WAIT FLOW parcels;
SELECT id, receiver.city, receiver.zip, weight FROM parcels ORDER BY id;
