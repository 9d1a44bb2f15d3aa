-- +goose Up

-- Idempotency keys. One row a key, kept until it expires; never removed while it is in progress, in doubt or parked.
-- Times are text in UTC, such as 2026-01-02T15:04:05.000000Z.
CREATE TABLE processed_events (
    scope           TEXT    NOT NULL, -- service, binding and tenant
    idempotency_key TEXT    NOT NULL, -- compared byte by byte
    status          TEXT    NOT NULL, -- in_progress, completed, failed, in_doubt
    processed_at    TEXT    NOT NULL, -- when the status was reached
    expires_at      TEXT,             -- the key is kept at least so long
    fingerprint     TEXT    NOT NULL DEFAULT '', -- kind, version and digest of the payload
    result          TEXT,             -- what the handler returned, JSON
    owner           TEXT    NOT NULL DEFAULT '', -- who handled it, for people
    token           TEXT,             -- fences the holder of the lease
    lease_until     TEXT,
    takeovers       INTEGER NOT NULL DEFAULT 0,
    first_at        TEXT,             -- when a lease was first given
    prior           TEXT,             -- the status that a given-up lease leaves behind
    PRIMARY KEY (scope, idempotency_key)
) WITHOUT ROWID;
CREATE INDEX processed_events_expiry ON processed_events (scope, expires_at) WHERE status IN ('completed', 'failed');
CREATE INDEX processed_events_fingerprint ON processed_events (fingerprint);

-- Failed and suspected attempts, which outlive the transaction that rolled back.
CREATE TABLE attempts (
    scope           TEXT    NOT NULL,
    idempotency_key BLOB    NOT NULL,
    failures        INTEGER NOT NULL,
    suspected       INTEGER NOT NULL, -- runs that began and of which nobody saw the end
    last_class      TEXT    NOT NULL,
    last_error      BLOB    NOT NULL,
    first_at        TEXT    NOT NULL,
    last_at         TEXT    NOT NULL,
    next_at         TEXT,
    PRIMARY KEY (scope, idempotency_key)
) WITHOUT ROWID;
CREATE INDEX attempts_key ON attempts (idempotency_key);
CREATE INDEX attempts_age ON attempts (scope, last_at);

-- Messages that wait for a retry, are dead letters, or are in doubt.
CREATE TABLE parked (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    state           TEXT    NOT NULL, -- waiting, dead, in_doubt
    scope           TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    message_uuid    BLOB    NOT NULL,
    idempotency_key BLOB    NOT NULL, -- as received
    identity        BLOB    NOT NULL, -- 'k' and the key, or 'u' and the UUID where there is none; hashed where longer than a key may be
    ordering_key    BLOB    NOT NULL,
    ordering_id     BLOB,             -- as identity, with 'o'; NULL where the message has no order
    fingerprint     TEXT    NOT NULL,
    payload         BLOB    NOT NULL,
    metadata        BLOB    NOT NULL, -- JSON object; 'b' and one of base64 texts where it is not valid UTF-8
    reason          TEXT    NOT NULL,
    class           TEXT    NOT NULL,
    error           BLOB    NOT NULL,
    attempts        INTEGER NOT NULL,
    holds           INTEGER NOT NULL, -- keeps later messages of the ordering key behind it
    redriven        INTEGER NOT NULL,
    due_at          TEXT    NOT NULL,
    first_at        TEXT    NOT NULL,
    last_at         TEXT    NOT NULL,
    history         BLOB    NOT NULL, -- JSON array of what people did
    lease_token     TEXT,
    lease_until     TEXT,
    suspect         INTEGER NOT NULL DEFAULT 0 -- the lease before the present one was not given back
);
CREATE UNIQUE INDEX parked_live ON parked (scope, identity, fingerprint) WHERE state IN ('waiting', 'in_doubt');
CREATE UNIQUE INDEX parked_dead ON parked (scope, identity, fingerprint, reason) WHERE state = 'dead';
CREATE INDEX parked_key ON parked (identity, scope);
CREATE INDEX parked_leased ON parked (scope, lease_until) WHERE lease_token IS NOT NULL;
CREATE INDEX parked_due ON parked (scope, due_at) WHERE state = 'waiting';
CREATE INDEX parked_order ON parked (scope, ordering_id, id) WHERE ordering_id IS NOT NULL;
CREATE INDEX parked_age ON parked (last_at) WHERE state = 'dead';

-- Outgoing messages. A row is removed when the broker has the message.
CREATE TABLE outbox (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    lane            INTEGER NOT NULL, -- hash of the ordering key, or of the UUID
    topic           TEXT    NOT NULL,
    message_uuid    TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    ordering_key    TEXT    NOT NULL,
    metadata        BLOB    NOT NULL,
    payload         BLOB    NOT NULL,
    scope           TEXT    NOT NULL, -- of the message whose handling wrote it
    parent_key      TEXT    NOT NULL,
    deliver_at      TEXT,
    due_at          TEXT,             -- deliver_at, or when the next attempt is due; NULL: at once
    created_at      TEXT    NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    aside           INTEGER NOT NULL DEFAULT 0, -- will not be published until somebody retries it
    reason          TEXT    NOT NULL DEFAULT ''
);
CREATE INDEX outbox_now ON outbox (lane, id) WHERE NOT aside AND due_at IS NULL;
CREATE INDEX outbox_timed ON outbox (lane, due_at) WHERE NOT aside AND due_at IS NOT NULL;
CREATE INDEX outbox_retry ON outbox (lane, ordering_key, id) WHERE NOT aside AND due_at IS NOT NULL;
CREATE INDEX outbox_aside ON outbox (id) WHERE aside;

CREATE TABLE outbox_lanes (
    lane        INTEGER PRIMARY KEY,
    owner       TEXT,
    token       TEXT,
    lease_until TEXT
);
WITH RECURSIVE n(lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM n WHERE lane < 15)
INSERT INTO outbox_lanes (lane) SELECT lane FROM n;

CREATE TABLE outbox_relays (
    owner      TEXT PRIMARY KEY,
    live_until TEXT NOT NULL
);

-- What people did to keys and parked messages, beyond the life of the row.
CREATE TABLE desk_actions (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    at              TEXT    NOT NULL,
    what            TEXT    NOT NULL,
    who             TEXT    NOT NULL,
    why             TEXT    NOT NULL,
    scope           TEXT    NOT NULL,
    idempotency_key BLOB    NOT NULL,
    parked_id       INTEGER NOT NULL
);

-- +goose Down
DROP TABLE desk_actions;
DROP TABLE outbox_relays;
DROP TABLE outbox_lanes;
DROP TABLE outbox;
DROP TABLE parked;
DROP TABLE attempts;
DROP TABLE processed_events;
