//! JOSE: signed tokens, key sets, keys that tokens carry, and thumbprints of keys. All without I/O.
//!
//! Not here: the meaning of tokens (`auth::jwt`, `auth::dpop`), and the fetching of keys (`auth::external`).
//!
//! * `embedded_key`: the public key in the header of a token.
//! * `jws`: signatures and key sets.
//! * `thumbprint`: thumbprints of public keys.

mod embedded_key;
mod jws;
mod thumbprint;

pub(crate) use self::embedded_key::EmbeddedKey;
pub(crate) use self::jws::{
    Jws, KeyId, KeySet, Signature, TOKEN_MAX, declared, members, members_of_anybody, numeric_date,
    parse_unverified, parse_with_key, string, strings,
};
pub(crate) use self::thumbprint::Thumbprint;
