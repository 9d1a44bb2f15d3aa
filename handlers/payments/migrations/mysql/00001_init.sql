-- +goose NO TRANSACTION
-- +goose Up

-- DDL commits by itself, so every statement can be run again after a crash.
-- Balances and amounts are in minor units of the currency. Ids are binary: they are compared byte by byte.
CREATE TABLE IF NOT EXISTS accounts (
	id              varbinary(255) PRIMARY KEY,
	currency        varbinary(3) NOT NULL,
	kind            varbinary(20) NOT NULL CHECK (kind IN ('customer', 'external', 'equity')),
	balance         bigint NOT NULL,
	opening_balance bigint NOT NULL,
	scope           varbinary(1024) NOT NULL,
	idempotency_key varbinary(255) NOT NULL,
	created_at      datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
	CONSTRAINT accounts_funds CHECK (kind <> 'customer' OR balance >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS payments (
	payment_id      varbinary(255) PRIMARY KEY,
	scope           varbinary(1024) NOT NULL,
	idempotency_key varbinary(255) NOT NULL,
	from_account    varbinary(255) NOT NULL,
	to_account      varbinary(255) NOT NULL,
	amount          bigint NOT NULL CHECK (amount > 0),
	currency        varbinary(3) NOT NULL,
	status          varbinary(20) NOT NULL CHECK (status IN ('completed', 'declined')),
	reason          varbinary(255) NOT NULL DEFAULT '',
	created_at      datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;

-- Double entry: the entries of one payment, or of one opening, sum to zero.
CREATE TABLE IF NOT EXISTS ledger_entries (
	id         bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
	payment_id varbinary(255),
	opening_of varbinary(255),
	account    varbinary(255) NOT NULL,
	amount     bigint NOT NULL CHECK (amount <> 0),
	currency   varbinary(3) NOT NULL,
	created_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
	CONSTRAINT ledger_entries_origin CHECK ((payment_id IS NULL) <> (opening_of IS NULL)),
	CONSTRAINT ledger_entries_of_payment FOREIGN KEY (payment_id) REFERENCES payments (payment_id),
	CONSTRAINT ledger_entries_of_opening FOREIGN KEY (opening_of) REFERENCES accounts (id),
	CONSTRAINT ledger_entries_of_account FOREIGN KEY (account) REFERENCES accounts (id),
	UNIQUE KEY ledger_entries_payment (account, payment_id),
	UNIQUE KEY ledger_entries_opening (opening_of, account)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;
