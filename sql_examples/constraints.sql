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

-- Amounts that are no numbers are put aside with what they were, and brought back when they are corrected.
DROP FLOW IF EXISTS paid;
DROP TABLE IF EXISTS unreadable;
CREATE OR REPLACE TABLE payment_lines (id INT, amount STRING) USING delta;

INSERT INTO payment_lines VALUES (1, '10.00'), (2, '12,50'), (3, '8');

CREATE OR REPLACE STREAMING TABLE paid (
  CONSTRAINT readable EXPECT (NO ERROR) ON VIOLATION QUARANTINE INTO unreadable
) AS SELECT id, CAST(amount AS DECIMAL(9, 2)) AS amount FROM STREAM payment_lines;

WAIT FLOW paid;
SELECT id, amount, _input FROM unreadable;

UPDATE unreadable SET amount = 12.50, _input = NULL WHERE id = 2;
REPLAY QUARANTINE unreadable;
SELECT * FROM paid ORDER BY id;
