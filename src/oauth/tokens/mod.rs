//! Tokens: the token endpoint, revocation and signing.

pub(crate) mod jose;
pub(crate) mod revoke;
pub(crate) mod token;

pub(crate) use self::jose::Assertion;
