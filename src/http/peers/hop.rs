//! Signed header of a forwarded request, by which one replica trusts another.
//!
//! The header carries the client's address, marks the request as counted against the limits, and
//! forbids further forwarding. It is valid for one request to one boot of one replica. This file
//! does no IO: `http::replicas` sends the header, and `cluster` checks it.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::{constant_time, hmac};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, Method};

/// Label under which the key is derived from the master key.
pub(crate) const LABEL: &str = "lockgate hop v1";

/// Facts about a request that one replica states to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Boot id of the receiving replica.
    pub(crate) target: Arc<str>,
    /// Boot id of the sending replica.
    pub(crate) sender: Arc<str>,
    /// Address of the client, as the sending replica saw it.
    pub(crate) client: Option<IpAddr>,
    /// Whether the client spoke TLS to the sending replica.
    pub(crate) is_tls: bool,
    /// The request's `traceparent`, or an empty string.
    pub(crate) trace: String,
}

/// Parts of the request that the signature covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignedRequest<'r> {
    /// HTTP method.
    pub(crate) method: &'r Method,
    /// Path and query.
    pub(crate) target: &'r str,
    /// Length of the body in bytes.
    pub(crate) length: u64,
}

/// Reason why a hop header proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidHop {
    /// The header is malformed, or signed with another key or for another request.
    #[error("forged")]
    Forged,
    /// The header is too old, or the sender's clock is far ahead.
    #[error("expired")]
    Expired,
    /// The header is for another replica, or for an earlier boot of this one.
    #[error("for another replica")]
    Elsewhere,
}

/// Signing keys, the same on all replicas; a handle.
#[derive(Clone)]
pub(crate) struct HopKeys(Arc<[hmac::Key]>);

impl HopKeys {
    /// Makes keys from 32 bytes derived from each master key. The first key signs and all keys
    /// verify, so that the master key can be rotated while replicas run.
    pub(crate) fn new<'k>(keys: impl IntoIterator<Item = &'k [u8; 32]>) -> Self {
        let key = |key: &[u8; 32]| hmac::Key::new(hmac::HMAC_SHA256, key);
        Self(keys.into_iter().map(key).collect())
    }

    /// Signs a header for a request that is sent now; `None` if there is no key.
    pub(crate) fn sign(
        &self,
        hop: &Hop,
        request: SignedRequest<'_>,
        now_ms: i64,
    ) -> Option<HeaderValue> {
        let expires = now_ms.saturating_add(LIFETIME_MS);
        let mut text = encode(hop, request.length, expires);
        let mac = mac(self.0.first()?, &text, request);
        text.push(';');
        text.push_str(&mac);
        let mut header = HeaderValue::try_from(text).ok()?;
        // Kept out of the HPACK table: the value differs for each request and would only evict
        // common fields (RFC 7541, section 7.1.3).
        header.set_sensitive(true);
        Some(header)
    }

    /// Verifies the header of a request to the replica with boot id `me`.
    ///
    /// # Errors
    ///
    /// The reason why the header proves nothing.
    pub(crate) fn verify(
        &self,
        header: &HeaderValue,
        request: SignedRequest<'_>,
        me: &str,
        now_ms: i64,
    ) -> Result<Hop, InvalidHop> {
        let text = header.to_str().map_err(|_| InvalidHop::Forged)?;
        let (fields, given) = text.rsplit_once(';').ok_or(InvalidHop::Forged)?;
        let is_signed = self.0.iter().any(|key| {
            let own = mac(key, fields, request);
            constant_time::verify_slices_are_equal(own.as_bytes(), given.as_bytes()).is_ok()
        });
        if !is_signed {
            return Err(InvalidHop::Forged);
        }
        let (hop, length, expires) = decode(fields).ok_or(InvalidHop::Forged)?;
        if length != request.length {
            return Err(InvalidHop::Forged);
        }
        let left = expires.saturating_sub(now_ms);
        if !(-SKEW_MS..=LIFETIME_MS + SKEW_MS).contains(&left) {
            return Err(InvalidHop::Expired);
        }
        if &*hop.target != me {
            return Err(InvalidHop::Elsewhere);
        }
        Ok(hop)
    }
}

/// Writes all fields but the MAC. No field can contain the separator: boot ids and `traceparent` are
/// hexadecimal, and the others are made here.
fn encode(hop: &Hop, length: u64, expires: i64) -> String {
    let is_plain_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_plain = |text: &str| text.len() <= FIELD_MAX && text.bytes().all(is_plain_byte);
    let [target, sender, trace] =
        [&*hop.target, &*hop.sender, &hop.trace].map(|text| if is_plain(text) { text } else { "" });
    let mut fields = String::with_capacity(HEADER);
    // Writing to a string cannot fail.
    let _ = write!(fields, "{VERSION};{target};{sender};{length};");
    let _ = match hop.client {
        Some(client) => write!(fields, "{client}"),
        None => fields.write_char('-'),
    };
    let _ = write!(fields, ";{};{trace};{expires}", u8::from(hop.is_tls));
    fields
}

fn decode(text: &str) -> Option<(Hop, u64, i64)> {
    let mut fields = text.split(';');
    let mut eight = [""; 8];
    for field in &mut eight {
        *field = fields.next()?;
    }
    let [version, target, sender, length, client, tls, trace, expires] = eight;
    let hop = Hop {
        target: target.into(),
        sender: sender.into(),
        client: match client {
            "-" => None,
            client => Some(client.parse().ok()?),
        },
        is_tls: tls == "1",
        trace: trace.to_owned(),
    };
    let length = length.parse().ok()?;
    let is_complete = version == VERSION && fields.next().is_none();
    is_complete.then_some((hop, length, expires.parse().ok()?))
}

