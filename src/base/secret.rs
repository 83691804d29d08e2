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

/// What was given as a URL, without the user name and the password before its host, for texts of errors. It may be
/// none: a password with a slash makes another host of the user name.
pub(crate) fn without_user(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}…@{host}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::secret::*;

    #[test]
    fn a_url_is_told_without_its_password() {
        for (url, told) in [
            ("https://h/a?b", "https://h/a?b"),
            ("https://u:SECRET@h:1/a", "https://…@h:1/a"),
            ("https://SECRET@h", "https://…@h"),
            ("https://u:SEC/R@ET@h", "https://…@h"),
            ("u:SECRET@h:1", "…@h:1"),
            ("", ""),
        ] {
            assert_eq!(without_user(url), told);
        }
    }
}
