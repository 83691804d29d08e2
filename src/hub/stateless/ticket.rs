//! Tickets: sealed names of parked calls, which clients send back as `requestState`, and of tasks.
//!
//! "servers MUST treat requestState as an attacker-controlled input" (2026-07-28 mrtr, "Server
//! Requirements"): a ticket opens only for the tenant, the server, the principal and the request that it
//! was made for.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    auth::Access,
    base::{Sha256, budget::LargeWork, sha256},
    protocol::{EventKey, Message, modern},
    state::Replica,
};

/// The keys of tickets, the same on all replicas: the first seals.
pub(crate) struct TicketKey(Vec<RandomizedNonceKey>);

/// The name of a parked call, or of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket {
    /// The address and the boot id of the replica that has it.
    pub(super) owner: [String; 2],
    /// Its number there.
    pub(crate) call: u64,
    /// The number of times that the client was asked.
    pub(super) round: u32,
}

/// What a client sends back to a server of its own era: no replica has the call, and any child of the server may get
/// the retry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// The raw `requestState` of the server, which never goes out bare.
    pub(super) state: Option<String>,
    /// The number of times that the client was asked.
    pub(super) round: u32,
    /// The time until which it can be used, in milliseconds since 1970.
    pub(super) until: i64,
}

/// The use of a carried ticket, for the limiter: "Servers for which a given `requestState` must be consumed at most
/// once MUST enforce that invariant" (2026-07-28 mrtr, "Server Requirements").
pub(super) fn use_of(ticket: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.add_part(b"ticket");
    digest.add_part(nonce_of(ticket).as_bytes());
    digest.finish()
}

/// What tells a ticket from all others.
fn nonce_of(ticket: &str) -> &str {
    ticket.get(..NONCE_TEXT).unwrap_or(ticket)
}

/// The characters of a nonce at the beginning of a ticket.
const NONCE_TEXT: usize = NONCE_LEN * 4 / 3;

impl Ticket {
    /// The name of a call of this replica, when its client was asked for the `round`th time.
    pub(crate) fn new(me: &Replica, call: u64, round: u32) -> Self {
        let owner = [me.address.to_string(), me.boot.to_string()];
        Self { owner, call, round }
    }

    /// Whether the call is parked at this replica.
    pub(crate) fn is_of(&self, me: &Replica) -> bool {
        let [address, boot] = &self.owner;
        *me.address == **address && *me.boot == **boot
    }

    /// The replica that has the call.
    pub(crate) fn replica(&self) -> Replica {
        let [address, boot] = &self.owner;
        Replica {
            address: address.as_str().into(),
            boot: boot.as_str().into(),
        }
    }
}

/// The digest of what makes two requests the same call, in base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CallDigest(String);

impl CallDigest {
    /// The digest of a request.
    fn of(request: &Message) -> Self {
        Self(URL_SAFE_NO_PAD.encode(sha256(&modern::salient(request))))
    }

    /// The same for the body of a response, which is polled as its client likes.
    pub(super) fn at_once(access: &Access, request: &Message) -> Self {
        let turn = LargeWork::at_once(&access.tenant().name, request.bytes().len());
        turn.run(|| Self::of(request))
    }
}

/// A ticket with the call that it was made for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ForCall<T> {
    pub(super) ticket: T,
    pub(super) call: CallDigest,
}

impl<T> ForCall<T> {
    /// The ticket, if the retry is one of its call.
    pub(super) fn of(self, retry: &Message) -> Option<T> {
        (self.call == CallDigest::of(retry)).then_some(self.ticket)
    }
}

/// What a ticket is bound to: the principal at a server.
pub(crate) struct Binding([u8; 32]);

impl Binding {
    /// The binding of a principal at a server.
    pub(crate) fn of(access: &Access) -> Self {
        let mut digest = Sha256::new();
        let principal = access.principal().key();
        for part in [&*access.tenant().name, &access.server().name, principal] {
            digest.add_part(part.as_bytes());
        }
        // Earlier versions had a call here, which ids of tasks are not made for.
        digest.add_part(b"");
        Self(digest.finish())
    }
}

impl TicketKey {
    /// Keys for this purpose, which are derived from those of event ids.
    pub(crate) fn new(key: &EventKey, purpose: &[u8]) -> Self {
        let keys = key.derived(purpose).into_iter();
        // A key of 32 bytes is one.
        let keys = keys.filter_map(|key| RandomizedNonceKey::new(&AES_256_GCM, &key).ok());
        Self(keys.collect())
    }

    /// Seals a ticket; none without randomness.
    pub(crate) fn seal(&self, ticket: &impl Serialize, binding: &Binding) -> Option<String> {
        let mut sealed = serde_json::to_vec(ticket).ok()?;
        let key = self.0.first()?;
        let nonce = key.seal_in_place_append_tag(Aad::from(binding.0), &mut sealed);
        let mut out = nonce.ok()?.as_ref().to_vec();
        out.append(&mut sealed);
        Some(URL_SAFE_NO_PAD.encode(out))
    }

