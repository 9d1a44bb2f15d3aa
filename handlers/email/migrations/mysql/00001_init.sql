-- +goose NO TRANSACTION
-- +goose Up

-- DDL commits by itself, so every statement can be run again after a crash.
-- The letters that were sent. recipient is personal data: it is the record of what was sent to whom.
CREATE TABLE IF NOT EXISTS letters (
	message_id      varbinary(1024) PRIMARY KEY,
	scope           varbinary(1024) NOT NULL,
	idempotency_key varbinary(255) NOT NULL,
	topic           varbinary(255) NOT NULL,
	recipient       longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	subject         longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	reply           longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
	sent_at         datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
	KEY letters_key (idempotency_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;
