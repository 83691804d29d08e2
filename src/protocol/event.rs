//! Event ids, sealed page cursors, and the framing of Server-Sent Events.
//!
//! An event id is the cursor behind one event of one stream of one session. It is opaque to
//! clients. Its MAC distinguishes a cursor whose events are trimmed from one that was never
//! issued, without a look-up.

use std::{sync::Arc, time::Duration};

use aws_lc_rs::{constant_time, hmac};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::{BufMut, BytesMut};

/// The number of a stream within its session.
pub(crate) type StreamId = u32;

/// The stream for messages that belong to no request; it exists as long as its session.
pub(crate) const LISTENER_STREAM: StreamId = 0;

/// The position behind an event of a stream; `seq` 0 is the beginning of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The stream of the session.
    pub(crate) stream: StreamId,
    /// The epoch of the log that the number belongs to.
    pub(crate) epoch: u32,
    /// The number of events before this position; less than 2^48, which no stream comes near.
    pub(crate) seq: u64,
}

/// The key that seals event ids and page cursors; the same on all replicas.
#[derive(Clone)]
pub(crate) struct EventKey(Arc<[hmac::Key]>);

/// The bytes of a cursor.
const CURSOR: usize = 16;
/// Where the bytes of its `seq` begin that are not always 0; the others have the number of a connection.
const SEQ: usize = 10;
/// The bytes of its MAC.
const MAC: usize = 8;
/// The characters of a MAC in Base64.
const MAC_TEXT: usize = 11;

impl EventKey {
    /// A key of 32 random bytes, the same on all replicas.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self::of([secret])
    }

    /// A key during a rotation: ids are made with the first secret, and read with any of them.
    pub(crate) fn of<'s>(secrets: impl IntoIterator<Item = &'s [u8; 32]>) -> Self {
        let key = |secret: &[u8; 32]| hmac::Key::new(hmac::HMAC_SHA256, secret);
        Self(secrets.into_iter().map(key).collect())
    }

    /// Keys for another use, each derived from one of these, in the same order.
    pub(crate) fn derived(&self, what: &[u8]) -> Vec<[u8; 32]> {
        let derived = |key: &hmac::Key| {
            let mut bytes = [0; 32];
            bytes.copy_from_slice(hmac::sign(key, what).as_ref());
            bytes
        };
        self.0.iter().map(derived).collect()
    }

    /// The id of `cursor` in `session`: 32 characters of the URL-safe Base64 alphabet.
    pub(crate) fn encode(&self, session: &str, cursor: Cursor) -> String {
        self.encode_for(session, cursor, 0)
    }

    /// The id of `cursor` in `session` for one connection: another text of the same position for each number.
    pub(crate) fn encode_for(&self, session: &str, cursor: Cursor, connection: u16) -> String {
        let mut id = [0; CURSOR + MAC];
        id[..4].copy_from_slice(&cursor.stream.to_be_bytes());
        id[4..8].copy_from_slice(&cursor.epoch.to_be_bytes());
        id[8..CURSOR].copy_from_slice(&cursor.seq.to_be_bytes());
        id[8..SEQ].copy_from_slice(&connection.to_be_bytes());
        let mac = self.0.first().map(|key| mac(key, session, &id[..CURSOR]));
        let mac = mac.unwrap_or_default();
        id[CURSOR..].copy_from_slice(&mac);
        URL_SAFE_NO_PAD.encode(id)
    }

    /// The cursor of an id that this key made for `session`; none for any other text.
    pub(crate) fn decode(&self, session: &str, id: &[u8]) -> Option<Cursor> {
        let bytes: [u8; CURSOR + MAC] = URL_SAFE_NO_PAD.decode(id).ok()?.try_into().ok()?;
        let (cursor, tag) = bytes.split_at(CURSOR);
        self.matches_any(tag, |key| mac(key, session, cursor))?;
        let number = |range: std::ops::Range<usize>| {
            cursor[range]
                .iter()
                .fold(0_u64, |number, byte| (number << 8) | u64::from(*byte))
        };
        Some(Cursor {
            stream: u32::try_from(number(0..4)).ok()?,
            epoch: u32::try_from(number(4..8)).ok()?,
            seq: number(SEQ..CURSOR),
        })
    }

    /// Seals a page cursor of a server for its `scope`: tenant, server, principal and list.
    pub(crate) fn seal(&self, scope: [&str; 4], cursor: &str) -> String {
        let tag = self.0.first().map(|key| page_mac(key, scope, cursor));
        URL_SAFE_NO_PAD.encode(tag.unwrap_or_default()) + cursor
    }

    /// Opens a page cursor that was sealed for `scope`; none for any other text.
    pub(crate) fn unseal<'c>(&self, scope: [&str; 4], sealed: &'c str) -> Option<&'c str> {
        let (tag, cursor) = sealed.split_at_checked(MAC_TEXT)?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        self.matches_any(&tag, |key| page_mac(key, scope, cursor))?;
        Some(cursor)
    }

    fn matches_any(&self, tag: &[u8], mac: impl Fn(&hmac::Key) -> [u8; MAC]) -> Option<()> {
        let is_of = |key| constant_time::verify_slices_are_equal(&mac(key), tag).is_ok();
        self.0.iter().any(is_of).then_some(())
    }
}

