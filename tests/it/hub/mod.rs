//! Tests of messages, streams, quotas and capacity.

pub(crate) mod broken_connections;
pub(crate) mod budgets;
pub(crate) mod capacity;
pub(crate) mod costs;
pub(crate) mod matrix;
pub(crate) mod messages;
pub(crate) mod modern_servers;
pub(crate) mod quotas;
pub(crate) mod shares;
pub(crate) mod specification;
pub(crate) mod stateless;
pub(crate) mod stateless_rules;
pub(crate) mod streams;
pub(crate) mod tasks;
