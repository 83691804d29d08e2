-- The time at which a person connected, which a refresh leaves as it is; of earlier connections, that of their last
-- token. The same schema as that of PostgreSQL.
ALTER TABLE connections ADD COLUMN connected_ms BIGINT NOT NULL DEFAULT 0;
UPDATE connections SET connected_ms = updated_ms;
