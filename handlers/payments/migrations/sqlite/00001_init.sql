-- +goose Up

-- Balances and amounts are in minor units of the currency. STRICT keeps them integers: without it SQLite
-- turns a sum that overflows into a float.
CREATE TABLE accounts (
	id              text PRIMARY KEY NOT NULL,
	currency        text NOT NULL,
	kind            text NOT NULL CHECK (kind IN ('customer', 'external', 'equity')),
	balance         integer NOT NULL,
	opening_balance integer NOT NULL,
	scope           text NOT NULL,
	idempotency_key text NOT NULL,
	created_at      text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
	CHECK (kind <> 'customer' OR balance >= 0)
) STRICT;

CREATE TABLE payments (
	payment_id      text PRIMARY KEY NOT NULL,
	scope           text NOT NULL,
	idempotency_key text NOT NULL,
	from_account    text NOT NULL,
	to_account      text NOT NULL,
	amount          integer NOT NULL CHECK (amount > 0),
	currency        text NOT NULL,
	status          text NOT NULL CHECK (status IN ('completed', 'declined')),
	reason          text NOT NULL DEFAULT '',
	created_at      text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

-- Double entry: the entries of one payment, or of one opening, sum to zero.
CREATE TABLE ledger_entries (
	id         integer PRIMARY KEY,
	payment_id text REFERENCES payments (payment_id),
	opening_of text REFERENCES accounts (id),
	account    text NOT NULL REFERENCES accounts (id),
	amount     integer NOT NULL CHECK (amount <> 0),
	currency   text NOT NULL,
	created_at text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
	CHECK ((payment_id IS NULL) <> (opening_of IS NULL))
) STRICT;

CREATE UNIQUE INDEX ledger_entries_payment ON ledger_entries (account, payment_id);
CREATE UNIQUE INDEX ledger_entries_opening ON ledger_entries (opening_of, account) WHERE opening_of IS NOT NULL;
