-- A key's hash is unique within its tenant, and among those of operators: a conflict with a key of another tenant would
-- tell that tenant's administrator that it exists. SQLite cannot drop a constraint, so the table is made anew.

CREATE TABLE new_api_keys (
    id         BLOB   NOT NULL PRIMARY KEY,
    tenant     TEXT   REFERENCES tenants (name) ON DELETE CASCADE,
    name       TEXT   NOT NULL,
    hash       TEXT   NOT NULL,
    version    BIGINT NOT NULL,
    spec       TEXT   NOT NULL,
    secret     BLOB,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
);
INSERT INTO new_api_keys (id, tenant, name, hash, version, spec, secret, created_ms, updated_ms)
SELECT id, tenant, name, hash, version, spec, secret, created_ms, updated_ms
  FROM api_keys;
DROP TABLE api_keys;
ALTER TABLE new_api_keys RENAME TO api_keys;
CREATE UNIQUE INDEX api_keys_by_name ON api_keys (COALESCE(tenant, ''), name);
CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (COALESCE(tenant, ''), hash);

-- These alone show that a tenant has changed.
CREATE INDEX tenants_by_version ON tenants (name, version);
CREATE INDEX servers_by_version ON servers (tenant, version);
CREATE INDEX users_by_version ON users (tenant, version);
CREATE INDEX clients_by_version ON clients (tenant, version);
CREATE INDEX providers_by_version ON providers (tenant, version);
CREATE INDEX api_keys_by_version ON api_keys (tenant, version);
