//! HTML pages and their header fields.
//!
//! Pages use no scripts and load no resources. Text from third parties, above all names, is shown in a
//! form that cannot imitate the page. Not here: the decisions behind the pages.

use std::sync::OnceLock;

use askama::Template;
use axum::{body::Body, response::Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, PRAGMA, REFERRER_POLICY, RETRY_AFTER,
        X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};

use crate::base::{Secret, sha256};

/// The log-in page.
#[derive(Template)]
#[template(path = "login.html")]
pub(super) struct LoginPage<'p> {
    pub(crate) tenant: &'p str,
    /// The client that wants to use a server; none before the account page.
    pub(crate) client: Option<String>,
    pub(crate) server: &'p str,
    /// The path that its forms post to.
    pub(super) action: &'p str,
    /// The sealed flow.
    pub(crate) form: &'p str,
    /// The error of the last attempt.
    pub(crate) wrong: Option<&'p str>,
    /// The user name of the last attempt.
    pub(super) username: &'p str,
    pub(super) has_passwords: bool,
    /// Names and titles of identity providers.
    pub(super) providers: Vec<(&'p str, String)>,
    pub(super) style: &'static str,
}

/// The consent page.
#[derive(Template)]
#[template(path = "consent.html")]
pub(super) struct ConsentPage<'p> {
    pub(crate) tenant: &'p str,
    pub(crate) client: String,
    /// The host of the client's metadata document.
    pub(super) document_host: Option<&'p str>,
    /// The day of that document, if its site does not answer.
    pub(super) document_date: Option<&'p str>,
    /// The host of the redirect URI.
    pub(super) redirect_host: &'p str,
    pub(crate) server: &'p str,
    pub(crate) resource: &'p str,
    pub(crate) scopes: Vec<&'p str>,
    /// Requested scopes that the person may not have.
    pub(super) withheld: Vec<&'p str>,
    /// Set if only the client itself vouches for its name.
    pub(super) is_unverified: bool,
    /// Set if the redirect URI is a loopback one.
    pub(super) is_local: bool,
    pub(super) action: &'p str,
    pub(crate) form: &'p str,
    /// The person who is logged in.
    pub(super) person: Option<String>,
    /// The provider at which the log-in continues.
    pub(crate) provider: Option<String>,
    /// The upstreams at which the server acts for the person.
    pub(super) upstreams: Vec<ShownUpstream>,
    /// The reason why an account was not connected just now.
    pub(super) failed: Option<&'p str>,
    pub(super) style: &'static str,
}

/// The account page.
#[derive(Template)]
#[template(path = "account.html")]
pub(super) struct AccountPage<'p> {
    pub(crate) tenant: &'p str,
    pub(super) person: String,
    /// The change that was just made.
    pub(super) done: Option<&'static str>,
    pub(super) action: &'p str,
    pub(crate) form: &'p str,
    pub(super) servers: Vec<ShownServer>,
    pub(super) upstreams: Vec<ShownUpstream>,
    /// A value of an API key, which is shown once.
    pub(super) new_key: Option<NewKey>,
    /// The API keys of the person; none where the tenant has none.
    pub(super) keys: Option<ShownKeys>,
    pub(super) grants: Vec<ShownGrant>,
    pub(super) logins: Vec<ShownLogin>,
    /// The most bytes of a secret.
    pub(super) secret_max: usize,
    pub(super) style: &'static str,
}

/// A server that needs secrets of the person.
pub(super) struct ShownServer {
    pub(super) name: String,
    pub(super) slots: Vec<ShownSlot>,
}

/// An upstream whose access token servers of the person need.
pub(super) struct ShownUpstream {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) servers: Vec<String>,
    pub(super) scopes: Vec<String>,
    /// The time of the last token, if it is connected.
    pub(super) connected: Option<String>,
}

/// A secret that a server needs, without its value.
pub(super) struct ShownSlot {
    /// Unique on the page.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) title: String,
    /// An https URL.
    pub(super) help: Option<String>,
    pub(super) is_file: bool,
    /// The time of its last change, if it is set.
    pub(super) set: Option<String>,
}

