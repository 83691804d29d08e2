//! Opaque access tokens of another authorization server, which that server is asked about (RFC 7662).
//!
//! What it says is believed for a minute at most; while it does not answer, no such token is let in.
//! Not here: tokens that can be read (`external`).

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{
    HeaderValue, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use moka::future::Cache;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};
use url::form_urlencoded::byte_serialize;

use super::{
    denials::host_of,
    jose::members,
    jwt::{Claims, TokenError, introspected},
    verified_tokens::sized,
};
use crate::{
    base::{Outbound, OutboundError, budget::Turns},
    declare::{External, Introspection},
    endpoint::issuer_metadata_urls,
};

/// What an authorization server has said of tokens, by the SHA-256 of their text.
pub(super) struct Introspected {
    /// Claims of active tokens, or why a token is of no use, for the log.
    said: Cache<[u8; 32], Result<Arc<Claims>, &'static str>>,
    /// Tokens that were active when they were asked about last.
    active: Cache<[u8; 32], ()>,
    /// Requests about those.
    of_active: Requests,
    /// Requests about all other tokens, which anybody can make up.
    of_others: Requests,
}

/// The requests about some of the tokens.
struct Requests {
    /// Turns of requests under way, shared out to addresses.
    turns: Turns,
    state: StateLock,
}

#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]
type StateLock = std::sync::Mutex<State>;

#[derive(Default)]
struct State {
    /// The endpoint that the metadata name, and the time at which they were read.
    endpoint: Option<(Arc<str>, Instant)>,
    /// Consecutive failures that are of all tokens, and the time before which nothing is asked.
    failures: u32,
    again: Option<Instant>,
    /// The time of the last one.
    failed_at: Option<Instant>,
}

/// The reason why an authorization server has not said whether a token is active.
enum Unsaid {
    /// It is away, or refuses the gateway: no token can be asked about.
    OfAll(String),
    /// It has no answer for this token. Any caller can send such a token, so it must not be the end for others.
    OfToken(String),
}

impl Unsaid {
    fn of_all(why: impl Into<String>) -> Self {
        Self::OfAll(why.into())
    }

    fn of_token(why: impl Into<String>) -> Self {
        Self::OfToken(why.into())
    }

    /// Nothing but an answer of the server is about one token.
    fn of_request(error: OutboundError) -> Self {
        match error {
            OutboundError::Response(unexpected) => Self::of_token(unexpected.to_string()),
            error => Self::of_all(error.to_string()),
        }
    }
}

/// Reports whether a token cannot be read here: it is no JWT (RFC 7519, section 3).
pub(super) fn is_opaque(text: &str) -> bool {
    text.bytes().filter(|byte| *byte == b'.').count() != 2
}

impl Introspected {
    pub(super) fn new() -> Self {
        let size = |claims: &Result<Arc<Claims>, &'static str>| {
            let known = claims.as_ref();
            known.map_or(0, |known| known.size())
        };
        let said = Cache::builder()
            .max_capacity(TOKENS)
            .weigher(move |_, claims| sized(size(claims)))
            .time_to_live(BELIEVED)
            .build();
        let active = Cache::builder()
            .max_capacity(ACTIVE)
            .time_to_live(REMEMBERED)
            .build();
        Self {
            said,
            active,
            of_active: Requests::new(),
            of_others: Requests::new(),
        }
    }

    /// The claims of an active token, sent from an address. Requests about the same token wait for one answer.
    pub(super) async fn claims(
        &self,
        outbound: &Outbound,
        of: (&External, &Introspection),
        (hash, text, from): ([u8; 32], &str, Option<IpAddr>),
    ) -> Result<Arc<Claims>, TokenError> {
        let asked = async {
            if text.len() > LONGEST {
                return Ok(Err(INACTIVE));
            }
            let requests = if self.active.contains_key(&hash) {
                &self.of_active
            } else {
                &self.of_others
            };
            let claims = requests.ask(outbound, of, (text, from)).await?;
            match &claims {
                Ok(_) => self.active.insert(hash, ()).await,
                Err(_) => self.active.invalidate(&hash).await,
            }
            Ok(claims)
        };
        let said = self.said.try_get_with(hash, asked).await;
        let said = said.map_err(|wait: Arc<Duration>| TokenError::Unavailable(*wait))?;
        said.map_err(TokenError::Invalid)
    }
}

