-- +goose Up

CREATE TABLE counter_events (
	scope           text NOT NULL,
	idempotency_key text NOT NULL,
	counter         text NOT NULL,
	delta           integer NOT NULL CHECK (delta > 0),
	recorded_at     text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
	PRIMARY KEY (scope, idempotency_key, counter)
) STRICT, WITHOUT ROWID;

-- total is the sum of the counter's events. STRICT keeps it an integer.
CREATE TABLE counters (
	name  text PRIMARY KEY NOT NULL,
	total integer NOT NULL CHECK (total > 0)
) STRICT, WITHOUT ROWID;
