//! Dialects: translation between messages of a client and lines of a child, without IO.
//!
//! Not here: the bytes of a child (`backend::child`) and the routing of its messages
//! (`hub::stream`, and `backend::shared` for shared children).
//!
//! * `id_blocks`: ids of the sessions of shared children
//! * `legacy`: sessions that begin with `initialize`, up to revision 2025-11-25; and the lines that
//!   restore one in another child
//! * `own_requests`: requests of the gateway itself, and errors to them
//! * `translated`: results of a translation
//! * `translation`: the only match over the dialects, and the list of duties of a dialect

mod id_blocks;
mod legacy;
mod own_requests;
mod translated;
mod translation;

pub(crate) use self::id_blocks::{IdBlocks, IdLease, OWN_IDS};
pub(crate) use self::legacy::owe;
pub(crate) use self::own_requests::{OwnRequests, log_own_error};
pub(crate) use self::translated::{AskId, CallId, Forwarded, ServerMessage, SessionState};
pub(crate) use self::translation::Dialect;
