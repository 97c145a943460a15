WITH CountBids AS (
  SELECT auction, count(*) AS num, window(dateTime, '10 seconds', '2 seconds').start AS starttime
  FROM {bid}
  GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')
)
SELECT AuctionBids.starttime, AuctionBids.auction, AuctionBids.num
FROM CountBids AS AuctionBids
JOIN (SELECT max(num) AS maxn, starttime FROM CountBids GROUP BY starttime) AS MaxBids
  ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.num >= MaxBids.maxn
