//! Proofs of the possession of a key (DPoP, RFC 9449), which bind tokens to the clients that they were issued to.
//!
//! Nonces (section 8) are not used: a proof is good for about a minute, and once. Not here: the binding of issued
//! tokens (`oauth::tokens`), and of tokens that are presented (`auth::access`).
//!
//! * `header`: the header field of a proof.
//! * `proof`: a proof, and the checks of it that need nothing else.
//! * `target`: URLs of requests, compared.
//! * `used_proofs`: proofs that were used, at all replicas.

mod header;
mod proof;
mod target;
mod used_proofs;

pub(crate) use self::header::offered;
pub(crate) use self::proof::{PROOF_ALGORITHMS, Proof, ProvenRequest};
pub(crate) use self::used_proofs::UsedProofs;
