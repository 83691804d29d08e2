//! Keys of `_meta` that the gateway acts on.

/// The key of the task that a message belongs to (2025-11-25 tasks, "Related Task Metadata").
pub(crate) const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// The keys that mark a request of the modern era: any of them in `params._meta`.
pub(crate) const MODERN_KEYS: [&str; 4] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];
