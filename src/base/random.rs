//! Source of random numbers, passed in so that tests can replace it, and unguessable names.

use aws_lc_rs::rand::SecureRandom;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use uuid::Uuid;

/// Source of keys, nonces and salts.
pub(crate) type Random = dyn SecureRandom + Send + Sync;

/// Makes an unguessable file name, as short as it can be: [`RANDOM_NAME`] letters.
pub(crate) fn random_name() -> String {
    URL_SAFE_NO_PAD.encode(Uuid::new_v4())
}

/// The length of such a name.
pub(crate) const RANDOM_NAME: usize = 22;

/// Whether a file name may be one of [`random_name`].
pub(crate) fn is_random_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    name.len() == RANDOM_NAME && name.bytes().all(is_letter)
}
