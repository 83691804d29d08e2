//! What an operator declares: tenants, their servers, and how each server runs.
//!
//! These are the checked forms; `manifest` reads them from a file. Not here: who may call
//! what (`auth`) and anything that runs (`backend`, `hub`).

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use crate::protocol::Revision;

use super::confinement::Confinement;
use super::identity::AuthMode;
use super::identity::{ApiKeys, Grants};
use super::policy::Policy;
use super::quotas::{Quotas, Room};
use super::recipe::Recipe;
use super::supervision::Supervision;
use crate::database::oauth::Issued;

/// Every tenant that this gateway serves, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// Tenants by their name.
    pub(crate) tenants: HashMap<String, Arc<Tenant>>,
    /// What decides whether tokens of our own issuers are worth anything.
    pub(crate) issued: Arc<Issued>,
}

impl Catalog {
    /// Every server of every tenant, in no order.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        let tenants = self.tenants.values();
        tenants.flat_map(|tenant| tenant.servers.values())
    }

    /// Takes over from `before` what is the same, so that what did not change can be told by its
    /// address.
    pub(crate) fn keeping(mut self, before: &Self) -> Self {
        for (name, tenant) in &mut self.tenants {
            let Some(old) = before.tenants.get(name) else {
                continue;
            };
            if tenant == old {
                *tenant = Arc::clone(old);
                continue;
            }
            // Nobody else has it yet.
            if let Some(tenant) = Arc::get_mut(tenant) {
                for (name, server) in &mut tenant.servers {
                    if let Some(old) = old.servers.get(name).filter(|old| *old == server) {
                        *server = Arc::clone(old);
                    }
                }
            }
        }
        self
    }

    /// The server at `/t/{tenant}/{server}`, with its tenant.
    pub(crate) fn find(&self, tenant: &str, server: &str) -> Option<(Arc<Tenant>, Arc<Server>)> {
        let tenant = self.tenants.get(tenant)?;
        let server = tenant.servers.get(server)?;
        Some((Arc::clone(tenant), Arc::clone(server)))
    }
}

/// The isolation boundary: nothing below it is ever shared with another tenant.
#[derive(Debug, PartialEq)]
pub(crate) struct Tenant {
    /// Its name, as in the URL.
    pub(crate) name: String,
    /// How callers prove who they are.
    pub(crate) auth: AuthMode,
    /// Its API keys.
    pub(crate) api_keys: ApiKeys,
    /// The server meant where a request names none.
    pub(crate) default_server: Option<String>,
    /// Revisions that its clients may negotiate, newest first; never empty.
    pub(crate) revisions: Vec<Revision>,
    /// How much of the gateway it may use.
    pub(crate) quotas: Quotas,
    /// Its servers by name.
    pub(crate) servers: BTreeMap<String, Arc<Server>>,
}

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
    /// The clocks of a call of `tool`, or those of the server.
    pub(crate) fn clocks_of(&self, tool: Option<&str>) -> &Clocks {
        tool.and_then(|name| self.tools.get(name))
            .unwrap_or(&self.clocks)
    }
}

/// A launch specification: the only source of what is ever started.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The program: a path, or a name that is looked up in PATH; never a shell.
    pub(crate) command: String,
    /// Its arguments, passed as they are.
    pub(crate) args: Vec<String>,
    /// Its environment beside the fixed part; values may be secrets.
    pub(crate) env: BTreeMap<String, String>,
    /// Its working directory; none means a private one.
    pub(crate) cwd: Option<PathBuf>,
    /// Where HOME and TMPDIR come from.
    pub(crate) home: Home,
    /// What it may reach.
    pub(crate) confinement: Confinement,
    /// The store that it may read: what was prepared for it, once that is known.
    pub(crate) prepared: Option<PathBuf>,
    /// Whether this is the preparation itself, which may also write to the store.
    pub(crate) is_preparing: bool,
}

/// Tells launch specifications apart: the SHA-256 of all that decides what is started.
pub(crate) type Digest = [u8; 32];

impl Launch {
    /// Its digest; equal for equal specifications, in this process.
    pub(crate) fn digest(&self) -> Digest {
        let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        let mut add = |text: &[u8]| {
            context.update(&(text.len() as u64).to_le_bytes());
            context.update(text);
        };
        add(self.command.as_bytes());
        add(&[u8::from(self.home == Home::Caller)]);
        add(format!("{:?}", self.confinement).as_bytes());
        let cwd = self.cwd.as_ref().map(|path| path.as_os_str());
        add(cwd.map_or(&[], std::os::unix::ffi::OsStrExt::as_bytes));
        add(&(self.args.len() as u64).to_le_bytes());
        self.args.iter().for_each(|arg| add(arg.as_bytes()));
        for (name, value) in &self.env {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.finish().as_ref());
        digest
    }
}

/// Where a child's HOME, LANG and default working directory come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A directory of its own, 0700, removed with the child; LANG is C.UTF-8.
    Private,
    /// The caller's own (`lockgate run`): one's own server on one's own machine.
    Caller,
}

impl std::fmt::Debug for Launch {
    /// Names what is started; never the environment's values, which may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .field("home", &self.home)
            .field("confinement", &self.confinement)
            .field("prepared", &self.prepared)
            .field("is_preparing", &self.is_preparing)
            .finish()
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
