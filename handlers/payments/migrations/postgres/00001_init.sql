-- +goose Up

-- Balances and amounts are in minor units of the currency.
CREATE TABLE accounts (
	id              text COLLATE "C" PRIMARY KEY,
	currency        text NOT NULL,
	kind            text NOT NULL CHECK (kind IN ('customer', 'external', 'equity')),
	balance         bigint NOT NULL,
	opening_balance bigint NOT NULL,
	scope           text COLLATE "C" NOT NULL,
	idempotency_key text COLLATE "C" NOT NULL,
	created_at      timestamptz NOT NULL DEFAULT now(),
	CHECK (kind <> 'customer' OR balance >= 0)
);

CREATE TABLE payments (
	payment_id      text COLLATE "C" PRIMARY KEY,
	scope           text COLLATE "C" NOT NULL,
	idempotency_key text COLLATE "C" NOT NULL,
	from_account    text COLLATE "C" NOT NULL,
	to_account      text COLLATE "C" NOT NULL,
	amount          bigint NOT NULL CHECK (amount > 0),
	currency        text NOT NULL,
	status          text NOT NULL CHECK (status IN ('completed', 'declined')),
	reason          text NOT NULL DEFAULT '',
	created_at      timestamptz NOT NULL DEFAULT now()
);

-- Double entry: the entries of one payment, or of one opening, sum to zero.
CREATE TABLE ledger_entries (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payment_id text COLLATE "C" REFERENCES payments (payment_id),
	opening_of text COLLATE "C" REFERENCES accounts (id),
	account    text COLLATE "C" NOT NULL REFERENCES accounts (id),
	amount     bigint NOT NULL CHECK (amount <> 0),
	currency   text NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(),
	CHECK ((payment_id IS NULL) <> (opening_of IS NULL))
);

CREATE UNIQUE INDEX ledger_entries_payment ON ledger_entries (account, payment_id);
CREATE UNIQUE INDEX ledger_entries_opening ON ledger_entries (opening_of, account) WHERE opening_of IS NOT NULL;
