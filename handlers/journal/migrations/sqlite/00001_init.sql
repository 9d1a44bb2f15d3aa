-- +goose Up

CREATE TABLE journal_entries (
	id              integer PRIMARY KEY AUTOINCREMENT,
	scope           text NOT NULL,
	idempotency_key text NOT NULL,
	topic           text NOT NULL,
	message_uuid    text NOT NULL,
	payload         blob NOT NULL,
	recorded_at     text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
	UNIQUE (scope, idempotency_key)
) STRICT;

-- REPLACE removes the old row without running the trigger for DELETE, so it must not get that far. A second
-- entry for a key is left out, as by ON CONFLICT DO NOTHING.
-- +goose StatementBegin
CREATE TRIGGER journal_entries_no_replace BEFORE INSERT ON journal_entries
BEGIN
	SELECT RAISE(ABORT, 'journal_entries is append-only: an entry has this id')
	WHERE EXISTS (SELECT 1 FROM journal_entries WHERE id = NEW.id);
	SELECT RAISE(IGNORE)
	WHERE EXISTS (SELECT 1 FROM journal_entries WHERE scope = NEW.scope AND idempotency_key = NEW.idempotency_key);
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER journal_entries_no_update BEFORE UPDATE ON journal_entries
BEGIN
	SELECT RAISE(ABORT, 'journal_entries is append-only: UPDATE is refused');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER journal_entries_no_delete BEFORE DELETE ON journal_entries
BEGIN
	SELECT RAISE(ABORT, 'journal_entries is append-only: DELETE is refused');
END;
-- +goose StatementEnd