impl Requests {
    fn new() -> Self {
        Self {
            turns: Turns::new(TURNS),
            state: StateLock::default(),
        }
    }

    async fn ask(
        &self,
        outbound: &Outbound,
        (settings, by): (&External, &Introspection),
        (text, from): (&str, Option<IpAddr>),
    ) -> Result<Result<Arc<Claims>, &'static str>, Duration> {
        self.begin()?;
        let host = from.map_or(String::new(), |from| host_of(from).to_string());
        let Ok(_turn) = timeout(DEADLINE, self.turns.take(&host)).await else {
            return Err(BACKOFF);
        };
        // Another request may have failed while this one waited for its turn.
        let begun = self.begin()?;
        let answered = async {
            let url = self.endpoint(outbound, settings, by).await;
            let url = url.map_err(Unsaid::of_all)?;
            let request = request(&url, by, text);
            let request =
                request.ok_or_else(|| Unsaid::of_all("credentials that cannot be sent"))?;
            let answer = outbound.exchange(request, ANSWER_BYTES).await;
            said(&answer.map_err(Unsaid::of_request)?)
        };
        let answered = timeout(DEADLINE, answered).await;
        match answered.unwrap_or_else(|_| Err(Unsaid::of_all("no answer in time"))) {
            Ok(said) => {
                self.with(|state| (state.failures, state.again) = (0, None));
                let said = said.ok_or(INACTIVE);
                let claims = said.and_then(|said| introspected(&said, settings.into()));
                Ok(claims.map(Arc::new))
            }
            Err(Unsaid::OfToken(why)) => {
                tracing::debug!(why, "an authorization server has no answer for a token");
                Err(BACKOFF)
            }
            Err(Unsaid::OfAll(why)) => {
                let issuer = settings.issuer.as_str();
                tracing::warn!(
                    issuer,
                    why,
                    "an authorization server says nothing of tokens"
                );
                Err(self.fail(begun))
            }
        }
    }

    /// The endpoint: the declared one, or that of the metadata.
    async fn endpoint(
        &self,
        outbound: &Outbound,
        settings: &External,
        by: &Introspection,
    ) -> Result<Arc<str>, String> {
        if let Some(url) = &by.url {
            return Ok(url.as_str().into());
        }
        let known = self.with(|state| state.endpoint.clone());
        if let Some((url, read)) = known
            && read.elapsed() < METADATA_FRESH
        {
            return Ok(url);
        }
        let mut last = "no metadata".to_owned();
        for url in issuer_metadata_urls(&settings.issuer) {
            let found = outbound.json(&url, METADATA_BYTES).await;
            let found = found.map_err(|error| error.to_string());
            match found.and_then(|document| endpoint_in(&document, &settings.issuer)) {
                Ok(url) => {
                    let url: Arc<str> = url.into();
                    let read = (Arc::clone(&url), Instant::now());
                    self.with(|state| state.endpoint = Some(read));
                    return Ok(url);
                }
                Err(error) => last = format!("metadata: {error}"),
            }
        }
        Err(last)
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The begin of a request, or the time until one may be made after a failure.
    fn begin(&self) -> Result<Instant, Duration> {
        let (again, now) = (self.with(|state| state.again), Instant::now());
        match again {
            Some(again) if again > now => Err((again - now).max(BACKOFF)),
            _ => Ok(now),
        }
    }

    /// Notes the failure of a request that was begun at a time; the time until the next one. Those that were under way
    /// together fail together, and that is one failure.
    fn fail(&self, begun: Instant) -> Duration {
        let now = Instant::now();
        self.with(|state| {
            if state.failed_at.is_some_and(|failed_at| begun <= failed_at) {
                let again = state.again.unwrap_or(now);
                return again.saturating_duration_since(now).max(BACKOFF);
            }
            let wait = (BACKOFF * 2_u32.pow(state.failures.min(5))).min(BACKOFF_MAX);
            state.failures += 1;
            (state.failed_at, state.again) = (Some(now), Some(now + wait));
            // The metadata may have changed.
            state.endpoint = None;
            wait
        })
    }
}

