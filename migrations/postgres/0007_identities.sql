-- People who logged in at an identity provider: its last word about each, and the tokens by which it is asked again, sealed
-- with the master key under tenant, provider and subject. The same schema as that of SQLite.
CREATE TABLE identities (
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    subject    TEXT   NOT NULL,
    provider   TEXT   NOT NULL,
    -- As told last, as JSON.
    groups     TEXT,
    value      BYTEA  NOT NULL,
    -- Counts the tokens.
    version    BIGINT NOT NULL,
    -- Until then one replica asks the provider, or none tries again.
    lease_ms   BIGINT NOT NULL,
    -- The time of the provider's last word.
    checked_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, subject)
);
