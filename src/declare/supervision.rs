//! How the children of a server are shared, kept and replaced (DESIGN section 4).
//!
//! Not here: doing it (`backend/pool`, `hub`).

use std::time::Duration;

use crate::config::{Fields, Mistake, Wrong, reader::choice};

/// How the children of a server are shared, kept and replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Supervision {
    /// Who shares a child.
    pub(crate) isolation: Isolation,
    /// Children that may serve one shared key.
    pub(crate) max_children: u32,
    /// Children kept started ahead of their sessions.
    pub(crate) warm: u32,
    /// How long a child may have nothing to do before it is stopped; zero is for ever.
    pub(crate) idle: Duration,
    /// What becomes of a session whose child is lost.
    pub(crate) on_loss: OnLoss,
}

/// Who shares a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// Nobody: each session has its own.
    Session,
    /// The sessions of one principal.
    Principal,
    /// All sessions of the tenant: only for servers without user state.
    Tenant,
}

/// What becomes of a session whose child is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// It gets another one.
    Restore,
    /// It ends: 404.
    End,
}

/// The keys of a server that are read here.
pub(crate) const KEYS: [&str; 5] = ["isolation", "max_children", "warm", "idle", "on_loss"];

impl Default for Supervision {
    fn default() -> Self {
        Self {
            isolation: Isolation::Session,
            max_children: 1,
            warm: 0,
            idle: Duration::from_mins(10),
            on_loss: OnLoss::Restore,
        }
    }
}

impl Supervision {
    /// Reads the keys of a server.
    pub(crate) fn read(fields: &Fields<'_>, mistakes: &mut Vec<Mistake>) -> Self {
        let default = Self::default();
        let read = Self {
            isolation: fields.read(
                "isolation",
                default.isolation,
                |node| choice(&node.text()?, &ISOLATIONS),
                mistakes,
            ),
            max_children: fields.read(
                "max_children",
                default.max_children,
                |node| node.count(1),
                mistakes,
            ),
            warm: fields.read("warm", default.warm, |node| node.count(0), mistakes),
            idle: fields.read(
                "idle",
                default.idle,
                crate::config::Node::duration,
                mistakes,
            ),
            on_loss: fields.read(
                "on_loss",
                default.on_loss,
                |node| choice(&node.text()?, &ON_LOSS),
                mistakes,
            ),
        };
        let of_shared = fields
            .member("max_children")
            .filter(|_| read.max_children > 1);
        if let Some(node) = of_shared.filter(|_| read.isolation == Isolation::Session) {
            let remedy = "set isolation to principal or tenant, or leave it out";
            let wrong = Wrong::new(
                "has no meaning where each session has its own child",
                remedy,
            );
            mistakes.push(wrong.at(&node.place, &fields.key("max_children")));
        }
        read
    }
}

const ISOLATIONS: [(&str, Isolation); 3] = [
    ("session", Isolation::Session),
    ("principal", Isolation::Principal),
    ("tenant", Isolation::Tenant),
];
const ON_LOSS: [(&str, OnLoss); 2] = [("restore", OnLoss::Restore), ("end", OnLoss::End)];
