//! Proof of a replica on a new connection, before anything is sent to it.
//!
//! A request with a random number, and a response with a MAC over it and the address that was
//! connected to: a listener there that relays the number to a replica gets a proof of the address of
//! that one. Not here: the keys (`state::identity`).

use bytes::Bytes;
use http::{HeaderValue, Request};

use super::connection::{Connection, SendError};
use crate::{
    http::reply::header_name::HOP,
    state::{ReplicaKeys, identity},
};

/// Reason why a peer is not trusted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProofError {
    /// The connection failed.
    #[error("the connection broke")]
    Connection(SendError),
    /// The system has no randomness, or the address is none.
    #[error("no challenge could be made")]
    NoChallenge,
    /// The peer does not have the key, or another address.
    #[error("it does not prove that it is a replica of this deployment with this address")]
    NotProved,
}

/// Asks the peer at `address` for its proof.
///
/// # Errors
///
/// There is none.
pub(super) async fn demand(
    mut connection: Connection,
    keys: &ReplicaKeys,
    address: &str,
) -> Result<(), ProofError> {
    let challenge = identity::challenge().map_err(|_| ProofError::NoChallenge)?;
    let request = Request::builder()
        .uri(format!("http://{address}/"))
        .header(HOP, format!("{CHALLENGE}{challenge}"))
        .body(Bytes::new());
    let request = request.map_err(|_| ProofError::NoChallenge)?;
    let response = connection.send(request).await;
    let response = response.map_err(ProofError::Connection)?;
    let proof = response.headers().get(HOP);
    let proof = proof.and_then(|proof| proof.to_str().ok()?.strip_prefix(PROOF));
    let is_proved = proof.is_some_and(|proof| keys.is_proof(proof, &challenge, address));
    is_proved.then_some(()).ok_or(ProofError::NotProved)
}

/// Returns the number that a request wants signed.
pub(super) fn challenge_of(header: &HeaderValue) -> Option<&str> {
    header.to_str().ok()?.strip_prefix(CHALLENGE)
}

/// Makes the header field of a response.
pub(super) fn header_of(proof: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{PROOF}{proof}")).ok()
}

/// Begins no hop, whose version has no such letters.
const CHALLENGE: &str = "challenge;";
const PROOF: &str = "proof;";
