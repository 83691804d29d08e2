//! Redirect URIs that a client may register.
//!
//! Not here: comparison with the redirect URI of a request (`oauth/clients`).

use url::Url;

use crate::endpoint::LOOPBACK;

/// Checks whether a client may register `text`.
///
/// # Errors
///
/// The reason why not.
pub(crate) fn check_redirect_uri(text: &str) -> Result<(), &'static str> {
    if text.is_empty() || text.len() > MAX_LENGTH {
        return Err("a redirect URI is empty or too long");
    }
    // Characters that parsers treat differently belong to no URI (RFC 3986, section 2).
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    if !text.bytes().all(is_plain) || !is_encoded_well(text) {
        return Err("a redirect URI has characters that no URI has");
    }
    // RFC 6749, section 3.1.2.
    if text.contains('#') {
        return Err("a redirect URI has a fragment");
    }
    if text.contains('*') {
        return Err("a redirect URI has a wildcard");
    }
    let (scheme, rest) = text.split_once(':').ok_or("a redirect URI has no scheme")?;
    if has_userinfo(rest) {
        return Err("a redirect URI has a user name");
    }
    match scheme {
        "https" => check_https(text, rest),
        "http" if loopback(text).is_some() => Ok(()),
        "http" => Err("a redirect URI with http is not of the own machine"),
        _ => check_private(text, scheme, rest),
    }
}

/// The host of a loopback URI, and the part behind its port; none for other URIs.
pub(crate) fn loopback(text: &str) -> Option<(&'static str, &str)> {
    let rest = text.strip_prefix("http://")?;
    let host = LOOPBACK.into_iter().find(|host| {
        let after = rest.strip_prefix(host);
        after.is_some_and(|after| after.is_empty() || after.starts_with([':', '/', '?']))
    })?;
    let rest = &rest[host.len()..];
    let Some(port) = rest.strip_prefix(':') else {
        return Some((host, rest));
    };
    let end = port.find(['/', '?']).unwrap_or(port.len());
    let (digits, rest) = port.split_at(end);
    // `parse` alone would accept "+80" and "080", which other parsers read differently.
    let is_plain = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_port = is_plain && digits.parse::<u16>().is_ok();
    is_port.then_some((host, rest))
}

/// Reports whether every percent sign begins an encoded octet (RFC 3986, section 2.1).
fn is_encoded_well(text: &str) -> bool {
    let mut parts = text.split('%');
    parts.next();
    parts.all(|part| part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

/// Reports whether the authority has user information.
fn has_userinfo(rest: &str) -> bool {
    let authority = rest.strip_prefix("//").unwrap_or("");
    let end = authority.find(['/', '?']).unwrap_or(authority.len());
    authority[..end].contains('@')
}

fn check_https(text: &str, rest: &str) -> Result<(), &'static str> {
    // Browsers accept one and three slashes before a host too.
    let is_usual = rest
        .strip_prefix("//")
        .is_some_and(|rest| !rest.starts_with('/'));
    let url = Url::parse(text).ok().filter(|_| is_usual);
    let url = url.ok_or("a redirect URI with https has no host")?;
    let host = url.host_str().unwrap_or_default();
    // Browsers read `%61pp.test` as `app.test` and `0x7f.1` as `127.0.0.1`; people see what is written.
    let written = rest.trim_start_matches('/').split_at_checked(host.len());
    let is_plain = written.is_some_and(|(written, after)| {
        let ends = after.is_empty() || after.starts_with([':', '/', '?']);
        ends && written.eq_ignore_ascii_case(host)
    });
    if is_plain && is_host(host) {
        Ok(())
    } else {
        Err("a redirect URI with https has a host in an unusual form")
    }
}

/// Reports whether a host is an IPv6 address, or has only characters of host names.
///
/// `url` and browsers also take `,`, `;`, `'` and others. The consent page names the host, and people would read it as
/// two, or as the end of one.
fn is_host(host: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    host.starts_with('[') || (!host.is_empty() && host.bytes().all(is_name))
}

/// Checks a private-use scheme (RFC 8252, section 7.1). Schemes should contain a dot, but many apps
/// use their plain names, which no list could enumerate. Only schemes that browsers and systems handle
/// themselves are refused, and those of programs that open any site that is named behind them.
fn check_private(text: &str, scheme: &str, rest: &str) -> Result<(), &'static str> {
    let begins = scheme.starts_with(|letter: char| letter.is_ascii_lowercase());
    let is_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    if !begins || scheme.len() < 2 || !scheme.bytes().all(is_name) {
        return Err("a redirect URI has no scheme, or one in capitals");
    }
    let is_reserved = |begin: &str| scheme.starts_with(begin);
    if RESERVED.contains(&scheme) || RESERVED_BEGINS.into_iter().any(is_reserved) {
        return Err("a redirect URI has a scheme that is nobody's own");
    }
    if rest.trim_matches('/').is_empty() {
        return Err("a redirect URI has nothing behind its scheme");
    }
    // A browser that cannot parse it follows no redirect to it.
    Url::parse(text)
        .map(drop)
        .map_err(|_| "a redirect URI is no URL")
}

