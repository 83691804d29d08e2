//! A server of a tenant: its time limits, bounds and supervision.
//!
//! Not here: its launch specification (`launch`), and its operation (`backend`, `hub`).

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    identity::Grants,
    launch::{Holder, Launch, Recipe, Slots},
    policy::{AllowedScopes, Policy},
    quotas::Room,
};

/// A named MCP server of a tenant.
#[derive(Debug, PartialEq)]
pub(crate) struct Server {
    /// Its tenant.
    pub(crate) tenant: String,
    /// The name in URLs.
    pub(crate) name: String,
    /// The program to start.
    pub(crate) launch: Launch,
    /// The secrets that its children need besides.
    pub(crate) slots: Slots,
    /// The preparation before the first start, if any.
    pub(crate) recipe: Option<Recipe>,
    /// The choice of response types.
    pub(crate) reply: Reply,
    /// Time limits.
    pub(crate) clocks: Clocks,
    /// Time limits of single tools, each completed by those of the server.
    pub(crate) tools: HashMap<String, Clocks>,
    /// Limits of one child.
    pub(crate) limits: Limits,
    /// The revisions that its children are spoken to in.
    pub(crate) era: ServerEra,
    /// Sharing, pooling and replacement of its children.
    pub(crate) supervision: Supervision,
    /// The access policy.
    pub(crate) policy: Arc<Policy>,
    /// Calls are recorded in the audit trail.
    pub(crate) audit_calls: bool,
    /// The limits of all children of its tenant together.
    pub(crate) room: Room,
    /// The callers of its tenant that may use it; none for all.
    pub(crate) grants: Option<Grants>,
}

impl Server {
    /// Whether children that were started by this declaration are to be replaced in favour of another.
    pub(crate) fn needs_restart(&self, new: &Self) -> bool {
        !std::ptr::eq(self, new)
            && (self.launch != new.launch
                || self.slots != new.slots
                || self.recipe != new.recipe
                || self.limits != new.limits
                || self.supervision.isolation != new.supervision.isolation)
    }

    /// Starts its children as `old` does.
    pub(crate) fn start_as(&mut self, old: &Self) {
        self.launch.clone_from(&old.launch);
        self.slots.clone_from(&old.slots);
        self.recipe.clone_from(&old.recipe);
        self.limits = old.limits;
        self.era = old.era;
        self.supervision = old.supervision;
    }

    /// The scopes that the grants allow a caller, all without grants; `None` if they do not admit it.
    pub(crate) fn scopes_of(
        &self,
        subject: &str,
        groups: &[String],
        client: Option<&str>,
    ) -> Option<AllowedScopes<'_>> {
        match &self.grants {
            None => Some(AllowedScopes::All),
            Some(grants) => grants.scopes_of(subject, groups, client),
        }
    }

    /// Reports whether being in this group may decide what a caller may do here.
    pub(crate) fn names_group(&self, group: &str) -> bool {
        let grants = self.grants.as_ref();
        self.policy.names_group(group)
            || grants.is_some_and(|grants| grants.groups.contains_key(group))
    }

    /// Reports whether its children need secrets of this kind of holder.
    pub(crate) fn has_slots(&self, holder: Holder) -> bool {
        self.slots.values().any(|slot| slot.holder == holder)
    }

    /// The time limits of a call of `tool`, or those of the server.
    pub(crate) fn clocks_of(&self, tool: Option<&str>) -> &Clocks {
        tool.and_then(|name| self.tools.get(name))
            .unwrap_or(&self.clocks)
    }
}

/// The choice of the response to a POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The content type.
    pub(crate) mode: ReplyMode,
    /// Time that `auto` waits for a first message before it opens SSE.
    pub(crate) sse_after: Duration,
    /// Time after which a call of a client with the tasks extension becomes a task; zero is never, and the
    /// extension is not offered.
    pub(crate) task_after: Duration,
    /// Time for which clients without sessions may keep lists and resources; none for what the server says.
    pub(crate) cache_for: Option<Duration>,
    /// Time after which a POST stream of a 2025-11-25 session is closed for polling; zero is never.
    pub(crate) close_after: Duration,
}

/// The content type of the response to a POST with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// JSON if the first message is the final response and arrives in time, else SSE.
    Auto,
    /// Always SSE.
    Sse,
    /// Always JSON.
    Json,
}

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// From the spawn to the answer to `initialize`.
    pub(crate) start: Duration,
    /// A call, without progress.
    pub(crate) call: Duration,
    /// A call in total.
    pub(crate) call_max: Duration,
    /// The client's answer to a request of the server.
    pub(crate) ask: Duration,
    /// The wait of a request of the server for a connection that can carry it.
    pub(crate) ask_unclaimed: Duration,
    /// Between two pings of a child that has no call; zero is never.
    pub(crate) ping: Duration,
    /// From closing stdin to SIGTERM, and from there to SIGKILL of the process tree.
    pub(crate) stop: [Duration; 2],
}

/// Limits of one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of one line on stdout.
    pub(crate) line: u64,
    /// Bytes of stderr that are kept.
    pub(crate) stderr: u64,
    /// Open files (`RLIMIT_NOFILE`).
    pub(crate) files: u64,
    /// Bytes of one written file (`RLIMIT_FSIZE`).
    pub(crate) file_size: u64,
    /// Bytes of memory of all its processes together.
    pub(crate) memory: Option<u64>,
    /// Processes and threads.
    pub(crate) pids: Option<u32>,
    /// Processor time of all its processes together, in percents of one processor.
    pub(crate) cpu: Option<u32>,
}

/// Sharing, pooling and replacement of a server's children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Supervision {
    /// The sessions that share a child.
    pub(crate) isolation: Isolation,
    /// Maximum children for one shared key.
    pub(crate) max_children: u32,
    /// Children that are started ahead of their sessions.
    pub(crate) warm: u32,
    /// Idle time after which a child is stopped; zero is never.
    pub(crate) idle: Duration,
    /// The effect of a lost child on its session.
    pub(crate) on_loss: OnLoss,
}

/// The revisions that the children of a server are spoken to in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServerEra {
    /// Those that a child says it understands, by its answer to a probe.
    #[default]
    Auto,
    /// Session-based ones, without a probe.
    Legacy,
    /// Stateless ones.
    Modern,
}

/// The sessions that share a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// None: each session has a child.
    Session,
    /// The sessions of one principal.
    Principal,
    /// All sessions of the tenant: only for servers without user state.
    Tenant,
}

/// The effect of a lost child on its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLoss {
    /// The session gets another child.
    Restore,
    /// The session ends: 404.
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
