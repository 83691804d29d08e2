//! Tests of `oauth::browser::authorization_request`.

use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::{config::Format, manifest::reader};

fn tenant() -> Arc<Tenant> {
    let text = "tenants: {a: {auth: {mode: builtin, scopes: [\"files:read\"]}, \
        default_server: x, servers: {\
        x: {command: x, policy: {scopes: {\"d*\": [files:write]}}}, y: {command: y}}}}";
    let parsed = reader::parse("F", text, Format::Yaml, &BTreeMap::new()).unwrap();
    Arc::clone(&parsed.catalog.tenants["a"])
}

fn read(query: &str) -> Result<RequestParameters, &'static str> {
    let form = Form::parse(query).unwrap();
    RequestParameters::read(&form, Site::of("https://gw.test", None, None), &tenant())
        .map_err(|refusal| refusal.error)
}

const GOOD: &str = "response_type=code&code_challenge_method=S256\
                    &code_challenge=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

#[test]
fn a_plain_request_is_for_the_default_server_and_the_scopes_to_begin_with() {
    let wish = read(GOOD).unwrap();
    assert_eq!(wish.resource.url, "https://gw.test/t/a/x/mcp");
    assert_eq!(wish.scope(), "files:read");
    assert_eq!((wish.prompt, wish.max_age), (Prompt::default(), None));
}

#[test]
fn a_code_may_be_for_one_key() {
    let jkt = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I";
    let bound = read(&format!("{GOOD}&dpop_jkt={jkt}")).unwrap();
    assert_eq!(bound.jkt.as_deref(), Some(jkt));
    assert_eq!(read(GOOD).unwrap().jkt, None);
}

#[test]
fn unknown_scopes_are_ignored() {
    let of = |more: &str| read(&format!("{GOOD}&{more}")).map(|read| read.scope());
    assert_eq!(of("scope=files:read+x").as_deref(), Ok("files:read"));
    assert_eq!(
        of("scope=offline_access+files:write+openid").as_deref(),
        Ok("files:write offline_access")
    );
    assert_eq!(of("scope=x").as_deref(), Ok("offline_access"));
    assert_eq!(
        of("resource=https://gw.test/t/a/y/sse").as_deref(),
        Ok("files:read")
    );
    assert_eq!(of("scope=%22"), Err("invalid_scope"));
}

#[test]
fn invalid_requests_get_the_right_error_code() {
    for (more, error) in [
        ("x=1&x=2", "invalid_request"),
        ("state=1&state=2", "invalid_request"),
        (
            "resource=https://gw.test/t/a/x/mcp&resource=https://gw.test/t/a/y/mcp",
            "invalid_target",
        ),
        ("resource=https://gw.test/t/b/x/mcp", "invalid_target"),
        ("resource=https://gw.test/t/a/x/mcp/", "invalid_target"),
        ("request=x", "request_not_supported"),
        ("request_uri=x", "request_uri_not_supported"),
        ("response_mode=fragment", "invalid_request"),
        ("max_age=x", "invalid_request"),
        ("max_age=-1", "invalid_request"),
        ("prompt=none+login", "invalid_request"),
        ("dpop_jkt=x", "invalid_request"),
        (
            "dpop_jkt=E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-c%3D",
            "invalid_request",
        ),
    ] {
        assert_eq!(read(&format!("{GOOD}&{more}")), Err(error), "{more}");
    }
    for (from, to, error) in [
        ("response_type=code", "", "invalid_request"),
        ("=code&", "=token&", "unsupported_response_type"),
        ("=code&", "=code+token&", "unsupported_response_type"),
        ("=code&", "=CODE&", "unsupported_response_type"),
        ("=S256", "=plain", "invalid_request"),
        ("code_challenge_method=S256", "", "invalid_request"),
        ("w-cM", "w-cMx", "invalid_request"),
        ("w-cM", "w-c", "invalid_request"),
        ("w-cM", "w/cM", "invalid_request"),
        ("code_challenge=", "x=", "invalid_request"),
    ] {
        assert!(GOOD.contains(from));
        assert_eq!(read(&GOOD.replacen(from, to, 1)), Err(error), "{from} {to}");
    }
}

