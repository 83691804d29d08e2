-- Keys of clients, by their thumbprints (RFC 7638): that to which an authorization request bound its code, and that to
-- which a public client's refresh tokens are bound (RFC 9449, sections 10 and 5). The same schema as that of SQLite.
ALTER TABLE codes ADD COLUMN jkt TEXT;
ALTER TABLE grants ADD COLUMN jkt TEXT;
