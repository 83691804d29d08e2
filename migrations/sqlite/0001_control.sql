-- What operators declare, who changed it, and how far the changes have come. The same schema as
-- that of PostgreSQL. Times are milliseconds since 1970, documents are JSON.

CREATE TABLE tenants (
    id         BLOB   NOT NULL PRIMARY KEY,
    name       TEXT   NOT NULL UNIQUE,
    version    BIGINT NOT NULL,
    spec       TEXT   NOT NULL,
    secret     BLOB,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);

CREATE TABLE servers (
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

CREATE TABLE users (
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

-- A key without a tenant is an operator's.
CREATE TABLE api_keys (
    id         BLOB   NOT NULL PRIMARY KEY,
    tenant     TEXT   REFERENCES tenants (name) ON DELETE CASCADE,
    name       TEXT   NOT NULL,
    hash       TEXT   NOT NULL UNIQUE,
    version    BIGINT NOT NULL,
    spec       TEXT   NOT NULL,
    secret     BLOB,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);
-- NULL differs from NULL in a plain constraint.
CREATE UNIQUE INDEX api_keys_by_name ON api_keys (COALESCE(tenant, ''), name);

-- Stays when its tenant goes.
CREATE TABLE audit (
    id     BLOB   NOT NULL PRIMARY KEY,
    at_ms  BIGINT NOT NULL,
    tenant TEXT,
    kind   TEXT   NOT NULL,
    actor  TEXT   NOT NULL,
    target TEXT   NOT NULL,
    detail TEXT   NOT NULL
);
CREATE INDEX audit_by_time ON audit (at_ms, id);
CREATE INDEX audit_by_tenant ON audit (tenant, at_ms, id);

-- One row: grows with every change of what is declared.
CREATE TABLE changes (
    id      BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    version BIGINT NOT NULL
);
INSERT INTO changes (id, version) VALUES (1, 0);

-- The master keys that sealed something, each by a name that does not tell it.
CREATE TABLE seal_keys (
    id         TEXT   NOT NULL PRIMARY KEY,
    check_seal BLOB   NOT NULL,
    created_ms BIGINT NOT NULL
);
