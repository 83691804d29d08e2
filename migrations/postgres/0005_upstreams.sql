-- Upstreams of tenants, which are declared, and the connections of people to them: access and refresh tokens, sealed
-- with the master key under tenant, upstream and holder. The version of a connection is the number of its last change
-- among revocations. The same schema as that of SQLite.
CREATE TABLE upstreams (
    id         UUID   NOT NULL PRIMARY KEY,
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    name       TEXT   NOT NULL,
    version    BIGINT NOT NULL,
    spec       TEXT   NOT NULL,
    secret     BYTEA,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    UNIQUE (tenant, name)
);
CREATE INDEX upstreams_by_version ON upstreams (tenant, version);

CREATE TABLE connections (
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    upstream   TEXT   NOT NULL,
    holder     TEXT   NOT NULL,
    value      BYTEA  NOT NULL,
    version    BIGINT NOT NULL,
    -- Until then one replica refreshes the tokens, or none tries again.
    lease_ms   BIGINT NOT NULL,
    -- The time at which the upstream was last asked whether the access token is active.
    checked_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, upstream, holder)
);
CREATE INDEX connections_by_holder ON connections (tenant, holder);
