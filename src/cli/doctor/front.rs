//! The first request, without a token: TLS, redirects, the version of HTTP, and the challenge.

use reqwest::{Method, Version, header::LOCATION};
use url::Url;

use super::{
    causes::{self, Finding, failed},
    message::{ACCEPT, initialize},
    sse::is_stream,
    visitor::{Answer, Ask, Visitor},
};
use crate::protocol::SESSION_ID;

/// The log-in that the server wants.
#[derive(Debug)]
pub(super) enum Door {
    /// None.
    Open,
    /// A token, with what its challenge says.
    Challenge(Challenge),
    /// Nothing more can be found out.
    Shut,
}

/// A challenge (RFC 6750, section 3; RFC 9728, section 5.1).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Challenge {
    pub(super) resource_metadata: Option<String>,
    pub(super) scope: Option<String>,
}

/// Sends the first request as clients do, and finds what is wrong in front of the server.
pub(super) async fn knock(visitor: &mut Visitor) -> (Door, Vec<Finding>) {
    let url = visitor.target.clone();
    let ask = Ask::post(&url, &initialize("2025-11-25")).header("Accept", ACCEPT);
    let shown = ask.shown();
    let mut answer = match visitor.fetch(ask).await {
        Ok(answer) => answer,
        Err(failure) => return (Door::Shut, vec![failed(&failure, &shown)]),
    };
    // A server of 2024-11-05 alone takes no POST here (2025-11-25 transports, "Backwards Compatibility").
    if matches!(answer.status.as_u16(), 400 | 404 | 405) {
        let ask = Ask::get(&url).header("Accept", "text/event-stream");
        let found = visitor.head(ask).await;
        let is_one = |found: &Answer| is_stream(&found.headers) || found.status == 401;
        answer = found.ok().filter(is_one).unwrap_or(answer);
    }
    let mut findings: Vec<Finding> = old_version(&answer, &shown).into_iter().collect();
    leave(visitor, &answer).await;
    let door = match answer.status.as_u16() {
        200..=299 if is_stream(&answer.headers) || answer.object().is_some() => Ok(Door::Open),
        401 => {
            let challenge = answer.header("www-authenticate").map(challenge);
            if challenge.is_none() {
                let came = answer.shown();
                findings.push(Finding::new(&causes::CHALLENGE_MISSING, &shown, &came));
            }
            Ok(Door::Challenge(challenge.unwrap_or_default()))
        }
        300..=399 => Err(redirected(&answer, &shown, &url)),
        403 => Err(Finding::new(&causes::FORBIDDEN, &shown, &answer.shown())),
        500..=599 => Err(Finding::new(&causes::SERVER_ERROR, &shown, &answer.shown())),
        _ => Err(Finding::new(&causes::NOT_MCP, &shown, &answer.shown())),
    };
    match door {
        Ok(door) => (door, findings),
        Err(finding) => {
            findings.push(finding);
            (Door::Shut, findings)
        }
    }
}

/// Asks as the browser of a page of `origin` would (Fetch, section 3.3): a preflight, and the request itself.
pub(super) async fn page(visitor: &mut Visitor, origin: &str) -> Result<(), Finding> {
    let url = visitor.target.clone();
    let preflight = Ask::of(Method::OPTIONS, &url)
        .header("Origin", origin)
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", NEEDED.join(",").as_str());
    let request = Ask::post(&url, &initialize("2025-11-25"))
        .header("Accept", ACCEPT)
        .header("Origin", origin);
    for (ask, named, wanted) in [
        (preflight, "access-control-allow-headers", NEEDED),
        (request, "access-control-expose-headers", READ),
    ] {
        let shown = format!("{} (Origin: {origin})", ask.shown());
        let answer = visitor.fetch(ask).await;
        let answer = answer.map_err(|failure| failed(&failure, &shown))?;
        leave(visitor, &answer).await;
        let allowed = answer.header("access-control-allow-origin");
        let listed = answer
            .header(named)
            .unwrap_or_default()
            .to_ascii_lowercase();
        let is_listed = |name: &&&str| listed == "*" || listed.contains(**name);
        let missing: Vec<&str> = wanted
            .iter()
            .filter(|name| !is_listed(name))
            .copied()
            .collect();
        if allowed.is_some_and(|allowed| allowed == origin || allowed == "*") && missing.is_empty()
        {
            continue;
        }
        let came = format!(
            "{}, access-control-allow-origin: {}, {named} without {}",
            answer.status,
            allowed.unwrap_or("none"),
            missing.join(", ")
        );
        return Err(Finding::new(&causes::CORS_MISSING, &shown, &came));
    }
    Ok(())
}

