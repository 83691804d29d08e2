//! Source of random numbers, passed in so that tests can replace it.

use aws_lc_rs::rand::SecureRandom;

/// Source of keys, nonces and salts.
pub(crate) type Random = dyn SecureRandom + Send + Sync;