/// A new value of an API key.
pub(super) struct NewKey {
    pub(super) label: String,
    /// The value.
    pub(super) text: Secret,
    /// The end of the value before, if there was one.
    pub(super) overlap: Option<String>,
}

/// The API keys of a person.
pub(super) struct ShownKeys {
    pub(super) keys: Vec<ShownKey>,
    /// What a new key may be; none if there can be none.
    pub(super) choices: Option<KeyChoices>,
    /// The most keys of a person.
    pub(super) max: u32,
}

/// An API key of a person, without its value.
pub(super) struct ShownKey {
    pub(super) name: String,
    pub(super) label: String,
    /// Empty for all.
    pub(super) servers: Vec<String>,
    pub(super) scopes: Vec<String>,
    pub(super) since: String,
    /// The hour of its last use.
    pub(super) used: Option<String>,
    pub(super) ends: String,
    pub(super) has_ended: bool,
    /// The end of the value before the last rotation, as long as that is good.
    pub(super) overlap: Option<String>,
}

/// What a new API key may be.
pub(super) struct KeyChoices {
    pub(super) servers: Vec<String>,
    /// The number of servers that are not listed.
    pub(super) more_servers: usize,
    pub(super) scopes: Vec<String>,
    /// Seconds, and what they are called.
    pub(super) lives: Vec<(u64, String)>,
    /// The most characters of a label.
    pub(super) label_max: usize,
}

/// An application with access.
pub(super) struct ShownGrant {
    pub(super) id: String,
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) scopes: Vec<String>,
    pub(super) since: String,
    /// The time of its last token.
    pub(super) used: String,
}

/// A browser in which the person is logged in.
pub(super) struct ShownLogin {
    pub(super) id: String,
    /// The method.
    pub(super) by: String,
    pub(super) since: String,
    /// The browser that shows the page.
    pub(super) is_here: bool,
}

/// The error page.
#[derive(Template)]
#[template(path = "error.html")]
struct ErrorTemplate<'p> {
    tenant: &'p str,
    title: &'p str,
    what: &'p str,
    remedy: &'p str,
    style: &'static str,
}

/// An error for the person at the browser, without internal details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorPage {
    /// The status code.
    pub(crate) status: StatusCode,
    /// A heading.
    pub(crate) title: &'static str,
    /// A sentence that describes the error.
    pub(crate) what: String,
    /// Advice on what to do about it.
    pub(super) remedy: &'static str,
    /// Delay before a retry, in seconds.
    pub(crate) retry: Option<u64>,
}

impl ErrorPage {
    /// Makes the page for a request that cannot be answered at its client.
    pub(crate) fn bad(title: &'static str, what: impl Into<String>, remedy: &'static str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            title,
            what: what.into(),
            remedy,
            retry: None,
        }
    }

    /// Makes the page for an unavailable dependency.
    pub(crate) fn away(what: impl Into<String>) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            title: "Not available right now",
            what: what.into(),
            remedy: "Wait a moment and try again from your application. If this goes on, the \
                     operators of this gateway can find the reason in its log.",
            retry: Some(5),
        }
    }

    /// Renders the page.
    pub(crate) fn page(&self, tenant: &str) -> Response {
        let page = ErrorTemplate {
            tenant,
            title: self.title,
            what: &self.what,
            remedy: self.remedy,
            style: STYLE,
        };
        let mut response = html(self.status, &page, FormTarget::Nowhere);
        if let Some(retry) = self.retry {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(retry));
        }
        response
    }
}

/// The destinations of a page's forms, redirects included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormTarget {
    /// The page has no form.
    Nowhere,
    /// The gateway.
    Own,
    /// The gateway, then a client, an identity provider or an upstream.
    Onward,
}

impl FormTarget {
    /// Returns the directive `form-action`.
    const fn directive(self) -> &'static str {
        match self {
            Self::Nowhere => "; form-action 'none'",
            Self::Own => "; form-action 'self'",
            // None, since Chromium applies it to every redirect behind the form (w3c/webappsec-csp, issue 8), and
            // cancels a redirect that it does not name. Those behind the first one are unknown: the callback of a
            // client redirects on to the scheme of its application (https://claude.ai to `claude:`), a provider to
            // another log-in behind it. The page is safe without it: all text of third parties is escaped, each form
            // posts to a path of the gateway, and the redirect behind it is a 303, which takes no field along.
            Self::Onward => "",
        }
    }
}

