//! Tests of several gateways over one Redis and one PostgreSQL.

pub(crate) mod clocks;
pub(crate) mod grants;
pub(crate) mod impostors;
pub(crate) mod mixed_versions;
pub(crate) mod ownership;
pub(crate) mod postgres_outages;
pub(crate) mod redis_faults;
pub(crate) mod redis_over_tls;
pub(crate) mod reloads;
pub(crate) mod rolling_restarts;
pub(crate) mod sessions;
pub(crate) mod stateless;
pub(crate) mod streams;
pub(crate) mod tasks;
pub(crate) mod wake_ups;
