-- The SHA-256 of what all refresh tokens of a grant have in common, which tells a used one whose row is gone; none of a
-- grant that begins without a code, and of one that began before this column. The same schema as that of SQLite.
ALTER TABLE grants ADD COLUMN family BYTEA;
CREATE INDEX grants_by_family ON grants (family) WHERE family IS NOT NULL;
-- The time of its last refresh; of one before this column its used tokens have it.
ALTER TABLE grants ADD COLUMN used_ms BIGINT;
-- Those that are counted, and that end together. There may be many that are revoked.
CREATE INDEX grants_unrevoked ON grants (tenant, subject) WHERE revoked_ms IS NULL;
-- Those that go first. There may be many that were used.
CREATE INDEX codes_unused_by_end ON codes (expires_ms) WHERE used_ms IS NULL;
-- Those to one client: whether there is one, and all of them at its end.
CREATE INDEX consents_by_client ON consents (tenant, client_id);
