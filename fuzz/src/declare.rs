//! `src/declare`: redirect URIs, and what tokens are compared with.

#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/declare/authorization_server.rs"]
mod authorization_server;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/declare/identity.rs"]
mod identity;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/declare/pattern.rs"]
mod pattern;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/declare/policy.rs"]
mod policy;
#[path = "../../src/declare/redirect.rs"]
pub(crate) mod redirect;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/declare/subset.rs"]
mod subset;

pub(crate) use self::authorization_server::{GroupsClaim, PRIVATE_MEMBERS, are_too_many};
pub(crate) use self::identity::{ALGORITHMS, Algorithm, External};
