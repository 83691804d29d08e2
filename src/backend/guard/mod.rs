//! The guard: the process between the gateway and a child, which ends everything below it.

pub(crate) mod launch;
pub(crate) mod protocol;
pub(crate) mod tree;

pub(crate) use self::launch::Clone;
pub(crate) use self::protocol::{Cage, Files, Orders, Store, Tcp};