    /// Opens a ticket that was sealed for the same binding; none for any other text.
    pub(crate) fn open<T: DeserializeOwned>(&self, ticket: &str, binding: &Binding) -> Option<T> {
        if ticket.len() > MAX_TICKET {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(ticket).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        self.0.iter().find_map(|key| {
            let mut sealed = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let opened = key.open_in_place(nonce, Aad::from(binding.0), &mut sealed);
            serde_json::from_slice(opened.ok()?).ok()
        })
    }
}

/// The longest text that can be a ticket: one of [`MAX_STATE`].
const MAX_TICKET: usize = 1 << 20;
/// The longest raw `requestState` that is carried.
pub(super) const MAX_STATE: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::super::ticket::*;

    fn ticket() -> Ticket {
        Ticket {
            owner: ["a:1".to_owned(), "boot".to_owned()],
            call: 7,
            round: 1,
        }
    }

    #[test]
    fn a_ticket_opens_for_its_request_alone() {
        let key = TicketKey::new(&EventKey::new(&[1; 32]), b"x");
        let (own, other) = (Binding([1; 32]), Binding([2; 32]));
        let sealed = key.seal(&ticket(), &own).unwrap();
        assert_eq!(key.open::<Ticket>(&sealed, &own), Some(ticket()));
        assert_eq!(key.open::<Ticket>(&sealed, &other), None);
        let elsewhere = TicketKey::new(&EventKey::new(&[2; 32]), b"x");
        assert_eq!(elsewhere.open::<Ticket>(&sealed, &own), None);
        let for_another = TicketKey::new(&EventKey::new(&[1; 32]), b"y");
        assert_eq!(for_another.open::<Ticket>(&sealed, &own), None);
        assert_ne!(key.seal(&ticket(), &own).unwrap(), sealed);
    }

    /// Nothing is computed of a request whose ticket is none: the call is inside.
    #[test]
    fn a_ticket_is_of_its_call_alone() {
        let request = |params: &str| {
            let line =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
            Message::parse(line.into()).unwrap()
        };
        let key = TicketKey::new(&EventKey::new(&[1; 32]), b"x");
        let own = Binding([1; 32]);
        let call = CallDigest::of(&request(r#"{"name":"x","arguments":{"a":1}}"#));
        let sealed = ForCall {
            ticket: ticket(),
            call,
        };
        let sealed = key.seal(&sealed, &own).unwrap();
        for (retry, is_of_it) in [
            (
                r#"{"arguments":{"a":1},"requestState":"s","name":"x"}"#,
                true,
            ),
            (r#"{"arguments":{"a":2},"name":"x"}"#, false),
            (r#"{"arguments":{"a":1},"name":"y"}"#, false),
        ] {
            let opened = key.open::<ForCall<Ticket>>(&sealed, &own).unwrap();
            let expected = is_of_it.then(ticket);
            assert_eq!(opened.of(&request(retry)), expected, "{retry}");
        }
    }

    #[test]
    fn the_longest_carried_ticket_opens() {
        let key = TicketKey::new(&EventKey::new(&[1; 32]), b"x");
        let own = Binding([1; 32]);
        let carried = ForCall {
            ticket: Carried {
                state: Some(format!("\"{}\"", "\\\"".repeat(MAX_STATE / 2 - 1))),
                round: 1,
                until: 5,
            },
            call: CallDigest("x".repeat(43)),
        };
        let (first, second) = (key.seal(&carried, &own), key.seal(&carried, &own));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_ne!(use_of(&first), use_of(&second));
        let changed = format!("{}{}", nonce_of(&first), "x");
        assert_eq!(use_of(&first), use_of(&changed), "by its nonce");
        assert_eq!(key.open(&first, &own), Some(carried));
        assert_eq!(key.open::<ForCall<Ticket>>(&first, &own), None);
    }

    #[test]
    fn no_bit_of_a_ticket_can_be_changed() {
        let key = TicketKey::new(&EventKey::new(&[1; 32]), b"x");
        let own = Binding([1; 32]);
        let sealed = URL_SAFE_NO_PAD
            .decode(key.seal(&ticket(), &own).unwrap())
            .unwrap();
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(
                key.open::<Ticket>(&URL_SAFE_NO_PAD.encode(changed), &own),
                None
            );
        }
        for text in ["", "x", "AAAA", &"A".repeat(MAX_TICKET + 1)] {
            assert_eq!(key.open::<Ticket>(text, &own), None, "{text}");
        }
    }

    #[test]
    fn a_ticket_of_before_a_rotation_opens_after_it() {
        let before = TicketKey::new(&EventKey::new(&[1; 32]), b"x");
        let after = TicketKey::new(&EventKey::of([&[2; 32], &[1; 32]]), b"x");
        let own = Binding([1; 32]);
        let sealed = before.seal(&ticket(), &own).unwrap();
        assert_eq!(after.open::<Ticket>(&sealed, &own), Some(ticket()));
    }
}
