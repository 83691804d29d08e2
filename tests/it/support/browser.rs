//! A browser for log-ins: cookies by origin, forms, and redirects that the test follows itself.

use std::collections::BTreeMap;

use reqwest::{Response, StatusCode, header::HeaderMap};
use url::Url;

use crate::support::harness::{client, within};

/// A browser with its own cookies.
pub(crate) struct Browser {
    http: reqwest::Client,
    /// The cookies by origin and name.
    cookies: BTreeMap<(String, String), String>,
}

/// A page, or a redirect.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) url: Url,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Browser {
    pub(crate) fn new() -> Self {
        Self::with(client())
    }

    /// A browser that uses `http`.
    pub(crate) fn with(http: reqwest::Client) -> Self {
        Self {
            http,
            cookies: BTreeMap::new(),
        }
    }

    /// GET, as from a link on another site.
    pub(crate) async fn open(&mut self, url: &str) -> Shown {
        let request = self.http.get(url).header("Sec-Fetch-Site", "cross-site");
        self.send(url, request).await
    }

    /// Sends the first form of a page that has these fields, as a browser does for a page with
    /// `Referrer-Policy: no-referrer`.
    pub(crate) async fn submit(&mut self, page: &Shown, fields: &[(&str, &str)]) -> Shown {
        let (action, form) = page.form(fields[0].0);
        let mut all = vec![("form", form.as_str())];
        all.extend_from_slice(fields);
        self.post(page.url.join(&action).unwrap().as_str(), &all)
            .await
    }

    /// Sends the consent form of a page with fields that it does not have.
    pub(crate) async fn submit_anyway(&mut self, page: &Shown, fields: &[(&str, &str)]) -> Shown {
        let (action, form) = page.form("decision");
        let mut all = vec![("form", form.as_str())];
        all.extend_from_slice(fields);
        self.post(page.url.join(&action).unwrap().as_str(), &all)
            .await
    }

    /// Posts these fields as a form.
    pub(crate) async fn post(&mut self, url: &str, fields: &[(&str, &str)]) -> Shown {
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let request = self.http.post(url).body(body);
        let request = request
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Origin", "null")
            .header("Sec-Fetch-Site", "same-origin");
        self.send(url, request).await
    }

    /// Follows redirects as long as they stay with `origin`.
    pub(crate) async fn follow(&mut self, mut shown: Shown, origin: &str) -> Shown {
        for _ in 0..10 {
            match shown.location() {
                Some(to) if to.as_str().starts_with(origin) => shown = self.open(to.as_str()).await,
                _ => return shown,
            }
        }
        panic!("a circle at {}", shown.url);
    }

    /// The value of the cookie whose name begins with `prefix`.
    pub(crate) fn cookie(&self, prefix: &str) -> Option<String> {
        let mut cookies = self.cookies.iter();
        let found = cookies.find(|((_, name), _)| name.starts_with(prefix));
        found.map(|(_, value)| value.clone())
    }

    /// All cookies, as a header of a request has them.
    pub(crate) fn pair(&self) -> String {
        let pairs = self.cookies.iter();
        let pairs = pairs.map(|((_, name), value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join("; ")
    }

    /// Copies all cookies of another browser.
    pub(crate) fn steal(&mut self, other: &Self) {
        self.cookies = other.cookies.clone();
    }

    /// Has the cookies of one origin for another, as one gateway behind two addresses.
    pub(crate) fn know_as(&mut self, origin: &str, other: &str) {
        let own = self.cookies.iter().filter(|((of, _), _)| of == origin);
        let same: Vec<_> = own
            .map(|((_, name), value)| ((other.to_owned(), name.clone()), value.clone()))
            .collect();
        self.cookies.extend(same);
    }

    async fn send(&mut self, url: &str, request: reqwest::RequestBuilder) -> Shown {
        let url = Url::parse(url).unwrap();
        let origin = url.origin().ascii_serialization();
        let own = self.cookies.iter().filter(|((of, _), _)| *of == origin);
        let pairs: Vec<String> = own
            .map(|((_, name), value)| format!("{name}={value}"))
            .collect();
        let request = if pairs.is_empty() {
            request
        } else {
            request.header("Cookie", pairs.join("; "))
        };
        let response = within("a page", request.send()).await.unwrap();
        self.keep(&origin, &response);
        let (status, headers) = (response.status(), response.headers().clone());
        let text = within("a page", response.text()).await.unwrap();
        Shown {
            url,
            status,
            headers,
            text,
        }
    }

    fn keep(&mut self, origin: &str, response: &Response) {
        for line in response.headers().get_all("set-cookie") {
            let pair = line.to_str().unwrap().split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            let key = (origin.to_owned(), name.to_owned());
            self.cookies.insert(key, value.to_owned());
        }
    }
}

impl Shown {
    /// The target of a redirect.
    pub(crate) fn location(&self) -> Option<Url> {
        let to = self.headers.get("location")?.to_str().unwrap();
        Some(self.url.join(to).unwrap())
    }

    /// The parameters of the URL that a redirect leads to.
    pub(crate) fn answer(&self) -> BTreeMap<String, String> {
        let to = self.location();
        let to = to.unwrap_or_else(|| panic!("no redirect: {} {}", self.status, self.text));
        to.query_pairs().into_owned().collect()
    }

    /// The action of the form with a field of this name, and its sealed state.
    pub(crate) fn form(&self, field: &str) -> (String, String) {
        let forms = self.text.split("<form").skip(1);
        let mut fitting = forms.filter(|form| form.contains(&format!("name=\"{field}\"")));
        let form = fitting.next();
        let form = form.unwrap_or_else(|| panic!("no {field}: {} {}", self.status, self.text));
        let value = |before: &str| {
            let (_, rest) = form.split_once(before).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        (value("action=\""), value("name=\"form\" value=\""))
    }

    /// The value of a header field.
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    /// Asserts the headers of every page of the gateway, and that it loads nothing from elsewhere.
    pub(crate) fn assert_guarded(&self) {
        let policy = self.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "style-src 'sha256-",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{part}: {policy}");
        }
        for (name, value) in [
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("pragma", "no-cache"),
            ("x-content-type-options", "nosniff"),
            ("content-type", "text/html; charset=utf-8"),
        ] {
            assert_eq!(self.header(name), value, "{name}");
        }
        for foreign in ["src=", "href=", "@import", "url(", "<script"] {
            assert!(!self.text.contains(foreign), "{foreign}: {}", self.text);
        }
    }
}
