//! Authentication and access: the principal behind a request, and the servers and operations it may
//! use.
//!
//! Not here: issue of tokens (`oauth`), and HTTP responses to refusals (`http`).
//!
//! * `access`: the decision on each request, and the proof of it.
//! * `administrator`: administrators, and the first operator's key.
//! * `api_key`: API keys: generation, syntax and check, and those that people made.
//! * `assertion`: the caller of a request that another replica forwards.
//! * `builtin`: access tokens of the tenant's own authorization server.
//! * `denials`: audit of denied requests, the repeated ones folded.
//! * `external`: access tokens of other authorization servers, and the keys of issuers.
//! * `introspection`: opaque access tokens, which their issuer is asked about.
//! * `jws`: signatures and key sets.
//! * `jwt`: access tokens as JWTs.
//! * `policy`: the access policy of a server, applied to messages in both directions.
//! * `principals`: principals, interned.
//! * `verified_tokens`: cache of verified tokens, until they expire.

pub(crate) mod access;
pub(crate) mod administrator;
pub(crate) mod api_key;
mod assertion;
mod builtin;
mod denials;
mod external;
mod introspection;
pub(crate) mod jws;
mod jwt;
pub(crate) mod policy;
mod principals;
mod verified_tokens;

pub(crate) use self::access::{Access, AccessRefusal, Credential, Verifier};
pub(crate) use self::administrator::{ADMIN_SCOPE, Administrator, AdministratorRefusal};
pub(crate) use self::api_key::{People, PersonStanding};
pub(crate) use self::builtin::REGISTERED;
pub(crate) use self::denials::{Caller, Denial, Denials};
pub(crate) use self::external::TrustedIssuers;
pub(crate) use self::jws::{Jws, KeySet, Signature};
pub(crate) use self::jwt::TokenError;
pub(crate) use self::policy::{Listed, PolicyRefusal};
pub(crate) use self::principals::Principal;
