//! `Origin: null`, which is accepted with forms of the gateway's own pages alone.
//!
//! Not here: the content of a form, which is sealed for one browser (`oauth::browser`).

use http::{HeaderName, Method, header::ORIGIN, request::Parts};

use crate::{endpoint::OauthEndpoint, http::reply::header_name::SEC_FETCH_SITE};

/// Returns whether a request is a form of one of the gateway's own pages.
///
/// The pages set `no-referrer`, and browsers then send `Origin: null` (Fetch, section 3.1, "append a
/// request Origin header"). `Sec-Fetch-Site`, which no page can write, tells that the origin is the
/// same. Browsers send that field to trustworthy URLs only (Fetch Metadata, section 2). For other
/// URLs the form itself is the proof, with a cookie that forms of other sites do not carry
/// (`SameSite=Lax`).
pub(super) fn is_own_form(head: &Parts, is_trustworthy: bool) -> bool {
    let is_only = |name: HeaderName, expected: &str| {
        let mut values = head.headers.get_all(name).iter();
        values.next().is_some_and(|value| value == expected) && values.next().is_none()
    };
    let is_form = matches!(
        OauthEndpoint::parse(head.uri.path()),
        Some(
            OauthEndpoint::Authorize
                | OauthEndpoint::Account
                | OauthEndpoint::Login
                | OauthEndpoint::Consent
        )
    );
    let lacks_metadata = !is_trustworthy && !head.headers.contains_key(SEC_FETCH_SITE);
    head.method == Method::POST
        && is_form
        && is_only(ORIGIN, "null")
        && (lacks_metadata || is_only(SEC_FETCH_SITE, "same-origin"))
}

#[cfg(test)]
mod tests {
    use super::super::null_origin::*;

    #[test]
    fn only_own_forms_may_lack_an_origin() {
        let at = |is_trustworthy, method: Method, path: &str, origin: &[&str], site: &[&str]| {
            let mut request = http::Request::builder().method(method).uri(path);
            for origin in origin {
                request = request.header(ORIGIN, *origin);
            }
            for site in site {
                request = request.header("sec-fetch-site", *site);
            }
            is_own_form(&request.body(()).unwrap().into_parts().0, is_trustworthy)
        };
        let of = |method, path: &str, origin: &[&str], site: &[&str]| {
            at(true, method, path, origin, site)
        };
        let own: [&[&str]; 2] = [&["null"], &["same-origin"]];
        for path in [
            "/authorize",
            "/t/a/account",
            "/t/a/oauth/login",
            "/t/a/oauth/consent",
            "/t/a/oauth/authorize",
        ] {
            assert!(of(Method::POST, path, own[0], own[1]), "{path}");
            assert!(!of(Method::GET, path, own[0], own[1]));
            assert!(!of(Method::POST, path, &["https://evil.test"], own[1]));
            assert!(!of(Method::POST, path, &["null", "null"], own[1]));
            assert!(!of(Method::POST, path, &[], own[1]));
            for site in [
                &[][..],
                &["cross-site"],
                &["same-site"],
                &["none"],
                &["same-origin", "same-origin"],
            ] {
                assert!(!of(Method::POST, path, own[0], site), "{path} {site:?}");
                // `Sec-Fetch-Site` may be absent: browsers send it to trustworthy URLs only.
                let is_silent = site.is_empty();
                let found = at(false, Method::POST, path, own[0], site);
                assert_eq!(found, is_silent, "{path} {site:?}");
            }
            assert!(!at(false, Method::POST, path, &["https://evil.test"], &[]));
            assert!(!at(false, Method::GET, path, own[0], &[]));
        }
        for path in [
            "/t/a/oauth/token",
            "/t/a/oauth/register",
            "/t/a/oauth/callback/login",
            "/t/a/oauth/mcp",
            "/t/a/x/mcp",
            "/token",
            "/mcp",
            "/api/v1/tenants",
            "/x/t/a/oauth/login",
        ] {
            assert!(!of(Method::POST, path, own[0], own[1]), "{path}");
            assert!(!at(false, Method::POST, path, own[0], &[]), "{path}");
        }
    }
}
