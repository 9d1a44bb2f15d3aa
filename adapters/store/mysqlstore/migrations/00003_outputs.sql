-- +goose NO TRANSACTION
-- +goose Up

-- The messages that left when the key was completed, where its binding sends them again for a duplicate (on_duplicate: resend), as JSON.
-- It can be run again after a crash; MySQL knows no ADD COLUMN IF NOT EXISTS.
SET @oncemill_ddl = (SELECT IF(count(*) = 0, 'ALTER TABLE processed_events ADD COLUMN outputs longblob', 'DO 0')
    FROM information_schema.columns WHERE table_schema = database() AND table_name = 'processed_events' AND column_name = 'outputs');
PREPARE oncemill_ddl FROM @oncemill_ddl;
EXECUTE oncemill_ddl;
DEALLOCATE PREPARE oncemill_ddl;

-- +goose Down
SET @oncemill_ddl = (SELECT IF(count(*) = 1, 'ALTER TABLE processed_events DROP COLUMN outputs', 'DO 0')
    FROM information_schema.columns WHERE table_schema = database() AND table_name = 'processed_events' AND column_name = 'outputs');
PREPARE oncemill_ddl FROM @oncemill_ddl;
EXECUTE oncemill_ddl;
DEALLOCATE PREPARE oncemill_ddl;
