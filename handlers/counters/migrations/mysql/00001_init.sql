-- +goose NO TRANSACTION
-- +goose Up

-- DDL commits by itself, so every statement can be run again after a crash.
CREATE TABLE IF NOT EXISTS counter_events (
	scope           varbinary(1024) NOT NULL,
	idempotency_key varbinary(255) NOT NULL,
	counter         varbinary(1024) NOT NULL,
	delta           bigint NOT NULL CHECK (delta > 0),
	recorded_at     datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
	PRIMARY KEY (scope, idempotency_key, counter)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;

-- total is the sum of the counter's events. It is zero only within the transaction that makes the row.
CREATE TABLE IF NOT EXISTS counters (
	name  varbinary(1024) PRIMARY KEY,
	total bigint NOT NULL CHECK (total >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;
