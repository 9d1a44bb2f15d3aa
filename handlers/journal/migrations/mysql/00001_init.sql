-- +goose NO TRANSACTION
-- +goose Up

-- DDL commits by itself, so every statement can be run again after a crash.
CREATE TABLE IF NOT EXISTS journal_entries (
	id              bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
	scope           varbinary(1024) NOT NULL,
	idempotency_key varbinary(255) NOT NULL,
	topic           varbinary(255) NOT NULL,
	message_uuid    varbinary(255) NOT NULL,
	payload         longblob NOT NULL,
	recorded_at     datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
	UNIQUE KEY journal_entries_key (scope, idempotency_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;

DROP TRIGGER IF EXISTS journal_entries_no_update;
-- +goose StatementBegin
CREATE TRIGGER journal_entries_no_update BEFORE UPDATE ON journal_entries FOR EACH ROW
	SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'journal_entries is append-only: UPDATE is refused';
-- +goose StatementEnd

DROP TRIGGER IF EXISTS journal_entries_no_delete;
-- +goose StatementBegin
CREATE TRIGGER journal_entries_no_delete BEFORE DELETE ON journal_entries FOR EACH ROW
	SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'journal_entries is append-only: DELETE is refused';
-- +goose StatementEnd
