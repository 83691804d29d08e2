-- The end of a code that was used and has begun no grant yet: a replay of one that never does ends nothing. None of any
-- other, and of one that was used before this column. The same schema as that of PostgreSQL.
ALTER TABLE codes ADD COLUMN ungranted_ms BIGINT;
-- Those that go soon. There may be many that stay for a day.
CREATE INDEX codes_ungranted ON codes (ungranted_ms) WHERE ungranted_ms IS NOT NULL;
-- Those of a grant, a person, a client and a session at a provider, which end with it while no other change is made.
CREATE INDEX codes_by_grant ON codes (grant_id);
CREATE INDEX codes_by_subject ON codes (tenant, subject);
CREATE INDEX codes_by_client ON codes (tenant, client_id);
CREATE INDEX codes_by_session ON codes (tenant, session) WHERE session IS NOT NULL;
-- Those to one client, found whole: by the key of the table SQLite would look through all of the tenant for a part.
DROP INDEX consents_by_client;
CREATE INDEX consents_by_client ON consents (tenant, client_id, subject, digest);
-- Those of one client that live, found whole: what ended stays for a day.
DROP INDEX grants_by_client;
CREATE INDEX grants_by_client ON grants (tenant, client_id, revoked_ms);
