-- +goose Up

-- The letters that were sent. recipient is personal data: it is the record of what was sent to whom.
CREATE TABLE letters (
	message_id      text PRIMARY KEY NOT NULL,
	scope           text NOT NULL,
	idempotency_key text NOT NULL,
	topic           text NOT NULL,
	recipient       text NOT NULL,
	subject         text NOT NULL,
	reply           text NOT NULL DEFAULT '',
	sent_at         text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

CREATE INDEX letters_key ON letters (idempotency_key);
