//! Identity of replicas: boot ids that only a replica of the deployment can make, and the proof of
//! one on a new connection.
//!
//! A writer of the directory could name an address of their own as the owner of a session.
//! A boot id is a random number and a MAC over it and the address, so the directory needs no other
//! field, and every entry that names a replica proves itself. Whose session an entry is has a seal. An address may be another host's by
//! the time it is used: a replica that connects to it asks for another MAC, over a number of its own.
//! Not here: the MAC of a forwarded request (`http::peers::hop`).

use std::sync::Arc;

use aws_lc_rs::{error::Unspecified, rand};

use super::contract::{Replica, SessionId};
use crate::base::{MacKeys, hex};

/// The keys by which replicas know each other; a handle.
#[derive(Clone)]
pub(crate) struct ReplicaKeys(MacKeys);

impl ReplicaKeys {
    /// The purpose for which the keys are derived from the master keys.
    pub(crate) const LABEL: &str = "lockgate replica v1";

    /// Makes them from those derived keys.
    pub(crate) fn new(keys: MacKeys) -> Self {
        Self(keys)
    }

    /// Makes the replica at an address, with a new boot id.
    ///
    /// # Errors
    ///
    /// There is no key, or the system has no randomness.
    pub(crate) fn replica(&self, address: &Arc<str>) -> Result<Replica, Unspecified> {
        let boot = challenge()?;
        let code = self.0.sign(&named(&boot, address)).ok_or(Unspecified)?;
        Ok(Replica {
            address: Arc::clone(address),
            boot: (boot + &hex(&code[..HALF])).into(),
        })
    }

    /// Returns whether a replica of this deployment named itself so.
    pub(crate) fn is_genuine(&self, replica: &Replica) -> bool {
        let Some((boot, code)) = replica.boot.split_at_checked(2 * HALF) else {
            return false;
        };
        from_hex(code).is_some_and(|code| self.0.verify(&named(boot, &replica.address), &code))
    }

    /// Seals whose session it is, at which server, for the directory that others may be able to write.
    pub(crate) fn seal(
        &self,
        session: &SessionId,
        principal: &str,
        server: &str,
    ) -> Option<String> {
        let code = self.0.sign(&sealed(session, principal, server))?;
        Some(hex(&code[..HALF]))
    }

    /// Returns whether a replica of this deployment has sealed it.
    pub(crate) fn has_sealed(
        &self,
        seal: &str,
        session: &SessionId,
        principal: &str,
        server: &str,
    ) -> bool {
        from_hex(seal).is_some_and(|code| self.0.verify(&sealed(session, principal, server), &code))
    }

    /// Proves to a replica that connected to `address` that this is a replica with that address.
    pub(crate) fn prove(&self, challenge: &str, address: &str) -> Option<String> {
        Some(hex(&self.0.sign(&proved(challenge, address))?))
    }

    /// Returns whether that is proved.
    pub(crate) fn is_proof(&self, proof: &str, challenge: &str, address: &str) -> bool {
        from_hex(proof).is_some_and(|code| self.0.verify(&proved(challenge, address), &code))
    }
}

/// Makes a random number to be signed, as text.
pub(crate) fn challenge() -> Result<String, Unspecified> {
    let mut random = [0; HALF];
    rand::fill(&mut random)?;
    Ok(hex(&random))
}

fn named<'p>(boot: &'p str, address: &'p str) -> [&'p [u8]; 3] {
    [b"boot", boot.as_bytes(), address.as_bytes()]
}

fn proved<'p>(challenge: &'p str, address: &'p str) -> [&'p [u8]; 3] {
    [b"proof", challenge.as_bytes(), address.as_bytes()]
}

fn sealed<'p>(session: &'p SessionId, principal: &'p str, server: &'p str) -> [&'p [u8]; 4] {
    [
        b"session",
        session.0.as_bytes(),
        principal.as_bytes(),
        server.as_bytes(),
    ]
}

/// Strict, so that a boot id has one spelling.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if !text.bytes().all(is_digit) {
        return None;
    }
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Bytes of a random number, and of the MAC in a boot id.
const HALF: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::identity::*;

    fn keys(byte: u8) -> ReplicaKeys {
        ReplicaKeys::new(MacKeys::new([&[byte; 32]]))
    }

    #[test]
    fn a_boot_id_belongs_to_one_address_and_deployment() {
        let own = keys(7).replica(&"10.0.0.7:7080".into()).unwrap();
        assert!(keys(7).is_genuine(&own) && !keys(8).is_genuine(&own));
        let address: Arc<str> = "10.0.0.66:7080".into();
        assert!(!keys(7).is_genuine(&Replica {
            address,
            ..own.clone()
        }));
        let text = own.boot.to_string();
        for boot in ["", "a", &text[..32], &text[..63], &text.to_uppercase(), "é"] {
            let forged = Replica {
                boot: boot.into(),
                ..own.clone()
            };
            assert!(!keys(7).is_genuine(&forged), "{boot}");
        }
        let again = keys(7).replica(&own.address).unwrap();
        assert_ne!(again.boot, own.boot, "each start has its own");
    }

    #[test]
    fn a_seal_is_for_one_session_of_one_principal_at_one_server() {
        let (one, other) = (SessionId("one".into()), SessionId("other".into()));
        let seal = keys(7).seal(&one, "ada", "files").unwrap();
        let has = |seal: &str, session, principal, server| {
            keys(7).has_sealed(seal, session, principal, server)
        };
        assert!(has(&seal, &one, "ada", "files"));
        assert!(!has(&seal, &other, "ada", "files"));
        assert!(!has(&seal, &one, "bob", "files"));
        assert!(!has(&seal, &one, "ada", "mail"));
        assert!(!has(&seal, &one, "adaf", "iles"));
        assert!(!has("", &one, "ada", "files"));
        assert!(!keys(8).has_sealed(&seal, &one, "ada", "files"));
    }

    #[test]
    fn a_proof_is_for_one_connection_to_one_address() {
        let (one, other) = (challenge().unwrap(), challenge().unwrap());
        let proof = keys(7).prove(&one, "10.0.0.7:7080").unwrap();
        let is_proof = |proof: &str, one: &str, address| keys(7).is_proof(proof, one, address);
        assert!(is_proof(&proof, &one, "10.0.0.7:7080"));
        assert!(!is_proof(&proof, &other, "10.0.0.7:7080"), "repeated");
        assert!(!is_proof(&proof, &one, "10.0.0.66:7080"), "relayed");
        assert!(!is_proof("", &one, "10.0.0.7:7080"));
        assert!(!keys(8).is_proof(&proof, &one, "10.0.0.7:7080"));
    }
}
