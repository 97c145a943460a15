SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra
FROM {bid} AS B
JOIN (
  SELECT max(price) AS maxprice, window(dateTime, '10 seconds').end AS endtime
  FROM {bid}
  GROUP BY window(dateTime, '10 seconds')
) AS B1 ON B.price = B1.maxprice
WHERE B.dateTime BETWEEN B1.endtime - INTERVAL 10 SECONDS AND B1.endtime
