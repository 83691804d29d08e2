-- The time at which a refresh bound a grant to a key; none of a grant that its code bound, of one that is bound to none, and
-- of one that was bound before this column. The same schema as that of SQLite.
ALTER TABLE grants ADD COLUMN bound_ms BIGINT;
