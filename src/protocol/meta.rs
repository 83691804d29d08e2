//! Keys of `_meta` that the gateway acts on.

/// The key of the task that a message belongs to (2025-11-25 tasks, "Related Task Metadata").
pub(crate) const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// The protocol version of a request (2026-07-28 basic, "Per-request protocol fields").
pub(crate) const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The name and version of the client.
pub(crate) const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// What the client can be asked for.
pub(crate) const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The least level of the log messages that the client wants.
pub(crate) const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// The identifier of the extension for tasks (ext-tasks), among capabilities.
pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";
/// The name and version of the server, in results.
pub(crate) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// The key that a server of the modern era gave to what it asks. For the sessions that the gateway keeps for
/// clients of that era, which get the server's own keys.
pub(crate) const INPUT_KEY: &str = "lockgate/inputKey";

/// What a server of the modern era says of how long its result may be kept. For the sessions of its clients, of
/// which those of that era are told.
pub(crate) const CACHE: &str = "lockgate/cache";

/// Marks the result of an `initialize` that stands for a server of the modern era.
pub(crate) const STATELESS: &str = "lockgate/stateless";
/// Marks a request that says what its client is, to a server of the modern era: `true` if its client, of that era
/// too, gets what the server asks as it asks, and makes the request again itself; [`BARE`] if it does, and the
/// server is told nothing of it; `"asks"` if its session is asked.
pub(crate) const CARRIES: &str = "lockgate/carries";
/// The raw mark of a request whose client declares nothing that a server could ask it for.
pub(crate) const BARE: &str = r#""bare""#;
/// The beginning of the keys that the gateway gives to itself, which no client may send.
pub(crate) const OWN_PREFIX: &[u8] = b"lockgate/";

/// The keys that only the modern era has in `params._meta`. The version alone marks a request of it: "Every
/// request declares the protocol version it is using in its `_meta` field" (2026-07-28 versioning, "Protocol
/// Version Negotiation"), and clients of both eras send others, as the log level, in sessions too.
pub(crate) const MODERN_KEYS: [&str; 4] = [VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL];
