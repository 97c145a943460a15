SELECT P.id, P.name, P.starttime
FROM (
  SELECT id, name, window(dateTime, '10 seconds').start AS starttime FROM {person}
  GROUP BY id, name, window(dateTime, '10 seconds')
) AS P
JOIN (
  SELECT seller, window(dateTime, '10 seconds').start AS starttime FROM {auction}
  GROUP BY seller, window(dateTime, '10 seconds')
) AS A ON P.id = A.seller AND P.starttime = A.starttime
