//! A running gateway: its parts built, started and stopped in order.

pub(crate) mod cluster;
pub(crate) mod run;
