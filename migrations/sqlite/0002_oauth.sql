-- Authorization servers: what is issued to whom. Hashes are SHA-256; sealed values are under the
-- master key. The same schema as that of PostgreSQL.

CREATE TABLE clients (
    id         BLOB   NOT NULL PRIMARY KEY,
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    name       TEXT   NOT NULL,
    version    BIGINT NOT NULL,
    spec       TEXT   NOT NULL,
    secret     BLOB,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    UNIQUE (tenant, name)
);

CREATE TABLE providers (
    id         BLOB   NOT NULL PRIMARY KEY,
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    name       TEXT   NOT NULL,
    version    BIGINT NOT NULL,
    spec       TEXT   NOT NULL,
    secret     BLOB,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    UNIQUE (tenant, name)
);

CREATE TABLE signing_keys (
    id         BLOB   NOT NULL PRIMARY KEY,
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    kid        TEXT   NOT NULL UNIQUE,
    public     BLOB  NOT NULL,
    secret     BLOB  NOT NULL,
    created_ms BIGINT NOT NULL,
    active_ms  BIGINT NOT NULL,
    -- When it is published no longer; none as long as no other has taken its place.
    retired_ms BIGINT
);
CREATE INDEX signing_keys_by_tenant ON signing_keys (tenant, active_ms);

-- Clients that registered themselves.
CREATE TABLE registrations (
    tenant      TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    client_id   TEXT   NOT NULL,
    metadata    TEXT   NOT NULL,
    secret_hash BLOB,
    access_hash BLOB  NOT NULL,
    created_ms  BIGINT NOT NULL,
    expires_ms  BIGINT NOT NULL,
    PRIMARY KEY (tenant, client_id)
);
CREATE INDEX registrations_by_end ON registrations (expires_ms);

CREATE TABLE grants (
    id         BLOB   NOT NULL PRIMARY KEY,
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    subject    TEXT   NOT NULL,
    groups     TEXT   NOT NULL,
    client_id  TEXT   NOT NULL,
    resource   TEXT   NOT NULL,
    scope      TEXT   NOT NULL,
    auth_ms    BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    revoked_ms BIGINT
);
CREATE INDEX grants_by_subject ON grants (tenant, subject);
CREATE INDEX grants_by_client ON grants (tenant, client_id);
CREATE INDEX grants_by_end ON grants (expires_ms);

-- A code holds all that its grant will be; `grant_id` is that grant's id from the beginning.
CREATE TABLE codes (
    hash         BLOB  NOT NULL PRIMARY KEY,
    tenant       TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    grant_id     BLOB   NOT NULL,
    subject      TEXT   NOT NULL,
    groups       TEXT   NOT NULL,
    client_id    TEXT   NOT NULL,
    resource     TEXT   NOT NULL,
    scope        TEXT   NOT NULL,
    auth_ms      BIGINT NOT NULL,
    grant_ms     BIGINT NOT NULL,
    redirect_uri TEXT   NOT NULL,
    challenge    TEXT   NOT NULL,
    expires_ms   BIGINT NOT NULL,
    used_ms      BIGINT
);
CREATE INDEX codes_by_end ON codes (expires_ms);

CREATE TABLE refresh_tokens (
    hash       BLOB  NOT NULL PRIMARY KEY,
    grant_id   BLOB   NOT NULL REFERENCES grants (id) ON DELETE CASCADE,
    expires_ms BIGINT NOT NULL,
    used_ms    BIGINT,
    -- Of the successor, once there is one.
    salt       BLOB,
    successor  BLOB
);
CREATE INDEX refresh_tokens_by_grant ON refresh_tokens (grant_id);
CREATE INDEX refresh_tokens_by_end ON refresh_tokens (expires_ms);

-- Numbered in the order of their commits: `changes.revocation` is the number of the last. Kinds are
-- grants (values are their ids), subject, keys (of the tenant, which are others now) and key (one
-- that is worth nothing any more).
CREATE TABLE revocations (
    number BIGINT NOT NULL PRIMARY KEY,
    tenant TEXT   NOT NULL,
    kind   TEXT   NOT NULL,
    value  TEXT   NOT NULL,
    at_ms  BIGINT NOT NULL
);
CREATE INDEX revocations_by_time ON revocations (at_ms);
ALTER TABLE changes ADD COLUMN revocation BIGINT NOT NULL DEFAULT 0;

-- Browsers, by the SHA-256 of their cookie.
CREATE TABLE logins (
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    browser    BLOB  NOT NULL,
    subject    TEXT   NOT NULL,
    person     TEXT   NOT NULL,
    expires_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, browser)
);
CREATE INDEX logins_by_end ON logins (expires_ms);
CREATE INDEX logins_by_subject ON logins (tenant, subject);

CREATE TABLE consents (
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    subject    TEXT   NOT NULL,
    client_id  TEXT   NOT NULL,
    digest     BLOB  NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, subject, client_id, digest)
);

-- Log-ins that are under way at a provider.
CREATE TABLE trips (
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    state      BLOB  NOT NULL,
    content    BLOB  NOT NULL,
    expires_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, state)
);
CREATE INDEX trips_by_end ON trips (expires_ms);

-- What may be used once: client assertions.
CREATE TABLE used (
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    value      BLOB  NOT NULL,
    expires_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, value)
);
CREATE INDEX used_by_end ON used (expires_ms);