/// Computes the MAC. Each part is preceded by its length, so that parts cannot run into each other.
fn mac(key: &hmac::Key, fields: &str, request: SignedRequest<'_>) -> String {
    let mut context = hmac::Context::with_key(key);
    for part in [fields, request.method.as_str(), request.target] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    URL_SAFE_NO_PAD.encode(context.sign())
}

const VERSION: &str = "v1";
/// Lifetime of a header: longer than any wait before a request is read, and shorter than logs are
/// kept.
const LIFETIME_MS: i64 = 120_000;
/// Largest difference between the clocks of two replicas.
const SKEW_MS: i64 = 60_000;
/// Longest text field: a boot id has 32 characters, a `traceparent` 55.
const FIELD_MAX: usize = 64;
/// Capacity for a header with its MAC.
const HEADER: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hop::*;

    const NOW: i64 = 1_800_000_000_000;

    fn keys() -> HopKeys {
        HopKeys::new([&[7; 32]])
    }

    fn hop() -> Hop {
        Hop {
            target: "aaaa".into(),
            sender: "bbbb".into(),
            client: Some([192, 0, 2, 7].into()),
            is_tls: true,
            trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned(),
        }
    }

    const REQUEST: SignedRequest<'static> = SignedRequest {
        method: &Method::POST,
        target: "/t/a/b/messages?session_id=x",
        length: 17,
    };

    fn signed() -> HeaderValue {
        keys().sign(&hop(), REQUEST, NOW).unwrap()
    }

    fn check(header: &HeaderValue, asked: SignedRequest<'_>) -> Result<Hop, InvalidHop> {
        keys().verify(header, asked, "aaaa", NOW)
    }

    #[test]
    fn is_valid_for_the_signed_request_only() {
        assert_eq!(check(&signed(), REQUEST), Ok(hop()));
        assert!(signed().is_sensitive(), "it would fill the table of HPACK");
        let other = |asked| check(&signed(), asked);
        let forged = Err(InvalidHop::Forged);
        let method = &Method::GET;
        assert_eq!(other(SignedRequest { method, ..REQUEST }), forged);
        let target = "/t/a/b/messages?session_id=y";
        assert_eq!(other(SignedRequest { target, ..REQUEST }), forged);
        assert_eq!(
            other(SignedRequest {
                length: 18,
                ..REQUEST
            }),
            forged
        );
    }

    #[test]
    fn is_valid_for_one_boot_of_one_replica() {
        let header = signed();
        let at = |me: &str| keys().verify(&header, REQUEST, me, NOW);
        assert_eq!(at("cccc"), Err(InvalidHop::Elsewhere));
        let other = HopKeys::new([&[8; 32]]);
        assert_eq!(
            other.verify(&header, REQUEST, "aaaa", NOW),
            Err(InvalidHop::Forged)
        );
        let changed = HopKeys::new([&[8; 32], &[7; 32]]);
        assert_eq!(changed.verify(&header, REQUEST, "aaaa", NOW), Ok(hop()));
        assert!(HopKeys::new([]).sign(&hop(), REQUEST, NOW).is_none());
    }

    #[test]
    fn is_valid_for_two_minutes_despite_clock_skew() {
        let header = signed();
        let at = |now| keys().verify(&header, REQUEST, "aaaa", now).is_ok();
        for (after, is_good) in [
            (-60_001, false),
            (-60_000, true),
            (0, true),
            (120_000, true),
            (180_000, true),
            (180_001, false),
        ] {
            assert_eq!(at(NOW + after), is_good, "{after}");
        }
    }

    #[test]
    fn every_field_is_signed() {
        let header = signed();
        let fields: Vec<&str> = header.to_str().unwrap().split(';').collect();
        assert_eq!(fields.len(), 9);
        for (at, value) in [
            (0, "v2"),
            (1, "cccc"),
            (2, "cccc"),
            (3, "18"),
            (4, "192.0.2.8"),
            (5, "0"),
            (6, ""),
            (7, "1900000000000"),
            (8, "00"),
        ] {
            let mut changed = fields.clone();
            changed[at] = value;
            let changed = HeaderValue::try_from(changed.join(";")).unwrap();
            assert_eq!(check(&changed, REQUEST), Err(InvalidHop::Forged), "{at}");
        }
    }

    #[test]
    fn client_text_cannot_inject_fields() {
        let mut hop = hop();
        hop.trace = "00;1;2".to_owned();
        hop.client = None;
        let header = keys().sign(&hop, REQUEST, NOW).unwrap();
        hop.trace = String::new();
        assert_eq!(check(&header, REQUEST), Ok(hop));
    }

    proptest! {
        #[test]
        fn a_changed_header_is_forged(at in any::<prop::sample::Index>(), to in "[ -~]") {
            let mut text = signed().to_str().unwrap().to_owned();
            let at = at.index(text.len());
            prop_assume!(text[at..=at] != to);
            text.replace_range(at..=at, &to);
            let header = HeaderValue::try_from(text).unwrap();
            prop_assert_eq!(check(&header, REQUEST), Err(InvalidHop::Forged));
        }

        #[test]
        fn any_text_is_forged(text in "[ -~]{0,200}") {
            let header = HeaderValue::try_from(text).unwrap();
            prop_assert_eq!(check(&header, REQUEST), Err(InvalidHop::Forged));
        }
    }
}
