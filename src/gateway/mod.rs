//! A running gateway: its parts built, started and stopped in order.

mod cluster;
pub(crate) mod run;

pub(crate) use self::run::{Listeners, Reached, Served, Shutdown};
