//! Server: a named MCP server of a tenant, its time limits, bounds and supervision.
//!
//! Not here: what is started for it (`launch`), and doing so (`backend`, `hub`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    identity::Grants,
    launch::{Launch, Recipe},
    policy::Policy,
    quotas::Room,
};

/// A named MCP server of a tenant.
#[derive(Debug, PartialEq)]
pub(crate) struct Server {
    /// The tenant that it belongs to.
    pub(crate) tenant: String,
    /// Its name, as in the URL.
    pub(crate) name: String,
    /// What to start.
    pub(crate) launch: Launch,
    /// What is done once before the first start; none for most servers.
    pub(crate) recipe: Option<Recipe>,
    /// How responses are chosen.
    pub(crate) reply: Reply,
    /// How long things may take.
    pub(crate) clocks: Clocks,
    /// Clocks of single tools, complete: what a tool does not name is the server's.
    pub(crate) tools: HashMap<String, Clocks>,
    /// Bounds of one child.
    pub(crate) limits: Limits,
    /// How its children are shared, kept and replaced.
    pub(crate) supervision: Supervision,
    /// What of it may be used.
    pub(crate) policy: Arc<Policy>,
    /// Whether calls are on record in the audit trail.
    pub(crate) audit_calls: bool,
    /// What the children of its tenant may take together.
    pub(crate) room: Room,
    /// Who of its tenant may use it; none is everybody.
    pub(crate) grants: Option<Grants>,
}

impl Server {
    /// Returns whether the grants admit a caller; without grants, every caller of the tenant.
    pub(crate) fn admits(&self, subject: &str, groups: &[String], client: Option<&str>) -> bool {
        let grants = self.grants.as_ref();
        grants.is_none_or(|grants| grants.fit(subject, groups, client))
    }

    /// The clocks of a call of `tool`, or those of the server.
    pub(crate) fn clocks_of(&self, tool: Option<&str>) -> &Clocks {
        tool.and_then(|name| self.tools.get(name))
            .unwrap_or(&self.clocks)
    }
}

/// How the response to a POST is chosen (legacy era).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Which of the two content types.
    pub(crate) mode: ReplyMode,
    /// How long `auto` holds the headers before it opens SSE.
    pub(crate) sse_after: Duration,
    /// After how long a POST stream of a 2025-11-25 session is closed to be polled; zero is never.
    pub(crate) close_after: Duration,
}

/// Which content type answers a POST with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// JSON if the first message is the final response and comes in time, else SSE.
    Auto,
    /// SSE, always.
    Sse,
    /// JSON, always.
    Json,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// From the spawn to the answer to `initialize`.
    pub(crate) start: Duration,
    /// The child's own time for a call; progress restarts it.
    pub(crate) call: Duration,
    /// A call in all.
    pub(crate) call_max: Duration,
    /// A client's time to answer what the server asks.
    pub(crate) ask: Duration,
    /// How long an ask may wait for a connection that can carry it.
    pub(crate) ask_unclaimed: Duration,
    /// After closing stdin until SIGTERM, and after that until SIGKILL of the tree.
    pub(crate) stop: [Duration; 2],
}

/// Bounds of one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of one line on stdout.
    pub(crate) line: u64,
    /// Bytes of stderr that are kept.
    pub(crate) stderr: u64,
    /// Open files (`RLIMIT_NOFILE`).
    pub(crate) files: u64,
    /// Bytes of one file that it writes (`RLIMIT_FSIZE`).
    pub(crate) file_size: u64,
    /// Bytes of memory of all its processes together.
    pub(crate) memory: Option<u64>,
    /// Processes and threads.
    pub(crate) pids: Option<u32>,
    /// Processor time of all its processes together, in percents of one processor.
    pub(crate) cpu: Option<u32>,
}

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
