-- Pages of upstreams, too, are in the order of bytes, in every locale of the database.
ALTER TABLE upstreams ALTER COLUMN name TYPE TEXT COLLATE "C";