/// Renders a page, with the header fields of all pages.
pub(super) fn html(status: StatusCode, page: &impl Template, target: FormTarget) -> Response {
    // Rendering into a string cannot fail.
    let text = page.render().unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let policy = format!(
        "default-src 'none'; style-src '{}'; frame-ancestors 'none'; base-uri 'none'{}",
        style_hash(),
        target.directive()
    );
    let headers = response.headers_mut();
    // Constants and a hash in base64: all valid in a header.
    if let Ok(policy) = HeaderValue::try_from(policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    for (name, value) in FIELDS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Makes an uncacheable redirect.
pub(crate) fn redirect(status: StatusCode, to: &str) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    let Ok(to) = HeaderValue::try_from(to) else {
        // The target was parsed or encoded before.
        tracing::error!("a redirect that is no header");
        return ErrorPage::away("The answer could not be written.").page("");
    };
    headers.insert(http::header::LOCATION, to);
    for (name, value) in FIELDS.iter().filter(|(name, _)| *name != CONTENT_TYPE) {
        headers.insert(name, HeaderValue::from_static(value));
    }
    *response.status_mut() = status;
    response
}

fn style_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| {
        let hash = sha256(STYLE.as_bytes());
        format!("sha256-{}", STANDARD.encode(hash))
    })
}

/// Prepares third-party text for a page: one line of at most [`SHOWN`] characters, without invisible
/// characters and those that change the direction of others.
pub(super) fn shown(text: &str) -> String {
    let mut out = String::new();
    let (mut count, mut marks) = (0, 0);
    for letter in text.chars() {
        let letter = if letter.is_whitespace() { ' ' } else { letter };
        // Stacked marks would cover the lines above and below.
        marks = if is_mark(letter) { marks + 1 } else { 0 };
        if is_invisible(letter) || marks > MARKS || (letter == ' ' && ends_blank(&out)) {
            continue;
        }
        if count == SHOWN {
            out.push('…');
            break;
        }
        out.push(letter);
        count += 1;
    }
    out.truncate(out.trim_end().len());
    out
}

fn ends_blank(text: &str) -> bool {
    text.is_empty() || text.ends_with(' ')
}

fn is_mark(letter: char) -> bool {
    matches!(letter, '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{1ab0}'..='\u{1aff}'
        | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

/// Control and format characters (including those that change direction), fillers, variation
/// selectors, tags, private use and noncharacters.
fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{70f}' | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffc}' | '\u{fffe}'..='\u{ffff}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{10ffff}')
}

