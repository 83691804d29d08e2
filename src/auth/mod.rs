//! Authentication and access: who calls, and what they may use.

pub(crate) mod access;
pub(crate) mod administrator;
pub(crate) mod api_key;
mod builtin;
mod denials;
mod external;
pub(crate) mod jws;
mod jwt;
pub(crate) mod policy;
mod principals;

pub(crate) use self::access::{Access, AccessRefusal, Credential, Verifier};
pub(crate) use self::administrator::{ADMIN_SCOPE, Administrator, AdministratorRefusal};
pub(crate) use self::builtin::REGISTERED;
pub(crate) use self::denials::{Caller, Denial, Denials};
pub(crate) use self::jws::{Jws, KeySet, Signature};
pub(crate) use self::policy::{Listed, PolicyRefusal};
pub(crate) use self::principals::Principal;
