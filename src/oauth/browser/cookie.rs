//! Cookies that identify a browser.
//!
//! A cookie is a random value. The digest of one is the key of the log-in in the database and is sealed into
//! each form; the other one binds the redirects to providers that are under way. Not here: the content of forms
//! (`flow`).

use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header::COOKIE};

use crate::{
    base::{hex, sha256},
    oauth::base::secret,
};

/// The identity of a browser: the value of its cookie.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct BrowserId(String);

/// The purpose of a cookie.
#[derive(Clone, Copy, Debug)]
pub(super) enum CookieKind {
    /// Identifies the browser and its log-in. Each log-in changes it.
    LogIn,
    /// Binds the trips of the browser to providers and upstreams. It begins as the value that identifies the browser,
    /// the same in all tabs, and log-ins keep it: of several trips one is the first to return. No log-in is found by
    /// it.
    Trips,
}

/// The cookies of one tenant of one gateway.
#[derive(Clone, Copy, Debug)]
pub(super) struct CookieJar<'j> {
    tenant: &'j str,
    /// The beginning of the digest of the public URL. Cookies of a host are for all its ports (RFC 6265, section 8.5), and
    /// another gateway there may have a tenant of this name.
    gateway: [u8; 4],
    is_secure: bool,
}

impl BrowserId {
    /// Generates an identity; `None` if the system has no randomness.
    pub(crate) fn new(random: &SystemRandom) -> Option<Self> {
        secret::plain(random).map(Self)
    }

    /// Returns the digest; the value itself is never stored.
    pub(crate) fn hash(&self) -> [u8; 32] {
        secret::hash(&self.0)
    }

    /// Returns the database key of a log-in at a provider. Only this browser can complete the log-in.
    pub(super) fn login_key(&self, state: &str) -> [u8; 32] {
        secret::hash(&format!("{}.{state}", self.0))
    }
}

impl<'j> CookieJar<'j> {
    /// The cookies of `tenant` at this public URL.
    pub(crate) fn of(tenant: &'j str, public_url: &str) -> Self {
        let [one, two, three, four, ..] = sha256(public_url.as_bytes());
        Self {
            tenant,
            gateway: [one, two, three, four],
            is_secure: public_url.starts_with("https:"),
        }
    }

    /// Returns the name of a cookie. Without https (on loopback) browsers accept neither the prefix nor
    /// `Secure`.
    fn name(&self, kind: CookieKind) -> String {
        let prefix = if self.is_secure { "__Host-" } else { "" };
        let purpose = match kind {
            CookieKind::LogIn => "lockgate-",
            // Not the beginning of the other name: it would be that of another tenant.
            CookieKind::Trips => "lockgate_trips-",
        };
        format!("{prefix}{purpose}{}-{}", self.tenant, hex(&self.gateway))
    }

    /// Returns the browser of a request by one of its cookies. Two cookies with the same name count as none, because an
    /// attacker may have planted one.
    ///
    /// Rejected: taking the one of them that is valid. The planted one is valid too, as the cookie of the
    /// attacker's own log-in or form, and its place among them proves nothing, because a longer path comes first
    /// (RFC 6265, section 5.4). Behind https no browser keeps two: the prefix `__Host-` admits neither a domain nor
    /// another path. Without https who can plant a cookie can as well overwrite ours (section 8.6).
    pub(crate) fn browser(&self, headers: &HeaderMap, kind: CookieKind) -> Option<BrowserId> {
        let name = self.name(kind);
        let lines = headers.get_all(COOKIE).iter();
        let pairs = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let mut values = pairs.filter_map(|(found, value)| (found == name).then_some(value));
        let value = values.next().filter(|_| values.next().is_none())?;
        let bytes = URL_SAFE_NO_PAD.decode(value).ok()?;
        (bytes.len() == BYTES).then(|| BrowserId(value.to_owned()))
    }

