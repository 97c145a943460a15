SELECT B.bidder, count(*) AS bid_count, session_window(B.dateTime, '10 seconds').start AS starttime,
  session_window(B.dateTime, '10 seconds').end AS endtime
FROM {bid} AS B
GROUP BY B.bidder, session_window(B.dateTime, '10 seconds')
