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

/// Whether a key marks a request of the modern era.
pub(crate) fn is_modern(key: &[u8]) -> bool {
    // Most keys are short: a flood of them is not compared four times each.
    key.starts_with(b"io.modelcontextprotocol/")
        && MODERN_KEYS.iter().any(|modern| modern.as_bytes() == key)
}
