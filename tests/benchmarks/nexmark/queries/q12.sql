SELECT B.bidder, count(*) AS bid_count, window(B.at, '10 seconds').start AS starttime
FROM (SELECT *, current_timestamp() AS at FROM {bid}) AS B
GROUP BY B.bidder, window(B.at, '10 seconds')