/// What an answer says of an active token; none of another one.
fn said(answer: &http::Response<Vec<u8>>) -> Result<Option<Map<String, Value>>, Unsaid> {
    match answer.status() {
        StatusCode::OK => {}
        // The gateway's own credentials are no good there (RFC 7662, section 2.3), or it asks too much.
        status @ (StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::TOO_MANY_REQUESTS) => {
            return Err(Unsaid::of_all(format!("answered {}", status.as_u16())));
        }
        status => return Err(Unsaid::of_token(format!("answered {}", status.as_u16()))),
    }
    let said = members(answer.body());
    let said = said.ok_or(Unsaid::of_token("answered no object, or a name twice"))?;
    match said.get("active") {
        Some(Value::Bool(true)) => Ok(Some(said)),
        Some(Value::Bool(false)) => Ok(None),
        _ => Err(Unsaid::of_token("answered without active")),
    }
}

/// The request about a token (RFC 7662, section 2.1), with the credentials of the gateway (RFC 6749, section 2.3.1).
fn request(url: &str, by: &Introspection, text: &str) -> Option<http::Request<Vec<u8>>> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let pair = format!(
        "{}:{}",
        encoded(&by.client_id),
        encoded(by.client_secret.expose())
    );
    let mut basic = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair))).ok()?;
    basic.set_sensitive(true);
    let form = format!("token={}&token_type_hint=access_token", encoded(text));
    http::Request::post(url)
        .header(AUTHORIZATION, basic)
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(form.into_bytes())
        .ok()
}

/// The endpoint in metadata, whose issuer must match exactly (RFC 8414, section 3.3).
fn endpoint_in(document: &[u8], issuer: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Metadata {
        issuer: String,
        introspection_endpoint: String,
    }
    let metadata: Metadata =
        serde_json::from_slice(document).map_err(|_| "no issuer or no introspection_endpoint")?;
    if metadata.issuer == issuer {
        Ok(metadata.introspection_endpoint)
    } else {
        Err("of another issuer".to_owned())
    }
}

