//! What runs behind a session: today a child process that speaks MCP on its stdio.
//!
//! `stdio` moves bytes, `launch` is the guard between the gateway and the child, `sandbox` decides
//! what walls a child gets and `confine` puts them up, and `legacy` is the dialect: the translation
//! between messages and lines, without IO. `pool` says who may start a child and when (`circuit`,
//! `turns`), `warm` keeps some started, `shares` and `shared` let sessions share one, over a `lane`,
//! whose lines `audience` tells apart; `roster` knows all that run.
//! `prepare` fills the `stores` that children start from, where `programs` finds what to start;
//! `removal` takes away what they leave.

pub(crate) mod child;
mod circuit;
pub(crate) mod dialect;
pub(crate) mod guard;
pub(crate) mod linux;
pub(crate) mod pool;
pub(crate) mod prepare;
pub(crate) mod sandbox;
pub(crate) mod shared;
mod start_slots;
mod warm;

pub(crate) use self::circuit::{Circuit, Verdict};
pub(crate) use self::pool::{Place, Pool, Refused, Spec, Started};
pub(crate) use self::start_slots::Turns;
