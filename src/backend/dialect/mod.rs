//! Dialects: translation between messages and lines of a child, without IO.

pub(crate) mod legacy;