/// Why a token is of no use of which the server says no more.
const INACTIVE: &str = "no active token";
/// Maximum size of what is remembered, in bytes: the answers about 7,500 of the usual tokens.
const TOKENS: u64 = 10 << 20;
/// The time for which an answer is believed.
const BELIEVED: Duration = Duration::from_secs(60);
/// Most tokens that are remembered as active, and how long: about 200 bytes each.
const ACTIVE: u64 = 20_000;
const REMEMBERED: Duration = Duration::from_hours(12);
/// Most requests under way, about tokens that were active and about others each: tokens that nobody issued must not
/// become a flood there, nor keep those out that somebody has.
const TURNS: usize = 16;
/// The longest token that is asked about.
const LONGEST: usize = 4096;
/// The deadline of a turn, and of an answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// The delay after the first failure, doubled by each further one.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The age from which metadata are read again.
const METADATA_FRESH: Duration = Duration::from_secs(3600);
const METADATA_BYTES: usize = 64 << 10;
const ANSWER_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        sync::{mpsc, watch},
        task::JoinSet,
    };

    use super::super::introspection::*;
    use crate::{
        base::{Secret, Unexpected, sha256},
        declare::GroupsClaim,
    };

    /// An issuer, with the tokens that it is asked about.
    struct Issuer {
        introspected: Introspected,
        outbound: Outbound,
        settings: External,
        by: Introspection,
        heard: mpsc::Receiver<String>,
        /// Answers what was not answered yet.
        answer: watch::Sender<bool>,
        _tasks: JoinSet<()>,
    }

    async fn issuer() -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/introspect", listener.local_addr().unwrap());
        let (asked, heard) = mpsc::channel(1000);
        let (release, released) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                open.spawn(answer(socket, asked.clone(), released.clone()));
            }
        });
        Issuer {
            introspected: Introspected::new(),
            outbound: Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]),
            settings: External {
                issuer: "https://i.test".to_owned(),
                algorithms: Vec::new(),
                audiences: Vec::new(),
                groups: GroupsClaim {
                    name: "groups".to_owned(),
                    map: None,
                },
                scopes_claim: None,
                scopes: Vec::new(),
                introspection: None,
            },
            by: Introspection {
                url: Some(url),
                client_id: "us".to_owned(),
                client_secret: Secret::new("s".to_owned()),
            },
            heard,
            answer: release,
            _tasks: tasks,
        }
    }

    /// Answers that tokens which begin with `good` are active, with `wide` in very many groups, and with `gone` not, and that
    /// it is asked too much about others; about those with `late` once they are released.
    async fn answer(
        mut socket: TcpStream,
        asked: mpsc::Sender<String>,
        mut released: watch::Receiver<bool>,
    ) {
        let (mut request, mut buffer) = (String::new(), [0; 4096]);
        loop {
            let body = request.split_once("\r\n\r\ntoken=");
            let token = body.and_then(|(_, rest)| rest.split_once("&token_type_hint=access_token"));
            let Some((token, _)) = token else {
                let count = socket.read(&mut buffer).await.unwrap_or(0);
                if count == 0 {
                    return;
                }
                request.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
                continue;
            };
            let token = token.to_owned();
            request.clear();
            asked.send(token.clone()).await.unwrap();
            let is_late = token.starts_with("late");
            if is_late && released.wait_for(|is_released| *is_released).await.is_err() {
                return;
            }
            let (status, body) = match &token[..4] {
                "good" => {
                    let said = json!({"active": true, "sub": "ada", "aud": "x"});
                    ("200 OK", said.to_string())
                }
                "wide" => {
                    let groups: Vec<String> = (0..=1000).map(|at| at.to_string()).collect();
                    let said = json!({"active": true, "sub": "ada", "aud": "x", "groups": groups});
                    ("200 OK", said.to_string())
                }
                "gone" => ("200 OK", r#"{"active":false}"#.to_owned()),
                _ => ("429 Too Many Requests", "{}".to_owned()),
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}"
            );
            let answer = format!("{head}\r\n\r\n{body}");
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    impl Issuer {
        async fn ask(&self, text: &str, from: &str) -> Result<(), TokenError> {
            let (of, from) = ((&self.settings, &self.by), from.parse().unwrap());
            let token = (sha256(text.as_bytes()), text, Some(from));
            let claims = self.introspected.claims(&self.outbound, of, token);
            claims.await.map(drop)
        }

        /// Ends the minute for which its word about a token is believed.
        async fn forget(&self, text: &str) {
            let said = &self.introspected.said;
            said.invalidate(&sha256(text.as_bytes())).await;
        }
    }

    /// New tokens of one address took all turns, so that nobody's token could be asked about.
    #[tokio::test]
    async fn a_flood_of_unknown_tokens_leaves_turns_to_others() {
        let mut issuer = issuer().await;
        let (_, unheard) = mpsc::channel(1);
        let mut heard = std::mem::replace(&mut issuer.heard, unheard);
        issuer.ask("good", "192.0.2.1").await.unwrap();
        let made_up: Vec<String> = (0..100).map(|number| format!("late{number}")).collect();
        let flood = made_up.iter().map(|text| issuer.ask(text, "192.0.2.1"));
        let others = async {
            for _ in 0..=(TURNS * 3 / 4) {
                heard.recv().await.unwrap();
            }
            issuer.forget("good").await;
            issuer.ask("good", "192.0.2.1").await.unwrap();
            issuer.ask("good, and new", "192.0.2.2").await.unwrap();
        };
        tokio::select! {
            _ = join_all(flood) => panic!("their time is over"),
            () = others => {}
        }
    }

    /// One moment without an answer was half a minute without any, because each request under way counted.
    #[tokio::test]
    async fn requests_that_fail_together_are_one_failure() {
        let mut issuer = issuer().await;
        let (_, unheard) = mpsc::channel(1);
        let mut heard = std::mem::replace(&mut issuer.heard, unheard);
        let tokens: Vec<String> = (0..2 * TURNS).map(|at| format!("late{at}")).collect();
        let all = join_all(tokens.iter().map(|text| issuer.ask(text, "192.0.2.1")));
        let released = async {
            for _ in 0..(TURNS * 3 / 4) {
                heard.recv().await.unwrap();
            }
            issuer.answer.send_replace(true);
        };
        let (said, ()) = tokio::join!(all, released);
        for one in said {
            let Err(TokenError::Unavailable(wait)) = one else {
                panic!("something was said");
            };
            assert_eq!(wait, BACKOFF);
        }
        assert!(heard.try_recv().is_err(), "those that waited ask nothing");
    }

    #[test]
    fn failures_one_after_the_other_make_the_wait_longer() {
        let requests = Requests::new();
        for s in [1, 2, 4, 8, 16, 30, 30] {
            let last = requests.with(|state| state.failed_at);
            let begun = last.unwrap_or_else(Instant::now) + Duration::from_millis(1);
            assert_eq!(requests.fail(begun), Duration::from_secs(s));
        }
    }

    #[tokio::test]
    async fn failures_of_unknown_tokens_are_none_for_known_ones() {
        let mut issuer = issuer().await;
        issuer.ask("good", "192.0.2.1").await.unwrap();
        for text in ["many", "more"] {
            let refused = issuer.ask(text, "192.0.2.1").await;
            assert!(matches!(refused, Err(TokenError::Unavailable(_))), "{text}");
        }
        issuer.forget("good").await;
        issuer.ask("good", "192.0.2.1").await.unwrap();
        for text in ["good", "many", "good"] {
            assert_eq!(issuer.heard.recv().await.unwrap(), text);
        }
    }

    /// The log had "no active token" of one in too many groups.
    #[tokio::test]
    async fn the_reason_why_an_active_token_is_of_no_use_is_kept() {
        let issuer = issuer().await;
        let many = "more than 1,000 groups of one person, or more than 32 KiB of them";
        for (text, why) in [("wide", many), ("wide", many), ("gone", INACTIVE)] {
            let refused = issuer.ask(text, "192.0.2.1").await;
            assert_eq!(refused, Err(TokenError::Invalid(why)), "{text}");
        }
    }

    #[test]
    fn a_token_of_three_parts_is_read_and_any_other_asked_about() {
        for (text, is) in [
            ("a.b.c", false),
            ("a", true),
            ("a.b", true),
            ("a.b.c.d.e", true),
        ] {
            assert_eq!(is_opaque(text), is, "{text}");
        }
    }

    #[test]
    fn an_answer_about_one_token_is_no_failure_for_others() {
        let of = |status: u16, body: &str| {
            let answer = http::Response::builder().status(status);
            match said(&answer.body(body.as_bytes().to_vec()).unwrap()) {
                Ok(said) => Ok(said.is_some()),
                Err(Unsaid::OfAll(_)) => Err("all"),
                Err(Unsaid::OfToken(_)) => Err("token"),
            }
        };
        for (status, body, expected) in [
            (200, r#"{"active":true}"#, Ok(true)),
            (200, r#"{"active":false}"#, Ok(false)),
            (200, r#"{"active":"true"}"#, Err("token")),
            (200, "{}", Err("token")),
            (200, "[]", Err("token")),
            (200, r#"{"active":false,"active":true}"#, Err("token")),
            (400, r#"{"error":"invalid_request"}"#, Err("token")),
            (401, r#"{"error":"invalid_client"}"#, Err("all")),
            (403, "{}", Err("all")),
            (429, "{}", Err("all")),
        ] {
            assert_eq!(of(status, body), expected, "{status} {body}");
        }
        let broken = OutboundError::Response(Unexpected::Foreign(500));
        assert!(matches!(Unsaid::of_request(broken), Unsaid::OfToken(_)));
        let away = OutboundError::Unreachable("refused".to_owned());
        assert!(matches!(Unsaid::of_request(away), Unsaid::OfAll(_)));
    }

    #[test]
    fn requests_carry_encoded_credentials_and_one_token() {
        let by = Introspection {
            url: None,
            client_id: "a b".to_owned(),
            client_secret: Secret::new("c:d".to_owned()),
        };
        let request = request("https://i.test/x", &by, "t&token=u").unwrap();
        let basic = format!("Basic {}", STANDARD.encode("a+b:c%3Ad"));
        assert_eq!(request.headers()[AUTHORIZATION], basic);
        let body = b"token=t%26token%3Du&token_type_hint=access_token";
        assert_eq!(request.body(), body);
    }

    #[test]
    fn the_endpoint_is_that_of_the_issuer() {
        let of = |text: &str| endpoint_in(text.as_bytes(), "https://i.test");
        let good = r#"{"issuer":"https://i.test","introspection_endpoint":"https://i.test/x"}"#;
        assert_eq!(of(good).unwrap(), "https://i.test/x");
        for bad in [
            r#"{"issuer":"https://i.test/","introspection_endpoint":"https://i.test/x"}"#,
            r#"{"issuer":"https://i.test"}"#,
            "[]",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
