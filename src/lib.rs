//! Lockgate: a multi-tenant gateway that puts stdio MCP servers on the network.
//!
//! Remote clients speak HTTP to it. Behind it run stdio servers of the Model Context Protocol, as
//! child processes that it starts, confines and supervises.
//!
//! This page has the words and six walkthroughs, in which every name is a link. The rooms, their
//! imports and the rules that keep them apart are in `docs/architecture.md`.
//!
//! # The picture
//!
//! ```text
//!  client ──HTTP──▶ http ──Access, Message──▶ hub ──▶ session task ──line──▶ child's stdin
//!                    ▲ └─ owner elsewhere: hop to its http │
//!                    └──── EventLog.read(cursor) ◀── EventLog.append(stream, event) ◀── stdout
//! ```
//!
//! From left to right a message is *delivered*; from right to left an event passes through *the
//! log*. There is no third path: first delivery and resumption are the same read, from different
//! cursors. The one exception is a response that arrives before its headers are sent: it goes out
//! as JSON, and never enters the log.
//!
//! # The rooms
//!
//! Lowest layer first: each room imports only rooms listed before it.
//!
//! * [`base`], [`endpoint`], [`error`]: clock, secrets, outbound requests; URLs; refusals of
//!   requests
//! * [`protocol`]: MCP and JSON-RPC as pure functions over bytes. Payloads are not parsed into
//!   types; ids and progress tokens are rewritten in place.
//! * [`config`]: the settings of the gateway itself
//! * [`declare`]: the model of tenants, servers and identities that operators declare
//! * [`manifest`]: readers and checks of that model
//! * [`database`]: declared objects, issued grants and keys, audit trail; in SQLite or PostgreSQL
//! * [`snapshot`]: the state of the database in memory, which requests read
//! * [`state`]: event log, session directory and limiter; in memory or in Redis
//! * [`telemetry`]: logs and metrics
//! * [`auth`]: credentials, access to servers, and policy
//! * [`backend`]: child processes, their guards and sandboxes
//! * [`hub`]: sessions, calls and streams
//! * [`http`]: listeners and routes
//! * [`oauth`]: the authorization server of each tenant
//! * [`gateway`]: construction, start and stop of all parts
//! * [`cli`]: the commands of the binary
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | access | proof that a principal may use a server; every method of the hub takes one |
//! | account | the subject of a limit: one limit of one tenant, principal or address |
//! | allotment | a part of a rate, drawn from the limiter ahead of its use |
//! | API key | a secret for machines, which stands for a subject |
//! | backend | a running MCP server behind the gateway: a child process |
//! | call | a request of the client that is in flight at the child |
//! | claim | the change of a session's owner, after the old owner is gone |
//! | cursor | a position in a stream, behind one of its events; as text, the event id |
//! | epoch | the number of an incarnation of the state; it changes when the state is lost |
//! | event | one message of the server in a stream |
//! | fence | the fencing number of a session, which grows with each claim; older writers fail |
//! | flow | an authorization request during log-in, sealed into a hidden form field |
//! | grant | the consent of a user: subject, client, resource, scopes; tokens depend on it |
//! | family | what the texts of all refresh tokens of a grant have in common |
//! | guard | the process between the gateway and a child, which ends all processes below it |
//! | heartbeat | the periodic write of a replica to the directory; it expires after 5 s |
//! | hop | a request on its way from the replica that received it to the session's owner |
//! | lease | the right to serve sessions, for 3 s after each acknowledged heartbeat |
//! | listener stream | the stream of a session for messages that belong to no call |
//! | master key | the key under which secrets in the database are sealed |
//! | object | a declared tenant, server, user, OAuth client, identity provider or API key |
//! | owner | the replica that runs a session's backend |
//! | policy | the tools, prompts and resources of a server that clients may use, by scope |
//! | prepared store | the directory that a recipe filled, which children read |
//! | principal | the caller: tenant, issuer, subject and client id |
//! | quota | the maximum use of the gateway by a tenant or a principal |
//! | recipe | the steps that run once before the children of a server can start |
//! | replica | one of several gateways that share database, state and sessions |
//! | revocation | a numbered row that ends grants on every replica |
//! | seat | a place under a concurrency limit, returned when dropped |
//! | separation | the means that keeps the processes of one child from those of another |
//! | server | a named MCP server of a tenant, with the command that launches it |
//! | session | the protocol session of a client, identified by `Mcp-Session-Id` |
//! | snapshot | the state of the database when it was last read |
//! | stream | the ordered events of one HTTP response, kept in the event log |
//! | tenant | the unit of isolation, with its own servers, identities and sessions |
//!
//! # A call
//!
//! [`accept::serve`](http::listen::accept::serve) accepts the connection, and
//! [`Gate::pass`](http::edge::Gate::pass) checks host, origin and size.
//! [`enter`](http::admission::enter) admits the request:
//! [`Verifier::admit`](auth::Verifier::admit) turns its credential into an
//! [`Access`](auth::Access), from a bearer token or an API key.
//!
//! [`Hub::deliver`](hub::Hub::deliver) finds the session by its id and principal. The
//! [`Session`](hub::session::Session) task counts the message, judges it by the server's
//! [`policy`](auth::policy), gives it an id of the gateway, and writes it to its
//! `Link`. A refused message reaches no child.
//!
//! If the response is the first message of the child within `reply.sse_after`, it goes out as JSON.
//! Otherwise the response becomes an SSE stream.
//!
//! # An event
//!
//! The session task reads a line of its child, and [`route`](hub::stream::route) decides which
//! stream it belongs to. A request of the child gets an id of the gateway, by which the client's
//! answer, which comes in a later POST, finds its way back.
//!
//! [`EventLog::append`](state::EventLog::append) keeps the event before any client receives it.
//! Each connection is a [`Reader`](hub::stream::Reader), which reads the log from its own cursor.
//!
//! If the child ends, every call in flight ends with −31001, and the session continues: its next
//! request starts another child and repeats the handshake.
//!
//! # The start of a child
//!
//! [`Pool::get`](backend::Pool::get) has a warm child or starts another, within the limits of
//! [`backend::admission`] and after the installations of [`backend::prepare`].
//! [`Launcher::request`](backend::child::Launcher::request) says what the guard shall start, with the
//! restrictions that [`Sandbox::restrictions`](backend::sandbox::Sandbox::restrictions) chooses. The
//! [`guard`](backend::guard) applies them to the server, and kills every process below itself when
//! the server or the gateway ends.
//!
//! # A manifest key
//!
//! [`manifest::reader::read`] parses the text, and one file per table builds the types of
//! [`declare`]. The same reads describe the keys, of which [`manifest::schema`] is made. [`Objects::apply`](database::objects::Objects::apply) stores each object as a row,
//! with its audit record. A change is judged by the whole state that it leads to
//! ([`checks::judge`](manifest::checks::judge)).
//!
//! [`SnapshotSync`](snapshot::SnapshotSync) polls the database, and
//! [`CurrentSnapshot::refresh`](snapshot::CurrentSnapshot::refresh) reads a changed one again.
//! Requests read the [`Snapshot`](snapshot::Snapshot), and never wait for the database.
//!
//! # A token
//!
//! [`oauth::browser`] takes a user through log-in and consent, from
//! [`authorize`](oauth::browser::authorize) over [`login`](oauth::browser::login) or
//! [`callback`](oauth::browser::callback) to [`consent`](oauth::browser::consent), which issues a
//! code. [`oauth::tokens`] exchanges the code for an access token, signed with the tenant's
//! [`SigningKey`](database::oauth::SigningKey).
//!
//! [`Verifier::admit`](auth::Verifier::admit) verifies it against the keys and revocations of the
//! snapshot. A revocation takes effect within two seconds on every replica that reaches the
//! database: a replica whose [`LastPollAttempt`](snapshot::LastPollAttempt) is older accepts no
//! token. Without the database tokens stay valid.
//!
//! # The loss of a replica
//!
//! Any replica takes any request. [`Hub::locate_or_claim`](hub::Hub::locate_or_claim) finds the
//! session's owner, and [`http::replicas::forward`] sends the request there, with a signed
//! [`Hop`](http::peers::Hop).
//!
//! A replica holds a lease ([`ReplicaLease`](hub::ownership::ReplicaLease)) while its heartbeats are
//! acknowledged. Without a lease its sessions pause: it reads no child, and sends no event. A session
//! whose owner has no heartbeat, or refuses connections, is claimed by the replica that a client asks for it
//! ([`Directory::claim`](state::Directory::claim)). The fence keeps the old owner out if it returns.
//!
//! The new owner reads the session's record, ends its open calls with −31001 in the log, and
//! starts a new child. Clients that were connected to the old owner resume at any replica. A
//! client that was connected to another replica sees only the end of its calls, because
//! [`http::replicas`] continues its stream from the log.
//!
//! Operators find the guarantees in `docs/replicas.md`.

mod auth;
mod backend;
mod base;
mod cli;
mod config;
mod database;
mod declare;
mod endpoint;
mod error;
mod gateway;
mod http;
mod hub;
mod manifest;
mod oauth;
mod protocol;
mod snapshot;
mod state;
mod telemetry;

pub use self::backend::guard::stages::guard;
pub use self::base::memory::Allocator;
pub use self::cli::main;
