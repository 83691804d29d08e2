-- API keys that people made for themselves, by the SHA-256 of their values. The same schema as that of PostgreSQL.
CREATE TABLE own_keys (
    tenant      TEXT NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    name        TEXT NOT NULL,
    subject     TEXT   NOT NULL,
    -- What the person calls it.
    label       TEXT   NOT NULL,
    hash        BLOB   NOT NULL UNIQUE,
    -- The value before the last rotation, and the end of its overlap.
    previous    BLOB  ,
    previous_ms BIGINT,
    -- Those that the identity provider told last, as JSON; those of a local user are read from its declaration instead.
    groups      TEXT   NOT NULL,
    -- Names as JSON; null for all.
    servers     TEXT   NOT NULL,
    -- Separated by spaces.
    scopes      TEXT   NOT NULL,
    -- Counts the values.
    version     BIGINT NOT NULL,
    created_ms  BIGINT NOT NULL,
    -- The time of the value.
    since_ms    BIGINT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    -- To the hour.
    used_ms     BIGINT,
    PRIMARY KEY (tenant, name)
);
CREATE INDEX own_keys_by_subject ON own_keys (tenant, subject);
CREATE INDEX own_keys_by_end ON own_keys (expires_ms);