/// Ends the session that the first request may have begun.
async fn leave(visitor: &mut Visitor, answer: &Answer) {
    if let Some(session) = answer.header(SESSION_ID) {
        let url = visitor.target.clone();
        let ask = Ask::of(Method::DELETE, &url).header("Mcp-Session-Id", session);
        // A server may keep its sessions.
        let _ = visitor.fetch(ask).await;
    }
}

/// A proxy of HTTP/1.0, by its answer, or by what it says of its own connection (RFC 9110, section 7.6.3).
fn old_version(answer: &Answer, asked: &str) -> Option<Finding> {
    let is_old = answer.version < Version::HTTP_11;
    let via = answer.header("via").filter(|via| {
        let mut hops = via.split(',').map(str::trim);
        hops.any(|hop| hop.starts_with("1.0 ") || hop.starts_with("HTTP/1.0 "))
    });
    let came = match via {
        Some(via) => format!("Via: {via}"),
        None => format!("{:?} {}", answer.version, answer.status),
    };
    let finding = || Finding::new(&causes::HTTP_1_0, asked, &came);
    (is_old || via.is_some()).then(finding)
}

fn redirected(answer: &Answer, asked: &str, from: &Url) -> Finding {
    let to = answer.header(LOCATION.as_str()).unwrap_or("nowhere");
    let came = format!("{}, Location: {to}", answer.status);
    let finding = Finding::new(&causes::REDIRECTED, asked, &came);
    let Ok(to) = from.join(to) else {
        return finding;
    };
    let is_upgrade = from.scheme() == "http" && to.scheme() == "https";
    match answer.status.as_u16() {
        301..=303 => finding.mending(&format!("a {} makes GET of POST", answer.status.as_u16())),
        _ if is_upgrade || to.origin() != from.origin() => {
            finding.mending("clients drop Authorization on the way to another origin")
        }
        _ => finding,
    }
    .mending(&format!("that is {to}"))
}

/// Reads a challenge.
fn challenge(text: &str) -> Challenge {
    Challenge {
        resource_metadata: parameter(text, "resource_metadata"),
        scope: parameter(text, "scope"),
    }
}

/// A parameter of a challenge, quoted or not, as the SDKs read it.
fn parameter(text: &str, name: &str) -> Option<String> {
    let starts = text.match_indices(name).find(|(at, _)| {
        let before = text[..*at].chars().next_back();
        let is_begin = before.is_none_or(|before| matches!(before, ' ' | ',' | '\t'));
        is_begin && text[at + name.len()..].trim_start().starts_with('=')
    });
    let (at, _) = starts?;
    let value = text[at + name.len()..].trim_start().strip_prefix('=')?;
    let value = value.trim_start();
    let value = match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => value.split([' ', ',']).next(),
    };
    value.filter(|value| !value.is_empty()).map(str::to_owned)
}

/// Header fields that a page has to be allowed to send; `*` does not stand for `authorization` everywhere.
const NEEDED: &[&str] = &[
    "authorization",
    "content-type",
    "mcp-protocol-version",
    "mcp-session-id",
];
/// Header fields that a page has to be allowed to read.
const READ: &[&str] = &["mcp-session-id", "www-authenticate"];

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use reqwest::{StatusCode, header::HeaderMap};

    use super::super::front::*;

    #[test]
    fn a_redirect_says_what_clients_lose() {
        let from = Url::parse("http://a.test/mcp").unwrap();
        for (status, to, loss) in [
            (301, "/mcp/", "a 301 makes GET of POST"),
            (308, "https://a.test/mcp", "drop Authorization"),
            (307, "http://b.test/mcp", "drop Authorization"),
            (308, "/mcp/", "that is http://a.test/mcp/"),
        ] {
            let answer = Answer {
                version: Version::HTTP_11,
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::from_iter([(LOCATION, to.parse().unwrap())]),
                body: Bytes::new(),
            };
            let finding = redirected(&answer, "POST", &from);
            assert!(finding.mend.contains(loss), "{}", finding.mend);
        }
    }

    #[test]
    fn challenges_are_read_as_the_sdks_do() {
        for (text, metadata, scope) in [
            (
                "Bearer resource_metadata=\"https://a/b\", scope=\"x y\"",
                Some("https://a/b"),
                Some("x y"),
            ),
            (
                "Bearer realm=\"x\",resource_metadata=https://a/b,error=\"z\"",
                Some("https://a/b"),
                None,
            ),
            ("Bearer other_scope=\"x\"", None, None),
            ("Bearer scope=\"\"", None, None),
            ("Bearer scope", None, None),
            ("Basic realm=\"scope=\"", None, None),
        ] {
            let read = challenge(text);
            let read = (read.resource_metadata.as_deref(), read.scope.as_deref());
            assert_eq!(read, (metadata, scope), "{text}");
        }
    }
}
