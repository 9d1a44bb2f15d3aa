-- +goose Up

-- The letters that were sent. recipient is personal data: it is the record of what was sent to whom.
CREATE TABLE letters (
	message_id      text COLLATE "C" PRIMARY KEY,
	scope           text COLLATE "C" NOT NULL,
	idempotency_key text COLLATE "C" NOT NULL,
	topic           text NOT NULL,
	recipient       text NOT NULL,
	subject         text NOT NULL,
	reply           text NOT NULL DEFAULT '',
	sent_at         timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX letters_key ON letters (idempotency_key);
