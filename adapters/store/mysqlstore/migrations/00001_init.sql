-- +goose NO TRANSACTION
-- +goose Up

-- DDL commits by itself, so every statement can be run again after a crash.
-- Keys and names are binary: they are compared byte by byte, whatever the server's character set and collation. Times are UTC.

-- Idempotency keys. One row a key, kept until it expires; never removed while it is in progress, in doubt or parked.
CREATE TABLE IF NOT EXISTS processed_events (
    scope           varbinary(1024) NOT NULL, -- service, binding and tenant
    idempotency_key varbinary(255) NOT NULL,
    status          varbinary(20) NOT NULL,   -- in_progress, completed, failed, in_doubt
    processed_at    datetime(6) NOT NULL,     -- when the status was reached
    expires_at      datetime(6),              -- the key is kept at least so long
    fingerprint     varbinary(255) NOT NULL DEFAULT '', -- kind, version and digest of the payload
    result          longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, -- what the handler returned: JSON, as it was written
    owner           varbinary(255) NOT NULL DEFAULT '', -- who handled it, for people
    token           varbinary(64),            -- fences the holder of the lease; of a completed key, tells who inserted it
    lease_until     datetime(6),
    takeovers       integer NOT NULL DEFAULT 0,
    first_at        datetime(6),              -- when a lease was first given
    prior           varbinary(20),            -- the status that a given-up lease leaves behind
    PRIMARY KEY (scope, idempotency_key),
    KEY processed_events_expiry (scope, expires_at),
    KEY processed_events_fingerprint (fingerprint)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;

-- Failed and suspected attempts, which outlive the transaction that rolled back.
CREATE TABLE IF NOT EXISTS attempts (
    scope           varbinary(1024) NOT NULL,
    idempotency_key varbinary(1024) NOT NULL,
    failures        integer NOT NULL,
    suspected       integer NOT NULL, -- runs that began and of which nobody saw the end
    last_class      varbinary(255) NOT NULL,
    last_error      blob NOT NULL,
    first_at        datetime(6) NOT NULL,
    last_at         datetime(6) NOT NULL,
    next_at         datetime(6),
    PRIMARY KEY (scope, idempotency_key),
    KEY attempts_key (idempotency_key),
    KEY attempts_age (scope, last_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;

-- Messages that wait for a retry, are dead letters, or are in doubt.
CREATE TABLE IF NOT EXISTS parked (
    id              bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    state           varbinary(20) NOT NULL, -- waiting, dead, in_doubt
    scope           varbinary(1024) NOT NULL,
    topic           varbinary(1024) NOT NULL,
    message_uuid    longblob NOT NULL,
    idempotency_key longblob NOT NULL,       -- as received
    identity        varbinary(300) NOT NULL, -- 'k' and the key, or 'u' and the UUID where there is none; hashed where longer than a key may be
    ordering_key    longblob NOT NULL,
    ordering_id     varbinary(300),          -- as identity, with 'o'; NULL where the message has no order
    fingerprint     varbinary(255) NOT NULL,
    payload         longblob NOT NULL,
    metadata        longblob NOT NULL, -- JSON object; 'b' and one of base64 texts where it is not valid UTF-8
    reason          varbinary(255) NOT NULL,
    class           varbinary(255) NOT NULL,
    error           blob NOT NULL,
    attempts        integer NOT NULL,
    holds           boolean NOT NULL, -- keeps later messages of the ordering key behind it
    redriven        boolean NOT NULL,
    due_at          datetime(6) NOT NULL,
    first_at        datetime(6) NOT NULL,
    last_at         datetime(6) NOT NULL,
    history         longblob NOT NULL, -- JSON array of what people did
    lease_token     varbinary(64),
    lease_until     datetime(6),
    suspect         boolean NOT NULL DEFAULT false, -- the lease before the present one was not given back
    -- Unique indexes over some rows only: NULLs differ from each other.
    is_live         tinyint GENERATED ALWAYS AS (CASE WHEN state IN ('waiting', 'in_doubt') THEN 1 END) STORED,
    is_dead         tinyint GENERATED ALWAYS AS (CASE WHEN state = 'dead' THEN 1 END) STORED,
    UNIQUE KEY parked_live (scope, identity, fingerprint, is_live),
    UNIQUE KEY parked_dead (scope, identity, fingerprint, reason, is_dead),
    KEY parked_key (identity, scope),
    KEY parked_due (scope, state, due_at),
    KEY parked_leased (scope, lease_token),
    KEY parked_order (scope, ordering_id, id),
    KEY parked_age (state, last_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;

-- Outgoing messages. A row is removed when the broker has the message.
CREATE TABLE IF NOT EXISTS outbox (
    id              bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    lane            smallint NOT NULL, -- hash of the ordering key, or of the UUID
    topic           varbinary(1024) NOT NULL,
    message_uuid    varbinary(1024) NOT NULL,
    idempotency_key varbinary(1024) NOT NULL,
    ordering_key    varbinary(1024) NOT NULL,
    metadata        longblob NOT NULL,
    payload         longblob NOT NULL,
    scope           varbinary(1024) NOT NULL, -- of the message whose handling wrote it
    parent_key      varbinary(1024) NOT NULL,
    deliver_at      datetime(6),
    due_at          datetime(6),    -- deliver_at, or when the next attempt is due; NULL: at once
    created_at      datetime(6) NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    aside           boolean NOT NULL DEFAULT false, -- will not be published until somebody retries it
    reason          varbinary(1024) NOT NULL DEFAULT '',
    KEY outbox_due (lane, due_at, id),
    KEY outbox_order (lane, ordering_key, id),
    KEY outbox_aside (aside, due_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS outbox_lanes (
    lane        smallint PRIMARY KEY,
    owner       varbinary(255),
    token       varbinary(64),
    lease_until datetime(6)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
INSERT IGNORE INTO outbox_lanes (lane) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15);

CREATE TABLE IF NOT EXISTS outbox_relays (
    owner      varbinary(255) PRIMARY KEY,
    live_until datetime(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

-- What people did to keys and parked messages, beyond the life of the row.
CREATE TABLE IF NOT EXISTS desk_actions (
    id              bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at              datetime(6) NOT NULL,
    what            varbinary(255) NOT NULL,
    who             varbinary(255) NOT NULL,
    why             blob NOT NULL,
    scope           varbinary(1024) NOT NULL,
    idempotency_key longblob NOT NULL,
    parked_id       bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;

-- +goose Down
DROP TABLE IF EXISTS desk_actions;
DROP TABLE IF EXISTS outbox_relays;
DROP TABLE IF EXISTS outbox_lanes;
DROP TABLE IF EXISTS outbox;
DROP TABLE IF EXISTS parked;
DROP TABLE IF EXISTS attempts;
DROP TABLE IF EXISTS processed_events;
