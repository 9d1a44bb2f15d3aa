-- +goose NO TRANSACTION
-- +goose Up

-- The era of this database: whoever remembers elsewhere that a key is completed remembers it for one epoch.
CREATE TABLE IF NOT EXISTS key_epoch (
    id     smallint PRIMARY KEY,
    epoch  varbinary(64) NOT NULL,  -- a name that never comes again
    server varbinary(255) NOT NULL  -- where it began
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
INSERT IGNORE INTO key_epoch (id, epoch, server) VALUES (1, 'none yet', '');

-- +goose Down
DROP TABLE IF EXISTS key_epoch;
