//! Dialects: translation between messages of a client and lines of a child, without IO.
//!
//! A session has the legacy dialect, which keeps the ids and progress tokens of its two sides apart. A child
//! of the modern era has the modern dialect as well, between its pipes and its owner, which sees a
//! session-based server. So neither sessions nor shared children know eras, and each pair of eras is made of
//! two translations.
//!
//! Not here: the bytes of a child (`backend::child`), the probe (`backend::opening`), and the routing of
//! messages (`hub::stream`, and `backend::shared` for shared children).
//!
//! * `caller_rooms`: room for the calls of each caller at a modern server
//! * `era`: the eras that a server understands, and the probe for the modern one
//! * `id_blocks`: ids of the sessions of shared children
//! * `legacy`: sessions that begin with `initialize`, up to revision 2025-11-25; and the lines that
//!   restore one in another child
//! * `listening`: subscriptions of a session at a modern server
//! * `modern`: stateless servers, for sessions
//! * `own_requests`: requests of the gateway itself
//! * `results`: results of a modern server that are given again
//! * `translated`: results of a translation
//! * `translator`: between a child and its owner, until it is known that neither needs one
//! * `watched`: watched resources, and those that an update is told to

mod caller_rooms;
mod era;
mod id_blocks;
mod legacy;
mod listening;
mod modern;
mod own_requests;
mod results;
mod translated;
mod translator;
mod watched;

pub(crate) use self::era::{KnownEra, PROBE, PROBE_WAIT, is_modern, push_probe};
pub(crate) use self::id_blocks::{IdBlocks, IdLease, OWN_IDS};
pub(crate) use self::legacy::{Legacy, owe};
pub(crate) use self::modern::asked_call;
pub(crate) use self::own_requests::OwnRequests;
pub(crate) use self::translated::{AskId, CallId, Forwarded, ServerMessage, SessionState};
pub(crate) use self::translator::{Opening, Translator};
pub(crate) use self::watched::Watched;
