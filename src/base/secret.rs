//! Texts that are never printed: passwords, keys, and URLs with credentials.
//!
//! Not here: random secrets of the authorization server (`oauth`), and sealing (`database/vault`).

use std::fmt;

use zeroize::Zeroizing;

/// A text that is never printed; wiped from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text.
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Wraps a text; `None` if it is empty.
    pub(crate) fn of(text: String) -> Option<Self> {
        (!text.is_empty()).then(|| Self::new(text))
    }

    /// Returns the text itself; not for logs and messages.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
