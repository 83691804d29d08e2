-- Replicas read revocations and write grants and codes behind that: none does so meanwhile.
LOCK TABLE changes IN SHARE ROW EXCLUSIVE MODE;

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
-- What is looked for when somebody comes in or gets a grant: whether all that a person, a client or a session had was
-- revoked since. There may be many revocations of others; a b-tree holds no long texts, so it has their beginnings.
CREATE INDEX revocations_of ON revocations (tenant, SUBSTR(value, 1, 250), at_ms)
 WHERE kind IN ('client', 'session', 'sessionless', 'subject');
-- The subject of groups that replicas were told, which are behind it in a text that is too long for an index.
ALTER TABLE revocations ADD COLUMN subject TEXT;
-- The groups behind it may have characters that PostgreSQL takes for no text.
UPDATE revocations
   SET subject = CAST(SUBSTRING(value FROM '^\[("(?:[^"\\]|\\.)*")') AS JSON) #>> '{}'
 WHERE kind = 'groups';
CREATE INDEX revocations_groups ON revocations (tenant, subject) WHERE kind = 'groups';