/// What schemes begin with that belong to systems: Windows handles `ms-` itself, and several of those run programs;
/// browsers and stores open any site behind the others.
const RESERVED_BEGINS: [&str; 4] = ["googlechrome", "itms", "microsoft-", "ms-"];

/// Schemes that browsers and systems handle themselves, or that open whatever is named behind them.
const RESERVED: [&str; 73] = [
    "about",
    "acap",
    "afp",
    "android-app",
    "app-prefs",
    "app-settings",
    "applescript",
    "blob",
    "callto",
    "chrome",
    "chrome-extension",
    "cid",
    "content",
    "data",
    "dav",
    "dns",
    "edge",
    "facetime",
    "facetime-audio",
    "file",
    "filesystem",
    "ftp",
    "ftps",
    "geo",
    "git",
    "gopher",
    "hcp",
    "help",
    "imap",
    "intent",
    "its",
    "jar",
    "javascript",
    "ldap",
    "mailto",
    "market",
    "mhtml",
    "mk",
    "mms",
    "moz-extension",
    "news",
    "nfs",
    "nntp",
    "prefs",
    "rdp",
    "res",
    "resource",
    "rlogin",
    "search",
    "search-ms",
    "sftp",
    "shell",
    "shortcuts",
    "sip",
    "sips",
    "smb",
    "sms",
    "snews",
    "ssh",
    "steam",
    "tel",
    "telnet",
    "urn",
    "vbscript",
    "view-source",
    "vnc",
    "webcal",
    "ws",
    "wss",
    "x-apple.systempreferences",
    "x-help-script",
    "x-man-page",
    "zoommtg",
];

/// Maximum bytes of a redirect URI.
const MAX_LENGTH: usize = 2048;

#[cfg(test)]
mod tests {
    use super::super::redirect::*;

