//! The header by which a replica tells another that a request is its client's.
//!
//! It says that limits were counted, where the client is, and that the request must not be
//! forwarded once more; it is signed, and holds for one request to one life of one replica. Pure:
//! who sends and who checks is `forward` and `cluster`.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::{constant_time, hmac};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, Method};

/// What the key is derived for.
pub(crate) const LABEL: &str = "lockgate hop v1";

/// What one replica tells another of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// The life of the replica that it is for.
    pub(crate) target: Arc<str>,
    /// The life of the replica that sends it.
    pub(crate) sender: Arc<str>,
    /// Where the client is, as the first replica saw it.
    pub(crate) client: Option<IpAddr>,
    /// Whether the client spoke TLS to the first replica.
    pub(crate) is_tls: bool,
    /// The request's `traceparent`; empty without.
    pub(crate) trace: String,
}

/// The request that a header holds for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'r> {
    /// Its method.
    pub(crate) method: &'r Method,
    /// Its path and query.
    pub(crate) target: &'r str,
    /// The bytes of its body.
    pub(crate) length: u64,
}

/// Why a header is worth nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Worthless {
    /// It does not look like one, or another key or another request was signed.
    #[error("forged")]
    Forged,
    /// It is too old, or of a clock that is far ahead.
    #[error("expired")]
    Expired,
    /// It is for another replica, or for an earlier life of this one.
    #[error("for another replica")]
    Elsewhere,
}

/// The keys of all replicas; a handle.
#[derive(Clone)]
pub(crate) struct HopKeys(Arc<[hmac::Key]>);

impl HopKeys {
    /// From 32 bytes derived of each master key: the first signs, all verify, so that a master key
    /// can be changed while replicas run.
    pub(crate) fn new<'k>(keys: impl IntoIterator<Item = &'k [u8; 32]>) -> Self {
        let key = |key: &[u8; 32]| hmac::Key::new(hmac::HMAC_SHA256, key);
        Self(keys.into_iter().map(key).collect())
    }

    /// The header of a request that leaves now; none if there is no key.
    pub(crate) fn sign(&self, hop: &Hop, asked: Asked<'_>, now_ms: i64) -> Option<HeaderValue> {
        let expires = now_ms.saturating_add(LIFE_MS);
        let mut text = said(hop, asked.length, expires);
        let mac = mac(self.0.first()?, &text, asked);
        text.push(';');
        text.push_str(&mac);
        let mut header = HeaderValue::try_from(text).ok()?;
        // In no table of HPACK: each request has another one, which would only push out what
        // they have in common (RFC 7541, section 7.1.3).
        header.set_sensitive(true);
        Some(header)
    }

    /// What a request with this header is, for the replica whose life is `me`.
    ///
    /// # Errors
    ///
    /// Why it is to be refused.
    pub(crate) fn verify(
        &self,
        header: &HeaderValue,
        asked: Asked<'_>,
        me: &str,
        now_ms: i64,
    ) -> Result<Hop, Worthless> {
        let text = header.to_str().map_err(|_| Worthless::Forged)?;
        let (said, given) = text.rsplit_once(';').ok_or(Worthless::Forged)?;
        let is_signed = self.0.iter().any(|key| {
            let own = mac(key, said, asked);
            constant_time::verify_slices_are_equal(own.as_bytes(), given.as_bytes()).is_ok()
        });
        if !is_signed {
            return Err(Worthless::Forged);
        }
        let (hop, length, expires) = parse(said).ok_or(Worthless::Forged)?;
        if length != asked.length {
            return Err(Worthless::Forged);
        }
        let left = expires.saturating_sub(now_ms);
        if !(-SKEW_MS..=LIFE_MS + SKEW_MS).contains(&left) {
            return Err(Worthless::Expired);
        }
        if &*hop.target != me {
            return Err(Worthless::Elsewhere);
        }
        Ok(hop)
    }
}

/// All but the MAC. No field can hold the sign between them: a boot id and a `traceparent` are
/// hexadecimal, the others are made here.
fn said(hop: &Hop, length: u64, expires: i64) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let plain = |text: &str| text.len() <= TRACE && text.bytes().all(is_plain);
    let [target, sender, trace] =
        [&*hop.target, &*hop.sender, &hop.trace].map(|text| if plain(text) { text } else { "" });
    let mut said = String::with_capacity(HEADER);
    // Nothing fails that is written to a string.
    let _ = write!(said, "{VERSION};{target};{sender};{length};");
    let _ = match hop.client {
        Some(client) => write!(said, "{client}"),
        None => said.write_char('-'),
    };
    let _ = write!(said, ";{};{trace};{expires}", u8::from(hop.is_tls));
    said
}