fn page_mac(key: &hmac::Key, scope: [&str; 4], cursor: &str) -> [u8; MAC] {
    let mut context = hmac::Context::with_key(key);
    // Longer than the cursor of an event id, so never the MAC of one.
    context.update(b"the cursor of a page of a list");
    for part in scope {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    context.update(cursor.as_bytes());
    let tag = context.sign();
    let mut mac = [0; MAC];
    mac.copy_from_slice(&tag.as_ref()[..MAC]);
    mac
}

fn mac(key: &hmac::Key, session: &str, cursor: &[u8]) -> [u8; MAC] {
    let mut context = hmac::Context::with_key(key);
    context.update(cursor);
    context.update(session.as_bytes());
    let tag = context.sign();
    let mut mac = [0; MAC];
    mac.copy_from_slice(&tag.as_ref()[..MAC]);
    mac
}

/// Appends an event with a message; without an id it leaves the position of its reader as it is. `data` is one
/// line (see `message`), so that it cannot end the event.
pub(crate) fn push_message(out: &mut BytesMut, id: &str, data: &[u8]) {
    out.reserve(event_room(id.len(), data));
    out.put_slice(b"event: message\n");
    if !id.is_empty() {
        out.put_slice(b"id: ");
        out.put_slice(id.as_bytes());
        out.put_u8(b'\n');
    }
    out.put_slice(b"data: ");
    out.put_slice(data);
    out.put_slice(b"\n\n");
}

/// The most bytes of an event with an id of this length.
pub(crate) const fn event_room(id: usize, data: &[u8]) -> usize {
    id + data.len() + 32
}

/// Appends the priming event, which gives a client its first cursor: an id, empty data (2025-11-25
/// transports, "Sending Messages to the Server" 6), and the reconnection time if the client needs it now.
pub(crate) fn push_priming(out: &mut BytesMut, id: &str, retry: Option<Duration>) {
    out.put_slice(b"id: ");
    out.put_slice(id.as_bytes());
    if let Some(retry) = retry {
        out.put_slice(format!("\nretry: {}", retry.as_millis()).as_bytes());
    }
    out.put_slice(b"\ndata: \n\n");
}

/// Appends the reconnection time, before the gateway itself closes a connection.
pub(crate) fn push_retry(out: &mut BytesMut, retry: Duration) {
    out.put_slice(format!("retry: {}\n\n", retry.as_millis()).as_bytes());
}

/// Appends the first event of HTTP+SSE: the URI for POST requests (2024-11-05 transports).
pub(crate) fn push_endpoint(out: &mut BytesMut, uri: &str, id: &str) {
    out.put_slice(b"event: endpoint\nid: ");
    out.put_slice(id.as_bytes());
    out.put_slice(b"\ndata: ");
    out.put_slice(uri.as_bytes());
    out.put_slice(b"\n\n");
}

/// A comment for idle connections; it carries no id. A comment is a line (HTML standard, section 9.2.5), and this one has
/// no empty line behind it: the Java SDK asks its HTTP client for one line more for each that it reads, but for an empty
/// one, for which the end of an event does. After some hundred that ended none it read no more.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n";

#[cfg(test)]
mod tests {
    use super::super::event::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_page_cursor_is_of_use_only_to_whom_it_was_given(
            cursor in "\\PC{0,20}", parts in prop::array::uniform4("[ab]{0,2}"),
            others in prop::array::uniform4("[ab]{0,2}"), damage in any::<prop::sample::Index>(),
        ) {
            let key = EventKey::new(&[7; 32]);
            let (whose, other) = (parts.each_ref().map(|p| &**p), others.each_ref().map(|p| &**p));
            let sealed = key.seal(whose, &cursor);
            prop_assert_eq!(key.unseal(whose, &sealed), Some(&*cursor));
            prop_assert_eq!(key.unseal(other, &sealed).is_some(), whose == other);
            prop_assert_eq!(EventKey::new(&[8; 32]).unseal(whose, &sealed), None);
            prop_assert_eq!(key.unseal(whose, &cursor), None);
            let at = damage.index(sealed.chars().count());
            let damaged: String = sealed.chars().enumerate()
                .map(|(n, letter)| if n != at { letter } else if letter == 'x' { 'y' } else { 'x' })
                .collect();
            // The last character of the MAC has unused bits. Damage to them alone leaves the cursor
            // unchanged.
            let is_same = key.unseal(whose, &damaged).is_some();
            prop_assert!(!is_same || damaged[MAC_TEXT..] == sealed[MAC_TEXT..]);
        }

        #[test]
        fn a_cursor_comes_back_from_its_id(
            stream: u32, epoch: u32, seq in 0..1_u64 << 48, connection: u16, other: u16,
        ) {
            let key = EventKey::new(&[7; 32]);
            let cursor = Cursor { stream, epoch, seq };
            let id = key.encode_for("session", cursor, connection);
            prop_assert_eq!(id.len(), 32);
            prop_assert_eq!(key.decode("session", id.as_bytes()), Some(cursor));
            let elsewhere = key.encode_for("session", cursor, other);
            prop_assert_eq!(elsewhere == id, connection == other);
            prop_assert_eq!(key.decode("another", id.as_bytes()), None);
            let both = EventKey::of([&[8; 32], &[7; 32]]);
            prop_assert_eq!(both.decode("session", id.as_bytes()), Some(cursor));
            let newer = both.encode("session", cursor);
            prop_assert_eq!(key.decode("session", newer.as_bytes()), None);
            prop_assert_eq!(EventKey::new(&[8; 32]).decode("session", id.as_bytes()), None);
        }

        #[test]
        fn a_changed_id_is_worth_nothing(seq in 0..1_u64 << 48, at in 0_usize..32, to in "[A-Za-z0-9_-]") {
            let key = EventKey::new(&[7; 32]);
            let id = key.encode("session", Cursor { stream: 1, epoch: 1, seq });
            let mut changed = id.clone().into_bytes();
            changed[at] = to.as_bytes()[0];
            prop_assume!(changed != id.as_bytes());
            prop_assert_eq!(key.decode("session", &changed), None);
        }

        #[test]
        fn any_text_is_no_cursor(text in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(EventKey::new(&[7; 32]).decode("session", &text), None);
        }
    }
}
