//! Children that several sessions share.

mod child;
pub(crate) mod mailbox;
mod placement;
pub(crate) mod routing;

pub(crate) use self::mailbox::Loss;
pub(crate) use self::placement::{Member, STABLE, Shares};
pub(crate) use self::routing::CALL_BITS;
