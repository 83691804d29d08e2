-- The session at the identity provider of a log-in and of what comes of it, for logouts there. The same schema as that of
-- SQLite.
ALTER TABLE logins ADD COLUMN session TEXT;
ALTER TABLE codes ADD COLUMN session TEXT;
ALTER TABLE grants ADD COLUMN session TEXT;
CREATE INDEX logins_by_session ON logins (tenant, session);
CREATE INDEX grants_by_session ON grants (tenant, session);
