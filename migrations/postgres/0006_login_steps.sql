-- What happened when clients asked for authorization, for operators who want to know why one did not get in. Rows are kept
-- for a day, and the newest of each tenant alone. The same schema as that of SQLite.
CREATE TABLE login_steps (
    id        UUID   NOT NULL PRIMARY KEY,
    tenant    TEXT   NOT NULL REFERENCES tenants (name) ON DELETE CASCADE,
    attempt   TEXT   NOT NULL,
    at_ms     BIGINT NOT NULL,
    step      TEXT   NOT NULL,
    client_id TEXT   NOT NULL,
    client    TEXT   NOT NULL,
    server    TEXT   NOT NULL,
    subject   TEXT   NOT NULL,
    address   TEXT   NOT NULL,
    reason    TEXT   NOT NULL
);
CREATE INDEX login_steps_by_time ON login_steps (at_ms);
CREATE INDEX login_steps_by_tenant ON login_steps (tenant, at_ms, id);
