SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
FROM {bid} AS B JOIN side_input AS S ON mod(B.auction, 10000) = S.key