    #[test]
    fn redirect_uris_that_clients_have() {
        for text in [
            "https://claude.ai/api/mcp/auth_callback",
            "https://chatgpt.com/connector_platform_oauth_redirect",
            "https://app.test",
            "https://app.test:8443/cb?x=1&y=%20",
            "https://localhost/cb",
            "https://APP.test/cb",
            "https://app.test:/cb",
            "https://192.0.2.1:8443/cb",
            "https://xn--pp-yia.my_app.test/cb?a=,;'",
            "https://[2001:db8::1]/cb",
            "http://127.0.0.1",
            "http://127.0.0.1/",
            "http://127.0.0.1:33418/",
            "http://localhost:6274/oauth/callback",
            "http://[::1]:1/cb",
            "http://localhost?x",
            "cursor://anysphere.cursor-retrieval/oauth/user-mcp/callback",
            "vscode://vscode.github-authentication/did-authenticate",
            "vscode-insiders://x",
            "com.example.app:/callback",
            "com.example.app:callback",
            "zed://oauth",
        ] {
            assert_eq!(check_redirect_uri(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn redirect_uris_that_nobody_may_have() {
        let long = format!("https://app.test/{}", "a".repeat(2048));
        for text in BAD.into_iter().chain([long.as_str()]) {
            assert!(check_redirect_uri(text).is_err(), "{text}");
        }
    }

    const BAD: [&str; 106] = [
        "",
        "app.test/cb",
        "/cb",
        "//app.test/cb",
        "https:",
        "https:app.test",
        "https:/app.test/cb",
        "https:///app.test/cb",
        "https://",
        "https://?x",
        "https://:80/cb",
        "https://app.test/cb#",
        "https://app.test/cb#x",
        "https://*.app.test/cb",
        "https://app.test/*",
        "https://user@app.test/cb",
        "https://user:pw@app.test/cb",
        "https://app.test\\@evil.test/cb",
        "https://app.test\\cb",
        "https://app.test/c b",
        " https://app.test/cb",
        "https://app.test/cb\n",
        "https://app.test/cb\r\nSet-Cookie: a=b",
        "https://app.test/\u{0}",
        "https://äpp.test/cb",
        "https://app.test/ü",
        "https://app.test/%",
        "https://app.test/%2",
        "https://app.test/%zz",
        "https://app.test:99999/cb",
        "https://%61pp.test/cb",
        "https://app%2Etest/cb",
        "https://0x7f.1/cb",
        "https://127.1/cb",
        "https://2130706433/cb",
        "https://127.0.0.1./cb",
        "https://[0:0::1]/cb",
        "https://app.test,evil.test/cb",
        "https://app.test;script-src/cb",
        "https://'none'/cb",
        "https://app.test,/cb",
        "https://a!b.test/cb",
        "https://a$b.test/cb",
        "https://a&b.test/cb",
        "https://a(b).test/cb",
        "https://a+b.test/cb",
        "https://a=b.test/cb",
        "https://a~b.test:8443/cb",
        "HTTPS://app.test/cb",
        "http://app.test/cb",
        "http://127.0.0.2/cb",
        "http://127.1/cb",
        "http://2130706433/cb",
        "http://0x7f.1/cb",
        "http://0.0.0.0/cb",
        "http://[::]/cb",
        "http://[::ffff:127.0.0.1]/cb",
        "http://LOCALHOST/cb",
        "http://localhost./cb",
        "http://localhost.evil.test/cb",
        "http://127.0.0.1.evil.test/cb",
        "http://127.0.0.1@evil.test/cb",
        "http://localhost:80@evil.test/cb",
        "http://localhost:/cb",
        "http://localhost:0/cb",
        "http://localhost:080/cb",
        "http://localhost:+80/cb",
        "http://localhost:65536/cb",
        "http://localhost:80:90/cb",
        "http:localhost/cb",
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        "java\tscript:alert(1)",
        "vbscript:x",
        "data:text/html,x",
        "file:///etc/passwd",
        "blob:https://app.test/x",
        "ftp://app.test/",
        "ws://localhost/",
        "wss://app.test/",
        "mailto:a@b.test",
        "tel:1",
        "urn:ietf:wg:oauth:2.0:oob",
        "view-source:https://app.test/",
        "ms-msdt:/id%20PCWDiagnostic",
        "search-ms:query=x",
        "microsoft-edge:https://app.test/",
        "microsoft-edge-holographic:https://app.test/",
        "googlechrome://navigate?url=app.test",
        "googlechromes://app.test/",
        "itms-services://?action=download-manifest",
        "itms-apps://app.test/",
        "android-app://app.test/",
        "steam://openurl/https://app.test/",
        "zoommtg://app.test/join",
        "shell:startup",
        "x-apple.systempreferences:com.apple.preference",
        "intent://x",
        "x://y",
        "1x://y",
        "cursor:",
        "cursor://",
        "Cursor://x",
        "cursor://user@x/y",
        "cursor://[::]:8:9/",
        "cursor://x:99999/",
    ];
}
