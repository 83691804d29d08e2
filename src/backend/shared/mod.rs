//! Children that several sessions share.

pub(crate) mod child;
pub(crate) mod mailbox;
pub(crate) mod placement;
pub(crate) mod routing;