fn parse(said: &str) -> Option<(Hop, u64, i64)> {
    let mut fields = said.split(';');
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
    let is_whole = version == VERSION && fields.next().is_none();
    is_whole.then_some((hop, length, expires.parse().ok()?))
}

/// Over every part with its length, so that none runs into the next.
fn mac(key: &hmac::Key, said: &str, asked: Asked<'_>) -> String {
    let mut context = hmac::Context::with_key(key);
    for part in [said, asked.method.as_str(), asked.target] {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    URL_SAFE_NO_PAD.encode(context.sign())
}

const VERSION: &str = "v1";
/// How long a header holds: it outlives every wait before a request is read, and no log.
const LIFE_MS: i64 = 120_000;
/// How far the clocks of two replicas may be apart (P161).
const SKEW_MS: i64 = 60_000;
/// A boot id has 32 characters, a `traceparent` 55.
const TRACE: usize = 64;
/// As long as one is, with its MAC.
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

    const ASKED: Asked<'static> = Asked {
        method: &Method::POST,
        target: "/t/a/b/messages?session_id=x",
        length: 17,
    };

    fn signed() -> HeaderValue {
        keys().sign(&hop(), ASKED, NOW).unwrap()
    }

    fn check(header: &HeaderValue, asked: Asked<'_>) -> Result<Hop, Worthless> {
        keys().verify(header, asked, "aaaa", NOW)
    }

    #[test]
    fn holds_for_the_request_that_it_was_made_for() {
        assert_eq!(check(&signed(), ASKED), Ok(hop()));
        assert!(signed().is_sensitive(), "it would fill the table of HPACK");
        let other = |asked| check(&signed(), asked);
        let forged = Err(Worthless::Forged);
        let method = &Method::GET;
        assert_eq!(other(Asked { method, ..ASKED }), forged);
        let target = "/t/a/b/messages?session_id=y";
        assert_eq!(other(Asked { target, ..ASKED }), forged);
        assert_eq!(
            other(Asked {
                length: 18,
                ..ASKED
            }),
            forged
        );
    }

    #[test]
    fn holds_for_one_life_of_one_replica() {
        let header = signed();
        let at = |me: &str| keys().verify(&header, ASKED, me, NOW);
        assert_eq!(at("cccc"), Err(Worthless::Elsewhere));
        let other = HopKeys::new([&[8; 32]]);
        assert_eq!(
            other.verify(&header, ASKED, "aaaa", NOW),
            Err(Worthless::Forged)
        );
        let changed = HopKeys::new([&[8; 32], &[7; 32]]);
        assert_eq!(changed.verify(&header, ASKED, "aaaa", NOW), Ok(hop()));
        assert!(HopKeys::new([]).sign(&hop(), ASKED, NOW).is_none());
    }

    #[test]
    fn holds_for_two_minutes_whatever_the_clocks() {
        let header = signed();
        let at = |now| keys().verify(&header, ASKED, "aaaa", now).is_ok();
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
            assert_eq!(check(&changed, ASKED), Err(Worthless::Forged), "{at}");
        }
    }

    #[test]
    fn nothing_of_a_client_gets_into_the_fields() {
        let mut hop = hop();
        hop.trace = "00;1;2".to_owned();
        hop.client = None;
        let header = keys().sign(&hop, ASKED, NOW).unwrap();
        hop.trace = String::new();
        assert_eq!(check(&header, ASKED), Ok(hop));
    }

    proptest! {
        #[test]
        fn a_changed_header_is_forged(at in any::<prop::sample::Index>(), to in "[ -~]") {
            let mut text = signed().to_str().unwrap().to_owned();
            let at = at.index(text.len());
            prop_assume!(text[at..=at] != to);
            text.replace_range(at..=at, &to);
            let header = HeaderValue::try_from(text).unwrap();
            prop_assert_eq!(check(&header, ASKED), Err(Worthless::Forged));
        }

        #[test]
        fn any_text_is_forged(text in "[ -~]{0,200}") {
            let header = HeaderValue::try_from(text).unwrap();
            prop_assert_eq!(check(&header, ASKED), Err(Worthless::Forged));
        }
    }
}