/// Maximum characters of a shown name.
const SHOWN: usize = 60;
/// Maximum marks on one letter; no language needs more.
const MARKS: usize = 3;
/// The style of all pages; the policy contains its hash.
pub(super) const STYLE: &str = include_str!("../templates/style.css");
const FIELDS: [(HeaderName, &str); 7] = [
    (CONTENT_TYPE, "text/html; charset=utf-8"),
    (CACHE_CONTROL, "no-store"),
    (PRAGMA, "no-cache"),
    (REFERRER_POLICY, "no-referrer"),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // No opener policy: it would cut off a window from the client that opened it, and the response
    // could not reach the client. The opener can still navigate the window elsewhere, but the address
    // bar shows it.
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_harmlessly() {
        for (text, wanted) in [
            ("Claude", "Claude"),
            ("  a \n\t b  ", "a b"),
            ("evil\u{202e}gpj.exe", "evilgpj.exe"),
            ("a\u{200b}\u{feff}b\u{e0041}\u{2066}", "ab"),
            ("\0\u{7}\u{1b}[31mred", "[31mred"),
            ("Zoë 名前 نام", "Zoë 名前 نام"),
            ("", ""),
            (
                "a\u{301}\u{301}\u{301}\u{301}\u{301}b",
                "a\u{301}\u{301}\u{301}b",
            ),
        ] {
            assert_eq!(shown(text), wanted, "{text:?}");
        }
        let long = shown(&"x".repeat(1000));
        assert_eq!(long.chars().count(), SHOWN + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn third_party_markup_is_escaped() {
        for text in hostile_pages() {
            assert!(
                !text.contains("<script")
                    && !text.contains("\" onload")
                    && !text.contains("<form x"),
                "{text}"
            );
            assert!(
                text.contains("&#60;script&#62;") || text.contains("&lt;script&gt;"),
                "{text}"
            );
        }
    }

    /// Pages that lead to clients have no `form-action`.
    #[test]
    fn forms_post_to_a_path_of_the_gateway_alone() {
        for text in hostile_pages() {
            let forms: Vec<_> = text.split("<form").skip(1).collect();
            assert!(!forms.is_empty(), "{text}");
            for form in forms {
                let begin = " method=\"post\" action=\"/t/a/oauth/x\">";
                assert!(form.starts_with(begin), "{form}");
            }
            for leading in ["<a ", "<base", "<meta http-equiv", " formaction", " form="] {
                assert!(!text.contains(leading), "{leading}: {text}");
            }
        }
    }

    /// The pages that lead to a client, with markup in each text that is not the gateway's.
    fn hostile_pages() -> [String; 2] {
        let hostile = "</h1><script>alert(1)</script>\" onload='x'&amp;<form x action=//evil.test>";
        let action = "/t/a/oauth/x";
        let consent = ConsentPage {
            tenant: "a",
            client: hostile.to_owned(),
            document_host: Some(hostile),
            document_date: Some(hostile),
            redirect_host: hostile,
            server: "x",
            resource: hostile,
            withheld: vec![hostile],
            scopes: vec![hostile],
            is_unverified: true,
            is_local: true,
            action,
            form: hostile,
            person: Some(hostile.to_owned()),
            provider: Some(hostile.to_owned()),
            upstreams: vec![ShownUpstream {
                name: hostile.to_owned(),
                title: hostile.to_owned(),
                servers: Vec::new(),
                scopes: Vec::new(),
                connected: None,
            }],
            failed: Some(hostile),
            style: STYLE,
        };
        let login = LoginPage {
            tenant: "a",
            client: Some(hostile.to_owned()),
            server: hostile,
            action,
            form: hostile,
            wrong: Some(hostile),
            username: hostile,
            has_passwords: true,
            providers: vec![(hostile, hostile.to_owned())],
            style: STYLE,
        };
        [consent.render().unwrap(), login.render().unwrap()]
    }

    #[test]
    fn form_action_is_left_out_only_where_a_form_leads_on() {
        for (target, wanted) in [
            (FormTarget::Nowhere, Some("'none'")),
            (FormTarget::Own, Some("'self'")),
            (FormTarget::Onward, None),
        ] {
            let page = ErrorTemplate {
                tenant: "a",
                title: "A",
                what: "b",
                remedy: "c",
                style: STYLE,
            };
            let page = html(StatusCode::OK, &page, target);
            let policy = page.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            let style = format!("style-src '{}'", style_hash());
            let [loads, frames, base] =
                ["default-src", "frame-ancestors", "base-uri"].map(|name| format!("{name} 'none'"));
            let strict = [loads, style, frames, base].join("; ");
            let rest = policy.strip_prefix(&*strict);
            let rest = rest.unwrap_or_else(|| panic!("{policy}"));
            let action = rest.strip_prefix("; form-action ");
            assert_eq!(action, wanted, "{target:?}: {policy}");
            assert!(action.is_some() || rest.is_empty(), "{policy}");
        }
    }

    #[test]
    fn the_policy_contains_the_hash_of_the_style() {
        let response = ErrorPage::bad("A", "b", "c").page("a");
        let policy = response.headers()[CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        assert!(policy.contains(style_hash()) && policy.contains("frame-ancestors 'none'"));
        let page = ErrorTemplate {
            tenant: "a",
            title: "A",
            what: "<b>",
            remedy: "c",
            style: STYLE,
        };
        let text = page.render().unwrap();
        let (_, rest) = text.split_once("<style>").unwrap();
        let (style, _) = rest.split_once("</style>").unwrap();
        assert_eq!(style, STYLE);
    }
}
