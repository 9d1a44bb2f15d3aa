-- +goose Up

-- The era of this database: whoever remembers elsewhere that a key is completed remembers it for one epoch.
CREATE TABLE key_epoch (
    id     smallint PRIMARY KEY,
    epoch  text COLLATE "C" NOT NULL, -- a name that never comes again
    server text COLLATE "C" NOT NULL  -- where it began
);
INSERT INTO key_epoch (id, epoch, server) VALUES (1, 'none yet', '');

-- +goose Down
DROP TABLE key_epoch;
