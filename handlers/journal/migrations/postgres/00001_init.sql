-- +goose Up

CREATE TABLE journal_entries (
	id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	scope           text COLLATE "C" NOT NULL,
	idempotency_key text COLLATE "C" NOT NULL,
	topic           text NOT NULL,
	message_uuid    text NOT NULL,
	payload         bytea NOT NULL,
	recorded_at     timestamptz NOT NULL DEFAULT now(),
	UNIQUE (scope, idempotency_key)
);

-- +goose StatementBegin
CREATE FUNCTION journal_entries_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'journal_entries is append-only: % is refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER journal_entries_append_only
	BEFORE UPDATE OR DELETE OR TRUNCATE ON journal_entries
	FOR EACH STATEMENT EXECUTE FUNCTION journal_entries_refuse();
