//! Authentication and access: the principal behind a request, and the servers and operations it may
//! use.
//!
//! Not here: issue of tokens (`oauth`), and HTTP responses to refusals (`http`).
//!
//! * `access`: callers with valid credentials, and the proof of what they may use.
//! * `administrator`: administrators, and the first operator's key.
//! * `api_key`: API keys: generation, syntax and check, and those that people made.
//! * `builtin`: access tokens of the tenant's own authorization server.
//! * `denials`: audit of denied requests, the repeated ones folded.
//! * `dpop`: proofs of the possession of a key (RFC 9449).
//! * `external`: access tokens of other authorization servers, and the keys of issuers.
//! * `introspection`: opaque access tokens, which their issuer is asked about.
//! * `jose`: signed tokens, key sets, and thumbprints of keys.
//! * `jwt`: access tokens as JWTs.
//! * `policy`: the access policy of a server, applied to messages in both directions.
//! * `principals`: principals, interned.
//! * `request`: requests before the decision, and refusals.
//! * `verified_tokens`: cache of verified tokens, until they expire.
//! * `verifier`: the decision on each request.

pub(crate) mod access;
pub(crate) mod administrator;
pub(crate) mod api_key;
mod builtin;
mod denials;
pub(crate) mod dpop;
mod external;
mod introspection;
pub(crate) mod jose;
mod jwt;
pub(crate) mod policy;
mod principals;
mod request;
mod verified_tokens;
mod verifier;

pub(crate) use self::access::Access;
pub(crate) use self::administrator::{ADMIN_SCOPE, Administrator, AdministratorRefusal};
pub(crate) use self::api_key::{People, PersonStanding};
pub(crate) use self::builtin::REGISTERED;
pub(crate) use self::denials::{Caller, Denial, Denials};
pub(crate) use self::dpop::{Proof, ProvenRequest, UsedProofs};
pub(crate) use self::external::TrustedIssuers;
pub(crate) use self::jose::{Jws, KeySet, Signature, Thumbprint};
pub(crate) use self::jwt::{TokenError, holder};
pub(crate) use self::policy::{Listed, PolicyRefusal};
pub(crate) use self::principals::Principal;
pub(crate) use self::request::{AccessRefusal, AccessRequest, Credential, Rejected};
pub(crate) use self::verifier::Verifier;
