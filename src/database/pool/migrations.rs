//! The migrations of the schema, each for both databases.
//!
//! Not here: their execution (`schema`).

/// Every migration: its number, its name, and its statements for SQLite and PostgreSQL. They are
/// listed here instead of read by `sqlx::migrate!`, which would compile sqlx, SQLite and aws-lc for
/// the build host too.
pub(super) const MIGRATIONS: [(i64, &str, [&str; 2]); 13] = [
    (
        1,
        "control",
        [
            include_str!("../../../migrations/sqlite/0001_control.sql"),
            include_str!("../../../migrations/postgres/0001_control.sql"),
        ],
    ),
    (
        2,
        "oauth",
        [
            include_str!("../../../migrations/sqlite/0002_oauth.sql"),
            include_str!("../../../migrations/postgres/0002_oauth.sql"),
        ],
    ),
    (
        3,
        "by tenant",
        [
            include_str!("../../../migrations/sqlite/0003_by_tenant.sql"),
            include_str!("../../../migrations/postgres/0003_by_tenant.sql"),
        ],
    ),
    (
        4,
        "secrets",
        [
            include_str!("../../../migrations/sqlite/0004_secrets.sql"),
            include_str!("../../../migrations/postgres/0004_secrets.sql"),
        ],
    ),
    (
        5,
        "upstreams",
        [
            include_str!("../../../migrations/sqlite/0005_upstreams.sql"),
            include_str!("../../../migrations/postgres/0005_upstreams.sql"),
        ],
    ),
    (
        6,
        "login steps",
        [
            include_str!("../../../migrations/sqlite/0006_login_steps.sql"),
            include_str!("../../../migrations/postgres/0006_login_steps.sql"),
        ],
    ),
    (
        7,
        "identities",
        [
            include_str!("../../../migrations/sqlite/0007_identities.sql"),
            include_str!("../../../migrations/postgres/0007_identities.sql"),
        ],
    ),
    (
        8,
        "provider sessions",
        [
            include_str!("../../../migrations/sqlite/0008_provider_sessions.sql"),
            include_str!("../../../migrations/postgres/0008_provider_sessions.sql"),
        ],
    ),
    (
        9,
        "dpop",
        [
            include_str!("../../../migrations/sqlite/0009_dpop.sql"),
            include_str!("../../../migrations/postgres/0009_dpop.sql"),
        ],
    ),
    (
        10,
        "connected",
        [
            include_str!("../../../migrations/sqlite/0010_connected.sql"),
            include_str!("../../../migrations/postgres/0010_connected.sql"),
        ],
    ),
    (
        11,
        "own keys",
        [
            include_str!("../../../migrations/sqlite/0011_own_keys.sql"),
            include_str!("../../../migrations/postgres/0011_own_keys.sql"),
        ],
    ),
    (
        12,
        "bound",
        [
            include_str!("../../../migrations/sqlite/0012_bound.sql"),
            include_str!("../../../migrations/postgres/0012_bound.sql"),
        ],
    ),
    (
        13,
        "unanswered",
        [
            include_str!("../../../migrations/sqlite/0013_unanswered.sql"),
            include_str!("../../../migrations/postgres/0013_unanswered.sql"),
        ],
    ),
];
