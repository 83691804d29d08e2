//! Cookie that identifies a browser.
//!
//! The cookie is a random value. Its digest is the key of the log-in in the database and is sealed into
//! each form. Not here: the content of forms (`flow`).

use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header::COOKIE};

use crate::oauth::base::secret;

/// The identity of a browser: the value of its cookie.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct BrowserId(String);

/// The cookie of one tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct CookieJar<'j> {
    tenant: &'j str,
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
    /// The cookie of `tenant` at this public URL.
    pub(crate) fn of(tenant: &'j str, public_url: &str) -> Self {
        Self {
            tenant,
            is_secure: public_url.starts_with("https:"),
        }
    }

    /// Returns the cookie name. Without https (on loopback) browsers accept neither the prefix nor
    /// `Secure`.
    fn name(&self) -> String {
        let prefix = if self.is_secure { "__Host-" } else { "" };
        format!("{prefix}lockgate-{}", self.tenant)
    }

    /// Returns the browser of a request. Two cookies with the same name count as none, because an
    /// attacker may have planted one.
    ///
    /// Rejected: taking the one of them that is valid. The planted one is valid too, as the cookie of the
    /// attacker's own log-in or form, and its place among them proves nothing, because a longer path comes first
    /// (RFC 6265, section 5.4). Behind https no browser keeps two: the prefix `__Host-` admits neither a domain nor
    /// another path. Without https who can plant a cookie can as well overwrite ours (section 8.6).
    pub(crate) fn browser(&self, headers: &HeaderMap) -> Option<BrowserId> {
        let name = self.name();
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
    pub(super) fn cookie(&self, browser: &BrowserId, age: Duration) -> HeaderValue {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let text = format!(
            "{}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Lax{secure}",
            self.name(),
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
        for (url, name, end) in [
            ("http://127.0.0.1:8080", "lockgate-a", "SameSite=Lax"),
            ("https://gw.test", "__Host-lockgate-a", "Secure"),
        ] {
            let jar = CookieJar::of("a", url);
            let cookie = jar.cookie(&browser, day).to_str().unwrap().to_owned();
            let begin = format!("{name}={}; Path=/; Max-Age=86400; HttpOnly; ", browser.0);
            assert!(
                cookie.starts_with(&begin) && cookie.ends_with(end),
                "{cookie}"
            );
            assert!(!cookie.contains("Domain"));
            let pair = format!("{name}={}", browser.0);
            let found = |lines: &[&str]| jar.browser(&headers(lines)).map(|found| found.hash());
            let known = Some(browser.hash());
            assert_eq!(found(&[&pair]), known);
            assert_eq!(found(&[&format!("x=1; {pair}; y")]), known);
            let another = format!("{name}={}", other.0);
            assert_eq!(found(&[&pair, &another]), None);
            assert_eq!(found(&[&format!("{pair}; {another}")]), None);
            assert_eq!(found(&[&pair.replace("-a=", "-b=")]), None);
            assert_eq!(found(&[&format!("{pair}A")]), None);
            assert_eq!(found(&[&format!("{name}=")]), None);
            assert_eq!(found(&[]), None);
        }
    }
}
