-- Secrets that servers need and people have: one for each slot that a server declares and holder, who is the tenant
-- itself if the name is empty. Values are sealed with the master key, under tenant, server, holder and name. The same
-- schema as that of PostgreSQL.
CREATE TABLE secrets (
    tenant     TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    server     TEXT   NOT NULL,
    holder     TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    value      BLOB   NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, server, holder, name)
);
CREATE INDEX secrets_by_holder ON secrets (tenant, holder);
