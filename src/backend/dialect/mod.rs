//! Dialects: translation between messages and lines of a child, without IO.

pub(crate) mod legacy;

pub(crate) use self::legacy::{AskId, CallId, Dialect, Noted, Said};
