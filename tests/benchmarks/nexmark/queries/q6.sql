SELECT Q.id, Q.seller,
  avg(Q.final) OVER (PARTITION BY Q.seller ORDER BY Q.at, Q.id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS price
FROM (
  SELECT A.id, A.seller, max(B.price) AS final, max_by(B.dateTime, struct(B.price, B.dateTime)) AS at
  FROM {auction} AS A, {bid} AS B
  WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  GROUP BY A.id, A.seller
) AS Q
