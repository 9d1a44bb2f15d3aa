-- +goose Up

CREATE TABLE counter_events (
	scope           text COLLATE "C" NOT NULL,
	idempotency_key text COLLATE "C" NOT NULL,
	counter         text COLLATE "C" NOT NULL,
	delta           bigint NOT NULL CHECK (delta > 0),
	recorded_at     timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (scope, idempotency_key, counter)
);

-- total is the sum of the counter's events. A low fill factor lets the updates of a busy row stay on its page.
CREATE TABLE counters (
	name  text COLLATE "C" PRIMARY KEY,
	total bigint NOT NULL CHECK (total > 0)
) WITH (fillfactor = 50);
