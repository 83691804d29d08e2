//! Thumbprints of public keys (RFC 7638), by which a token names the key of its holder (RFC 9449,
//! section 6.1).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::base::sha256;

/// The SHA-256 thumbprint of a public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Thumbprint([u8; 32]);

impl Thumbprint {
    /// Reads a thumbprint in base64url; `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// Writes it in base64url.
    pub(crate) fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// The thumbprint of a key with these required members, which are in lexicographic order and need no
    /// escapes (section 3).
    pub(super) fn of(members: &[(&str, &str)]) -> Self {
        let members: Vec<String> = members
            .iter()
            .map(|(name, value)| format!("\"{name}\":\"{value}\""))
            .collect();
        Self(sha256(format!("{{{}}}", members.join(",")).as_bytes()))
    }
}

impl std::fmt::Debug for Thumbprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::super::thumbprint::*;

    #[test]
    fn only_32_bytes_in_base64url_are_a_thumbprint() {
        let good = "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs";
        assert_eq!(Thumbprint::parse(good).unwrap().text(), good);
        for bad in [
            "",
            "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9X",
            "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs=",
            "NzbLsXh8uDCcd+6MNwXF4W/7noWXFZAfHkxZsRGC9Xs",
            // Another spelling of the same bytes.
            "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xt",
            "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9XsNzbL",
        ] {
            assert!(Thumbprint::parse(bad).is_none(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn thumbprints_come_back_unchanged(bytes in any::<[u8; 32]>()) {
            let written = Thumbprint(bytes).text();
            assert_eq!(Thumbprint::parse(&written), Some(Thumbprint(bytes)));
        }

        #[test]
        fn nothing_panics(text in ".*") {
            let _ = Thumbprint::parse(&text);
        }
    }
}
