//! Access to `_meta`: the few keys that the gateway acts on.

/// 2025-11-25 tasks, "Related Task Metadata": names the task that a message belongs to.
pub(crate) const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// Any of these in `params._meta` makes a request one of the modern era (DESIGN section 2).
pub(crate) const MODERN_KEYS: [&str; 4] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];
