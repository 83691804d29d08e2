//! Signed header of a forwarded request, by which one replica trusts another.
//!
//! The header says who the caller is, in place of the credentials, which no replica sends; it carries
//! the client's address, marks the request as counted against the limits, and forbids further
//! forwarding. It is valid for one request to one boot of one replica, once. This file does no IO:
//! `http::replicas` sends the header, `cluster` checks it, and `received` its number.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use crate::{
    base::MacKeys,
    http::reply::header_name::{TENANT_HOST, TRACEPARENT, TRACESTATE},
    protocol::{
        LAST_EVENT_ID, SESSION_ID,
        headers::{ARGUMENT_PREFIX, METHOD, NAME, PROTOCOL_VERSION},
    },
};

/// Label under which the key is derived from the master key.
pub(crate) const LABEL: &str = "lockgate hop v2";

/// The header fields of the client that a hop carries, and its signature covers, besides those that
/// mirror arguments. Another may hold a credential. The owner decides nothing about access by others: of the
/// `User-Agent` of some it only learns that `retry:` lines would end their streams.
static CARRIED: [HeaderName; 10] = [
    header::ACCEPT,
    header::CONTENT_TYPE,
    HeaderName::from_static(SESSION_ID),
    HeaderName::from_static(PROTOCOL_VERSION),
    HeaderName::from_static(LAST_EVENT_ID),
    HeaderName::from_static(METHOD),
    HeaderName::from_static(NAME),
    TRACEPARENT,
    TRACESTATE,
    TENANT_HOST,
];

/// The header fields that a hop carries, in the order of the signature.
pub(crate) fn carried(headers: &HeaderMap) -> Vec<(&HeaderName, &HeaderValue)> {
    let values = |name| headers.get_all(name).iter().map(move |value| (name, value));
    let is_argument = |name: &&HeaderName| name.as_str().starts_with(ARGUMENT_PREFIX);
    let mut arguments: Vec<&HeaderName> = headers.keys().filter(is_argument).collect();
    arguments.sort_unstable_by_key(|name| name.as_str());
    let names = CARRIED.iter().chain(arguments);
    names.flat_map(values).collect()
}

/// Facts about a request that one replica states to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Boot id of the receiving replica.
    pub(crate) target: Arc<str>,
    /// Boot id of the sending replica.
    pub(crate) sender: Arc<str>,
    /// Number of the hop, which its sender uses once.
    pub(crate) number: u64,
    /// Address of the client, as the sending replica saw it.
    pub(crate) client: Option<IpAddr>,
    /// The caller, as `auth` wrote it: base64url.
    pub(crate) caller: String,
    /// SHA-256 of the body.
    pub(crate) body: [u8; 32],
}

/// Parts of the request that the signature covers, besides the facts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignedRequest<'r> {
    /// HTTP method.
    pub(crate) method: &'r Method,
    /// Path and query.
    pub(crate) target: &'r str,
    /// All header fields; those that are [`carried`] are signed.
    pub(crate) headers: &'r HeaderMap,
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
    /// The header was received before, or so many after it that it cannot be told.
    #[error("repeated")]
    Repeated,
}

/// Signing keys of hops; a handle.
#[derive(Clone)]
pub(crate) struct HopKeys(MacKeys);

impl HopKeys {
    /// Makes them from keys that are derived for [`LABEL`].
    pub(crate) fn new(keys: MacKeys) -> Self {
        Self(keys)
    }