#[test]
fn prompts_are_words() {
    let of = |more: &str| read(&format!("{GOOD}&prompt={more}")).unwrap().prompt;
    assert!(of("none").none && of("login").login && of("select_account").login);
    assert!(of("login").credentials && !of("select_account").credentials);
    let both = of("login+consent");
    assert!(both.login && both.consent);
    assert_eq!(of("create"), Prompt::default());
    for (query, wanted) in [
        ("a=1&prompt=login&b=2", "a=1&b=2"),
        ("a=1&prompt=login+consent", "a=1&prompt=consent"),
        ("pr%6Fmpt=login&max_age=0&a=%7e", "a=%7e"),
        ("prompt=consent", "prompt=consent"),
    ] {
        assert_eq!(without_log_in_prompt(query), wanted);
    }
    for (query, wanted) in [
        ("a=%7e&b=2", "a=%7e&b=2&prompt=select_account"),
        (
            "a=1&prompt=consent&b=2",
            "a=1&prompt=consent+select_account&b=2",
        ),
        ("prompt=login", "prompt=login+select_account"),
        ("pr%6Fmpt=&a=1", "prompt=select_account&a=1"),
    ] {
        assert_eq!(with_account_prompt(query), wanted);
    }
    for (query, wanted) in [
        ("a=%7e&b=2", "a=%7e&b=2&prompt=consent"),
        ("a=1&prompt=login&b=2", "a=1&prompt=login+consent&b=2"),
        ("prompt=consent", "prompt=consent"),
    ] {
        assert_eq!(with_consent_prompt(query), wanted);
    }
}

#[test]
fn response_urls_keep_state_and_query() {
    let back = |uri: &str, state: Option<&str>| ClientRedirect {
        uri: uri.to_owned(),
        sent: String::new(),
        state: state.map(str::to_owned),
        issuer: "https://gw.test/t/a".to_owned(),
    };
    let iss = "iss=https%3A%2F%2Fgw.test%2Ft%2Fa";
    for (uri, begin) in [
        ("https://c.test/cb", "https://c.test/cb?"),
        ("https://c.test/cb?", "https://c.test/cb?"),
        ("https://c.test/cb?x=%20", "https://c.test/cb?x=%20&"),
        ("https://c.test/cb?x&", "https://c.test/cb?x&"),
        ("app:/cb", "app:/cb?"),
    ] {
        let url = back(uri, None).with(&[("code", "c")]);
        assert_eq!(url, format!("{begin}code=c&{iss}"));
    }
    let state = "a b+c\0\r\nLocation: x&code=evil#é";
    let url = back("https://c.test/cb", Some(state)).with(&[("code", "c")]);
    let parsed = Url::parse(&url).unwrap();
    let pairs: Vec<_> = parsed.query_pairs().into_owned().collect();
    assert_eq!(pairs[1], ("state".to_owned(), state.to_owned()));
    assert_eq!(pairs.len(), 3);
    assert!(!url.contains(['\r', '\n', ' ', '+']));
}

#[test]
fn a_consent_covers_everything_that_the_page_shows() {
    let back = ClientRedirect {
        uri: "https://c.test/cb".to_owned(),
        sent: String::new(),
        state: Some("1".to_owned()),
        issuer: "https://gw.test/t/a".to_owned(),
    };
    let one = read(GOOD).unwrap();
    let digest = one.digest(&back, &[0; 32]);
    let elsewhere = ClientRedirect {
        uri: "https://c.test/cb2".to_owned(),
        ..back.clone()
    };
    let later = ClientRedirect {
        state: Some("2".to_owned()),
        ..back.clone()
    };
    assert_eq!(one.digest(&later, &[0; 32]), digest);
    assert_ne!(one.digest(&elsewhere, &[0; 32]), digest);
    assert_ne!(one.digest(&back, &[1; 32]), digest);
    for more in [
        "scope=files:read+files:write",
        "resource=https://gw.test/t/a/x/sse",
    ] {
        let other = read(&format!("{GOOD}&{more}")).unwrap();
        assert_ne!(other.digest(&back, &[0; 32]), digest, "{more}");
    }
}
