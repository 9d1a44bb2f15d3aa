-- +goose Up

-- The messages that left when the key was completed, where its binding sends them again for a duplicate (on_duplicate: resend), as JSON.
ALTER TABLE processed_events ADD COLUMN outputs bytea;

-- +goose Down
ALTER TABLE processed_events DROP COLUMN outputs;
