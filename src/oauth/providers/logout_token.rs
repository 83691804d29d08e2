//! Claims of logout tokens (OpenID Connect Back-Channel Logout 1.0, sections 2.4 and 2.6).
//!
//! Not here: their signatures (`openid`), and that each counts once (`oauth::logout`).

use serde_json::{Map, Value};

use super::provider::{LogoutToken, check_subject};
use crate::{
    auth::jose::{numeric_date, string, strings},
    base::LEEWAY_S,
};

/// Checks the claims of a token that `issuer` made for `client`, at `now` in seconds since 1970.
///
/// # Errors
///
/// The reason why it is invalid.
pub(super) fn read(
    header: &Map<String, Value>,
    claims: &Map<String, Value>,
    (issuer, client): (&str, &str),
    now: u64,
) -> Result<LogoutToken, &'static str> {
    // Section 2.4 recommends a type of its own. Any other one is another token; without one the event decides.
    let kind = string(header, "typ")?.unwrap_or("JWT");
    if !["logout+jwt", "JWT"]
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known))
    {
        return Err("another type of token");
    }
    if string(claims, "iss")? != Some(issuer) {
        return Err("another issuer");
    }
    let audiences = claims.get("aud").map(strings).ok_or("no aud")??;
    if !audiences.iter().any(|audience| audience == client) {
        return Err("another audience");
    }
    let event = claims.get("events").and_then(|events| events.get(EVENT));
    if !event.is_some_and(Value::is_object) {
        return Err("no logout event");
    }
    // An ID token has one.
    if claims.contains_key("nonce") {
        return Err("a nonce");
    }
    let leeway = u64::from(LEEWAY_S);
    let (expires, issued) = (numeric_date(claims, "exp")?, numeric_date(claims, "iat")?);
    let (expires, issued) = (expires.ok_or("no exp")?, issued.ok_or("no iat")?);
    if now >= expires.saturating_add(leeway) {
        return Err("expired");
    }
    if issued > now.saturating_add(leeway) {
        return Err("issued in the future");
    }
    if issued.saturating_add(AGE + leeway) < now {
        return Err("issued long ago");
    }
    let text = |name| -> Result<Option<String>, &'static str> {
        let text = string(claims, name)?;
        if text.is_some_and(|text| check_subject(text).is_err()) {
            return Err("a claim that is empty or too long");
        }
        Ok(text.map(str::to_owned))
    };
    let (subject, session) = (text("sub")?, text("sid")?);
    if subject.is_none() && session.is_none() {
        return Err("neither sub nor sid");
    }
    // One that lasts for longer is refused by its age.
    let until = expires
        .min(issued.saturating_add(AGE + 1))
        .saturating_add(leeway);
    Ok(LogoutToken {
        subject,
        session,
        id: text("jti")?.ok_or("no jti")?,
        expires_s: i64::try_from(until).unwrap_or(i64::MAX),
    })
}

/// The member of `events`.
const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";
/// Maximum age of a token in seconds: providers send them at once.
const AGE: u64 = 300;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(header: &Value, claims: &Value) -> Result<LogoutToken, &'static str> {
        let (header, claims) = (header.as_object().unwrap(), claims.as_object().unwrap());
        read(header, claims, ("https://idp.test", "us"), 10_000)
    }

    fn good() -> Value {
        json!({"iss": "https://idp.test", "sub": "1", "sid": "s", "aud": "us", "iat": 9_990, "exp": 10_110,
            "jti": "j", "events": {EVENT: {}}})
    }

    #[test]
    fn logout_tokens_are_fresh_and_for_this_gateway() {
        let header = json!({"alg": "ES256", "typ": "logout+jwt"});
        let read = check(&header, &good()).unwrap();
        assert_eq!(
            (
                read.subject.as_deref(),
                read.session.as_deref(),
                read.expires_s
            ),
            (Some("1"), Some("s"), 10_170)
        );
        for (name, value, wanted) in [
            ("iss", json!("https://idp.test/"), Err("another issuer")),
            ("aud", json!("them"), Err("another audience")),
            ("aud", json!(["them", "us"]), Ok(())),
            ("events", json!({}), Err("no logout event")),
            ("events", json!({EVENT: true}), Err("no logout event")),
            ("events", json!([EVENT]), Err("no logout event")),
            ("nonce", json!("n"), Err("a nonce")),
            ("nonce", json!(null), Err("a nonce")),
            ("exp", json!(9_941), Ok(())),
            ("exp", json!(9_940), Err("expired")),
            ("iat", json!(10_061), Err("issued in the future")),
            ("iat", json!(9_640), Ok(())),
            ("iat", json!(9_639), Err("issued long ago")),
            ("sub", json!(""), Err("a claim that is empty or too long")),
            (
                "sub",
                json!("1\0"),
                Err("a claim that is empty or too long"),
            ),
            (
                "sid",
                json!("x".repeat(256)),
                Err("a claim that is empty or too long"),
            ),
            ("jti", json!(1), Err("a member that is no text")),
        ] {
            let mut claims = good();
            claims[name] = value.clone();
            assert_eq!(check(&header, &claims).map(drop), wanted, "{name}: {value}");
        }
        for name in ["iss", "aud", "events", "exp", "iat", "jti", "sub", "sid"] {
            let mut claims = good();
            claims.as_object_mut().unwrap().remove(name);
            let is_optional = matches!(name, "sub" | "sid");
            assert_eq!(check(&header, &claims).is_ok(), is_optional, "{name}");
        }
        let mut nobody = good();
        for name in ["sub", "sid"] {
            nobody.as_object_mut().unwrap().remove(name);
        }
        assert_eq!(check(&header, &nobody), Err("neither sub nor sid"));
        for (kind, wanted) in [("JWT", true), ("at+jwt", false), ("secevent+jwt", false)] {
            assert_eq!(
                check(&json!({"typ": kind}), &good()).is_ok(),
                wanted,
                "{kind}"
            );
        }
    }
}
