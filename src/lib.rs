//! Lockgate puts stdio MCP servers on the network.
//!
//! Remote clients speak HTTP to it; behind it run stdio servers of the Model Context
//! Protocol, as child processes that it supervises.
//!
//! # What a request meets
//!
//! ```text
//!  client ──HTTP──▶ http ──Access, Message──▶ hub ──▶ session task ──line──▶ child's stdin
//!                    ▲ └─ owner elsewhere: hop to its http │
//!                    └──── EventLog.read(cursor) ◀── EventLog.append(stream, event) ◀── stdout
//! ```
//!
//! Left to right is *deliver*; right to left is *the log*. There is no third path: first
//! delivery and resumption are the same `read` with another cursor. The one shortcut is a
//! response that arrives while its headers are still held: it goes out as JSON and never
//! enters the log.
//!
//! * `protocol` knows MCP and JSON-RPC as pure functions over bytes. Payloads are never
//!   parsed into types; ids and progress tokens are rewritten by splicing.
//! * `hub` is the core. One task owns a session: its backend, its calls, its streams.
//! * `backend` moves lines to and from a child through the guard, and translates.
//! * `store` holds the seams behind which state is kept: event log, directory, limits; in memory for
//!   one gateway alone, in Redis for replicas.
//! * `auth` makes the proof (`Access`) that every hub method takes, from a bearer token or an API
//!   key and from nothing else, and judges messages by policy.
//! * `oauth` is the authorization server of each tenant: metadata, clients, log-in and consent, tokens.
//!   What a token is worth is `auth`'s to say, by keys and revocations of the snapshot.
//! * `outbound` fetches what others name, from public addresses only.
//! * `control` is what an operator declares; `config` is how the gateway itself is set.
//! * `http` is the skin: fronts that turn HTTP into messages and events into HTTP.
//! * `sharing` connects a replica with the others: Redis, the stores in it, keys that all derive.
//! * `cli` is `lockgate run`, `serve`, `check`, `import`, the commands on the store, and those that
//!   speak the administration API of a running gateway (`client`, `remote`, `apply`).
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | tenant | the isolation boundary: own servers, own sessions |
//! | server | a named MCP server of a tenant: a launch specification |
//! | backend | one running thing that speaks MCP behind us: a child process |
//! | guard | the small process between the gateway and a child, which ends everything below it |
//! | separation | what keeps the processes of one child from those of another |
//! | profile | what a child may reach, beside single knobs: `standard` or `open` |
//! | cage | the walls around one child, as decided for this machine |
//! | recipe | what is done once before the children of a server can start (`prepare`) |
//! | prepared store | the directory that a recipe filled, which children read |
//! | session | a client's protocol session, visible as `Mcp-Session-Id` |
//! | stream | the ordered events of one HTTP response, kept in the event log |
//! | listener | the session's stream for what belongs to no request |
//! | carrier | a stream that is SSE, or may still become SSE |
//! | call | a request of the client that the child has |
//! | ask | a request of the child that the client has to answer |
//! | cursor | the place behind an event of a stream; as text, the event id |
//! | replica | one of several gateways that share a store and sessions |
//! | owner | the replica that runs a session's backend |
//! | heartbeat | a replica's sign of life in the directory, which stands for 5 s |
//! | lease | for how long a replica may serve its sessions behind its last heartbeat: 3 s |
//! | claim | to become the owner of a session whose owner is gone |
//! | fence | a session's number, which grows with each claim; writes under an older one fail |
//! | epoch | which life of the store this is: another one after it lost what it had |
//! | hop | a request on its way from the replica that took it to the owner of its session |
//! | principal | who calls: tenant, issuer, subject and client id |
//! | grant | what a person allowed: subject, client, resource, scopes; tokens hang on it |
//! | grants of a server | who of a tenant may use it |
//! | flow | an authorization request on its way through a browser, sealed into its forms |
//! | trip | a log-in that is at an identity provider |
//! | revocation | a numbered row that ends grants on every replica |
//! | API key | a secret for machines, which stands for a subject |
//! | object | one thing that an operator declares: a tenant, a server, a user or an API key |
//! | store | what is declared and who changed it, in SQLite or PostgreSQL |
//! | snapshot | what the store held when it was read last: what requests read |
//! | master key | what secrets are sealed with before they are stored |
//! | access | proof that a principal may use a server |
//! | policy | what of a server its clients may use, by name, and the scopes that takes |
//! | quota | how much of the gateway a tenant, or a principal, may use |
//! | account | what is counted together: one limit of one tenant, principal or address |
//! | allotment | a part of a rate, drawn from the limiter ahead of its use |
//! | seat | a place among what an account counts, given back by being dropped |
//!
//! # What is declared
//!
//! `control::declared` takes a manifest apart into objects, each a document in the manifest's own
//! syntax. `control::store` keeps them in SQLite or PostgreSQL: every change is judged as the whole
//! state that it leads to and written with its audit record. `control::keeper` applies the manifest's
//! file and reads the store anew when something changed, here or at another replica; requests read
//! the snapshot in `control::live` and never wait for a database. What time it is, for codes, tokens and
//! revocations, is that of the database, which `control::clock` carries on without asking it.
//!
//! # A call
//!
//! `http::legacy` reads the body, `protocol::message` finds the envelope, `hub` finds the
//! session by its id and its principal, and the session's task writes the message to the
//! child under an id of its own. On the way `hub::limits` counts the message and `auth::policy`
//! judges it: what is refused reaches no child. If the response is the first thing that the child says
//! within `reply.sse_after`, it goes out as JSON. Otherwise the stream opens as SSE: the
//! child's messages are appended to the event log, and the connection reads the log.
//!
//! # A message that the server begins
//!
//! `hub::routes` decides which stream it belongs to. A request of the child gets an id of
//! the gateway, so that the client's answer, which comes by POST, finds its way back.
//!
//! # The loss of a child
//!
//! Every call in flight ends with −31001; the session goes on. `hub::link` is its side of the
//! backend, `hub::start` gets one and `hub::restore` loses it: the next request gets another
//! child, which is told what the first one was. `backend::pool` says when one may start.
//!
//! # The loss of a replica
//!
//! Any replica takes any request. `http::forward` asks `hub::place` whose its session is and sends it on
//! as a hop; `http::cluster` is where it arrives, and serves it as if the client had come itself. While
//! `hub::owner` gets its heartbeats acknowledged it holds a lease; without one every session stands still
//! (`hub::standstill`): its child is not read, and nothing is sent. A session whose owner has no
//! heartbeat, or refuses connections, is claimed by the replica that is asked for it. What its fence
//! keeps out is the old owner, should that one wake. The claimer reads `hub::record`, ends the calls that
//! were open with −31001 in the log, and goes on as after the loss of a child. A client whose connection
//! was to the owner resumes by any replica; one whose connection was to another replica notices
//! nothing but the end of its calls (`http::splice`). While the heartbeat of an owner stands that nobody
//! can reach, no second hop is lost to it (`hub::silence`), and streams are read on from the log alone
//! (`hub::unowned`). A replica that ends by itself begins
//! no more sessions (`http::leaving`), and gives those that it has back before it goes (`hub::ending`). What operators are promised is in `docs/replicas.md`.
//!
//! # A child that sessions share
//!
//! `backend::shared` owns it. Each session has a number with which the ids and progress tokens
//! that it uses begin, so that `backend::audience` knows whose an answer is without a table.

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

pub use self::backend::guard::supervisor::guard;
pub use self::cli::main;
