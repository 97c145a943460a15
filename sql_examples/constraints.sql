-- Rows that must hold something: payments without an account are dropped, those that are not positive are put aside, corrected
-- and brought back.

DROP FLOW IF EXISTS payments;
DROP TABLE IF EXISTS bad_payments;
CREATE OR REPLACE TABLE payment_events (account INT, amount DECIMAL(9, 2), currency STRING) USING delta;

INSERT INTO payment_events VALUES (1, 10.00, 'EUR'), (NULL, 5.00, 'EUR'), (2, -7.50, 'USD'), (3, 0.00, 'EUR'), (4, 1.00, 'XYZ');

CREATE OR REPLACE STREAMING TABLE payments (
  CONSTRAINT has_account EXPECT (account IS NOT NULL) ON VIOLATION DROP ROW,
  CONSTRAINT positive EXPECT (amount > 0) ON VIOLATION QUARANTINE INTO bad_payments,
  CONSTRAINT known_currency EXPECT (currency IN ('EUR', 'USD'))
) AS SELECT account, amount, currency FROM STREAM payment_events;

WAIT FLOW payments;
SELECT * FROM payments ORDER BY account;
SELECT account, amount, _constraints FROM bad_payments ORDER BY account;

UPDATE bad_payments SET amount = -amount WHERE amount < 0;
REPLAY QUARANTINE bad_payments;
SELECT * FROM payments ORDER BY account;
