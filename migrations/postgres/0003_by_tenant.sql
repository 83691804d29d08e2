-- A key's hash is unique within its tenant, and among those of operators: a conflict with a key of another tenant would
-- tell that tenant's administrator that it exists.

ALTER TABLE api_keys DROP CONSTRAINT api_keys_hash_key;
CREATE UNIQUE INDEX api_keys_by_hash ON api_keys (COALESCE(tenant, ''), hash);

-- Pages of these, too, are in the order of bytes, in every locale of the database.
ALTER TABLE clients ALTER COLUMN name TYPE TEXT COLLATE "C";
ALTER TABLE providers ALTER COLUMN name TYPE TEXT COLLATE "C";

-- These alone show that a tenant has changed.
CREATE INDEX tenants_by_version ON tenants (name, version);
CREATE INDEX servers_by_version ON servers (tenant, version);
CREATE INDEX users_by_version ON users (tenant, version);
CREATE INDEX clients_by_version ON clients (tenant, version);
CREATE INDEX providers_by_version ON providers (tenant, version);
CREATE INDEX api_keys_by_version ON api_keys (tenant, version);