    /// Makes the header field that sets the cookie for `age`.
    pub(super) fn cookie(
        &self,
        browser: &BrowserId,
        kind: CookieKind,
        age: Duration,
    ) -> HeaderValue {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let text = format!(
            "{}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Lax{secure}",
            self.name(kind),
            browser.0,
            age.as_secs().max(1)
        );
        HeaderValue::try_from(text).expect("names of tenants and base64url fit into a header")
    }
}

/// Size of the value in bytes: 256 bits cannot be guessed.
const BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        let lines = lines.iter().map(|line| {
            let value = HeaderValue::try_from(*line).unwrap();
            (COOKIE, value)
        });
        lines.collect()
    }

    #[test]
    fn a_cookie_comes_back() {
        let browser = BrowserId::new(&SystemRandom::new()).unwrap();
        let other = BrowserId::new(&SystemRandom::new()).unwrap();
        assert!(browser.hash() != other.hash() && browser.login_key("s") != other.login_key("s"));
        let day = Duration::from_hours(24);
        let (plain, secure) = (
            ("http://127.0.0.1:8080", "Lax"),
            ("https://gw.test", "Secure"),
        );
        for ((url, end), kind, name) in [
            (plain, CookieKind::LogIn, "lockgate-a-d30a576c"),
            (secure, CookieKind::LogIn, "__Host-lockgate-a-99b12b79"),
            (plain, CookieKind::Trips, "lockgate_trips-a-d30a576c"),
            (
                secure,
                CookieKind::Trips,
                "__Host-lockgate_trips-a-99b12b79",
            ),
        ] {
            let jar = CookieJar::of("a", url);
            let cookie = jar.cookie(&browser, kind, day);
            let cookie = cookie.to_str().unwrap().to_owned();
            let begin = format!("{name}={}; Path=/; Max-Age=86400; HttpOnly; ", browser.0);
            assert!(
                cookie.starts_with(&begin) && cookie.ends_with(end),
                "{cookie}"
            );
            assert!(!cookie.contains("Domain"));
            let pair = format!("{name}={}", browser.0);
            let found = |lines: &[&str]| {
                let found = jar.browser(&headers(lines), kind);
                found.map(|found| found.hash())
            };
            let known = Some(browser.hash());
            assert_eq!(found(&[&pair]), known);
            assert_eq!(found(&[&format!("x=1; {pair}; y")]), known);
            let another = format!("{name}={}", other.0);
            assert_eq!(found(&[&pair, &another]), None);
            assert_eq!(found(&[&format!("{pair}; {another}")]), None);
            assert_eq!(found(&[&pair.replace("-a-", "-b-")]), None);
            assert_eq!(found(&[&format!("{pair}A")]), None);
            assert_eq!(found(&[&format!("{name}=")]), None);
            assert_eq!(found(&[]), None);
            let other = match kind {
                CookieKind::LogIn => CookieKind::Trips,
                CookieKind::Trips => CookieKind::LogIn,
            };
            assert!(jar.browser(&headers(&[&pair]), other).is_none(), "{name}");
        }
    }

    /// Each log-in at one gateway ended the person's at the other.
    #[test]
    fn gateways_on_one_host_keep_their_own_cookies() {
        let random = SystemRandom::new();
        let day = Duration::from_hours(24);
        let urls = [
            "https://gw.test",
            "https://gw.test:8443",
            "https://gw.test/b",
        ];
        for kind in [CookieKind::LogIn, CookieKind::Trips] {
            let kept = urls.map(|url| {
                let browser = BrowserId::new(&random).unwrap();
                let cookie = CookieJar::of("a", url).cookie(&browser, kind, day);
                let (pair, _) = cookie.to_str().unwrap().split_once(';').unwrap();
                (browser.hash(), pair.to_owned())
            });
            let line = kept.each_ref().map(|(_, pair)| pair.as_str()).join("; ");
            for (url, (hash, _)) in urls.iter().zip(&kept) {
                let found = CookieJar::of("a", url).browser(&headers(&[&line]), kind);
                assert_eq!(
                    found.map(|found| found.hash()).as_ref(),
                    Some(hash),
                    "{url}"
                );
            }
        }
    }
}
