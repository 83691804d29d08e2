//! URLs of requests: equal after normalization by syntax and scheme, without query and fragment (RFC 9449, section
//! 4.3; RFC 3986, sections 6.2.2 and 6.2.3).

use url::Url;

/// Reports whether a proof for the URL `claimed` is for a request to `called`.
pub(super) fn is_same(claimed: &str, called: &str) -> bool {
    claimed == called
        || matches!((normal(claimed), normal(called)), (Some(one), Some(other)) if one == other)
}

/// The normal form of a URL of http or https; none if it is none, or names a user.
fn normal(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let is_plain = url.username().is_empty() && url.password().is_none();
    if !is_plain || !matches!(url.scheme(), "http" | "https") {
        return None;
    }
    // Parsing has lowered scheme and host, and removed the default port and dot segments.
    let origin = url.origin().ascii_serialization();
    Some(origin + &unescaped(url.path()))
}

/// A path in which only what must be is percent-encoded, in capitals.
fn unescaped(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        let (plain, escaped) = rest.split_at(at);
        out.push_str(plain);
        let digits = escaped.get(1..3);
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let Some((digits, byte)) = digits.zip(byte) else {
            out.push('%');
            rest = &escaped[1..];
            continue;
        };
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&digits.to_ascii_uppercase());
        }
        rest = &escaped[3..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, proptest};

    use super::super::target::*;

    #[test]
    fn spellings_of_one_url_are_the_same() {
        let called = "https://gw.test/base/t/a/x/mcp";
        for same in [
            called,
            "HTTPS://GW.test/base/t/a/x/mcp",
            "https://gw.test:443/base/t/a/x/mcp",
            "https://gw.test/base/t/a/x/mcp?session=1",
            "https://gw.test/base/t/a/x/mcp#top",
            "https://gw.test/base/./t/b/../a/x/mcp",
            "https://gw.test/base/t/%61/x/mcp",
        ] {
            assert!(is_same(same, called) && is_same(called, same), "{same}");
        }
        assert!(is_same(
            "https://gw.test/a%c3%bc",
            "https://gw.test/a%C3%BC"
        ));
        assert!(is_same("https://gw.test", "https://gw.test/"));
        for other in [
            "",
            "mcp",
            "/base/t/a/x/mcp",
            "http://gw.test/base/t/a/x/mcp",
            "https://gw.test/base/t/a/x/mcp/",
            "https://gw.test/base/t/a/x/MCP",
            "https://gw.test/base/t/a%2Fx/mcp",
            "https://gw.test/t/a/x/mcp",
            "https://gw.test:8443/base/t/a/x/mcp",
            "https://ada@gw.test/base/t/a/x/mcp",
            "https://gw.test.evil/base/t/a/x/mcp",
            "ws://gw.test/base/t/a/x/mcp",
        ] {
            assert!(!is_same(other, called), "{other}");
        }
        assert!(!is_same("data:x", "data:x#y"));
    }

    proptest! {
        #[test]
        fn nothing_panics(one in ".*", other in ".*") {
            let _ = is_same(&one, &other);
            let _ = unescaped(&one);
        }

        #[test]
        fn query_and_fragment_do_not_count(
            path in "(/[a-z%.~-]{0,8}){0,4}", rest in prop::sample::select(vec!["?q", "#f", "?a=b#c"]),
        ) {
            let url = format!("https://gw.test{path}");
            assert!(is_same(&format!("{url}{rest}"), &url));
            assert_eq!(unescaped(&unescaped("/%7e%41")), "/~A");
        }
    }
}