    /// Signs a header for a request that is sent now; `None` if there is no key.
    pub(crate) fn sign(
        &self,
        hop: &Hop,
        request: SignedRequest<'_>,
        now_ms: i64,
    ) -> Option<HeaderValue> {
        let expires = now_ms.saturating_add(LIFETIME_MS);
        let mut text = encode(hop, expires);
        let code = self.0.sign(&parts(&text, request))?;
        text.push(';');
        URL_SAFE_NO_PAD.encode_string(code, &mut text);
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
        let given = decode_array(given).ok_or(InvalidHop::Forged)?;
        let is_signed = self.0.verify(&parts(fields, request), &given);
        if !is_signed {
            return Err(InvalidHop::Forged);
        }
        let (hop, expires) = decode(fields).ok_or(InvalidHop::Forged)?;
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

/// Writes all fields but the MAC. No field can contain the separator: boot ids are hexadecimal, the
/// caller is base64url, and the others are made here.
fn encode(hop: &Hop, expires: i64) -> String {
    let is_plain_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_plain = |text: &str| text.bytes().all(is_plain_byte);
    let [target, sender, caller] = [&*hop.target, &*hop.sender, &hop.caller]
        .map(|text| if is_plain(text) { text } else { "" });
    let mut fields = String::with_capacity(HEADER + caller.len());
    // Writing to a string cannot fail.
    let _ = write!(fields, "{VERSION};{target};{sender};{};", hop.number);
    let _ = match hop.client {
        Some(client) => write!(fields, "{client}"),
        None => fields.write_char('-'),
    };
    let _ = write!(fields, ";{caller};");
    URL_SAFE_NO_PAD.encode_string(hop.body, &mut fields);
    let _ = write!(fields, ";{expires}");
    fields
}

fn decode(text: &str) -> Option<(Hop, i64)> {
    let mut fields = text.split(';');
    let mut eight = [""; 8];
    for field in &mut eight {
        *field = fields.next()?;
    }
    let [
        version,
        target,
        sender,
        number,
        client,
        caller,
        body,
        expires,
    ] = eight;
    let hop = Hop {
        target: target.into(),
        sender: sender.into(),
        number: number.parse().ok()?,
        client: match client {
            "-" => None,
            client => Some(client.parse().ok()?),
        },
        caller: caller.to_owned(),
        body: decode_array(body)?,
    };
    let is_complete = version == VERSION && fields.next().is_none();
    is_complete.then_some((hop, expires.parse().ok()?))
}

fn decode_array(text: &str) -> Option<[u8; 32]> {
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

/// The parts that are signed; the name of a header field before each of its values.
fn parts<'p>(fields: &'p str, request: SignedRequest<'p>) -> Vec<&'p [u8]> {
    let mut parts = vec![fields.as_bytes(), request.method.as_str().as_bytes()];
    parts.push(request.target.as_bytes());
    for (name, value) in carried(request.headers) {
        parts.extend([name.as_str().as_bytes(), value.as_bytes()]);
    }
    parts
}

const VERSION: &str = "v2";
/// Lifetime of a header: longer than any wait before a request is read, and shorter than logs are
/// kept.
pub(super) const LIFETIME_MS: i64 = 120_000;
/// Largest difference between the clocks of two replicas.
pub(super) const SKEW_MS: i64 = 60_000;
/// Capacity for a header with its MAC, without the caller.
const HEADER: usize = 320;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hop::*;

    const NOW: i64 = 1_800_000_000_000;

    fn keys_of<const N: usize>(bytes: [u8; N]) -> HopKeys {
        let keys = bytes.map(|byte| [byte; 32]);
        HopKeys::new(MacKeys::new(&keys))
    }

    fn keys() -> HopKeys {
        keys_of([7])
    }

    fn hop() -> Hop {
        Hop {
            target: "aaaa".into(),
            sender: "bbbb".into(),
            number: 17,
            client: Some([192, 0, 2, 7].into()),
            caller: "eyJzdWIi_-".to_owned(),
            body: [1; 32],
        }
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(SESSION_ID, HeaderValue::from_static("x"));
        headers.append(
            header::ACCEPT,
            HeaderValue::from_static("text/event-stream"),
        );
        headers.append(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(
            header::USER_AGENT,
            HeaderValue::from_static("of the connection"),
        );
        headers
    }

    fn request(headers: &HeaderMap) -> SignedRequest<'_> {
        SignedRequest {
            method: &Method::POST,
            target: "/t/a/b/messages?session_id=x",
            headers,
        }
    }

    fn signed() -> HeaderValue {
        keys().sign(&hop(), request(&headers()), NOW).unwrap()
    }

    fn check(header: &HeaderValue, asked: SignedRequest<'_>) -> Result<Hop, InvalidHop> {
        keys().verify(header, asked, "aaaa", NOW)
    }

    #[test]
    fn is_valid_for_the_signed_request_only() {
        let (own, forged) = (headers(), Err(InvalidHop::Forged));
        let asked = request(&own);
        assert_eq!(check(&signed(), asked), Ok(hop()));
        assert!(signed().is_sensitive(), "it would fill the table of HPACK");
        let method = &Method::GET;
        assert_eq!(check(&signed(), SignedRequest { method, ..asked }), forged);
        let target = "/t/a/b/messages?session_id=y";
        assert_eq!(check(&signed(), SignedRequest { target, ..asked }), forged);
        let argument = HeaderName::from_static("mcp-param-region");
        for name in CARRIED.iter().chain([&argument]) {
            let mut changed = headers();
            changed.append(name, HeaderValue::from_static("y"));
            assert_eq!(check(&signed(), request(&changed)), forged, "{name}");
        }
        let mut moved = headers();
        moved.remove(SESSION_ID);
        moved.insert(LAST_EVENT_ID, HeaderValue::from_static("x"));
        assert_eq!(check(&signed(), request(&moved)), forged);
        let other = HeaderName::from_static("mcp-param-zone");
        let order = |names: [&HeaderName; 2]| {
            let mut headers = HeaderMap::new();
            for name in names {
                headers.insert(name, HeaderValue::from_static("x"));
            }
            headers
        };
        let (one, two) = (order([&argument, &other]), order([&other, &argument]));
        let header = keys().sign(&hop(), request(&one), NOW).unwrap();
        assert_eq!(check(&header, request(&two)), Ok(hop()), "in any order");
        let mut same = headers();
        same.remove(header::USER_AGENT);
        assert_eq!(check(&signed(), request(&same)), Ok(hop()), "not carried");
    }

    #[test]
    fn is_valid_for_one_boot_of_one_replica() {
        let (header, own) = (signed(), headers());
        let of = |keys: HopKeys, me: &str| keys.verify(&header, request(&own), me, NOW);
        assert_eq!(of(keys(), "cccc"), Err(InvalidHop::Elsewhere));
        assert_eq!(of(keys_of([8]), "aaaa"), Err(InvalidHop::Forged));
        assert_eq!(of(keys_of([8, 7]), "aaaa"), Ok(hop()));
        assert!(keys_of([]).sign(&hop(), request(&own), NOW).is_none());
    }

    #[test]
    fn is_valid_for_two_minutes_despite_clock_skew() {
        let (header, own) = (signed(), headers());
        let at = |now| keys().verify(&header, request(&own), "aaaa", now).is_ok();
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
        let (header, own) = (signed(), headers());
        let fields: Vec<&str> = header.to_str().unwrap().split(';').collect();
        assert_eq!(fields.len(), 9);
        let body = URL_SAFE_NO_PAD.encode([2; 32]);
        for (at, value) in [
            (0, "v1"),
            (1, "cccc"),
            (2, "cccc"),
            (3, "18"),
            (4, "192.0.2.8"),
            (5, "e30"),
            (6, &*body),
            (7, "1900000000000"),
            (8, "00"),
        ] {
            let mut changed = fields.clone();
            changed[at] = value;
            let changed = HeaderValue::try_from(changed.join(";")).unwrap();
            assert_eq!(
                check(&changed, request(&own)),
                Err(InvalidHop::Forged),
                "{at}"
            );
        }
    }

    #[test]
    fn a_caller_cannot_inject_fields() {
        let (mut hop, own) = (hop(), headers());
        hop.caller = "00;1;2".to_owned();
        hop.client = None;
        let header = keys().sign(&hop, request(&own), NOW).unwrap();
        hop.caller = String::new();
        assert_eq!(check(&header, request(&own)), Ok(hop));
    }

    proptest! {
        #[test]
        fn a_changed_header_is_forged(at in any::<prop::sample::Index>(), to in "[ -~]") {
            let mut text = signed().to_str().unwrap().to_owned();
            let at = at.index(text.len());
            prop_assume!(text[at..=at] != to);
            text.replace_range(at..=at, &to);
            let header = HeaderValue::try_from(text).unwrap();
            prop_assert_eq!(check(&header, request(&headers())), Err(InvalidHop::Forged));
        }

        #[test]
        fn any_text_is_forged(text in "[ -~]{0,200}") {
            let header = HeaderValue::try_from(text).unwrap();
            prop_assert_eq!(check(&header, request(&headers())), Err(InvalidHop::Forged));
        }
    }
}
