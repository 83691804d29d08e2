//! Access tokens of other authorization servers, and the keys of issuers.
//!
//! Tokens do not influence requests: metadata comes from the issuer that the operator declared,
//! keys from the `jwks_uri` of that metadata (RFC 8414, section 2).

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, OnceLock, PoisonError},
    time::Duration,
};

use moka::future::Cache;
use serde::Deserialize;
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    introspection::{Introspected, is_opaque},
    jose::{Jws, KeyId, KeySet, Signature},
    jwt::{Claims, IssuedBy, Token, TokenError},
    principals::Principal,
    verified_tokens::VerifiedTokens,
};
use crate::{
    base::{Clock, LEEWAY_S, Outbound, sha256},
    declare::External,
    endpoint::issuer_metadata_urls,
};

/// Issuers in use; a handle.
#[derive(Clone)]
pub(super) struct Issuers {
    /// Tenants with equal settings share an issuer's public keys. Access is decided per tenant.
    known: Cache<Arc<External>, Arc<Issuer>>,
    trusted: TrustedIssuers,
    outbound: Outbound,
}

impl Issuers {
    pub(super) fn new(key_fetch: KeyFetch) -> Self {
        let known = Cache::builder()
            .max_capacity(ISSUERS)
            .time_to_idle(ISSUER_IDLE)
            .build();
        let outbound = key_fetch.outbound.clone();
        Self {
            known,
            trusted: TrustedIssuers::new(key_fetch),
            outbound,
        }
    }

    /// The keys of issuers, also of those whose tokens are no access tokens here.
    pub(super) fn trusted(&self) -> &TrustedIssuers {
        &self.trusted
    }

    /// Verifies an access token of the issuer, sent from an address, for a resource that `is_audience` accepts.
    pub(super) async fn verify(
        &self,
        settings: &Arc<External>,
        (text, from): (&str, Option<IpAddr>),
        now: u64,
        is_audience: impl Fn(&str) -> bool,
    ) -> Result<Arc<ExternalToken>, TokenError> {
        // Boxed, here and below, as it would triple the room that the admission of every request takes.
        let keys = || Box::pin(self.trusted.keys(&settings.issuer));
        let make = async { Arc::new(Issuer::new(keys().await)) };
        let issuer = self.known.get_with_by_ref(settings, make).await;
        let is_meant = |claims: &Claims| {
            let validity = claims.check_validity(now, IssuedBy::Another);
            validity.map_err(TokenError::Invalid)?;
            let is_ours = claims
                .audiences
                .iter()
                .any(|audience| is_audience(audience));
            is_ours
                .then_some(())
                .ok_or(TokenError::Invalid("another audience"))
        };
        let hash = sha256(text.as_bytes());
        if let Some(by) = settings.introspection.as_ref().filter(|_| is_opaque(text)) {
            let (outbound, asked) = (&self.outbound, (&**settings, by));
            let token = (hash, text, from);
            let claims = Box::pin(issuer.introspected.claims(outbound, asked, token));
            let claims = claims.await?;
            is_meant(&claims)?;
            return Ok(Arc::new(ExternalToken {
                claims,
                key: NO_KEY,
                principal: OnceLock::new(),
            }));
        }
        if let Some(known) = issuer.recall(&hash).await {
            is_meant(&known.claims)?;
            return Ok(known);
        }
        let parsed = || Token::parse(text, (&**settings).into()).map_err(TokenError::Invalid);
        let jws = {
            let token = parsed()?;
            // Checked before the keys, so that a useless token causes no request to the issuer.
            is_meant(&token.claims)?;
            // Nothing else of it is kept while keys are fetched: anybody can send tokens whose claims take many times their
            // length, and any number of them waits for one fetch.
            token.jws
        };
        let key = issuer.keys.signer(&jws).await?;
        let verified = Arc::new(ExternalToken {
            claims: Arc::new(parsed()?.claims),
            key,
            principal: OnceLock::new(),
        });
        let life = verified.claims.life(now, IssuedBy::Another);
        let token = Arc::clone(&verified);
        let size = verified.claims.size();
        issuer.verified.insert(hash, token, (size, life)).await;
        Ok(verified)
    }
}

/// A token with a valid signature.
pub(super) struct ExternalToken {
    /// Its claims.
    pub(super) claims: Arc<Claims>,
    /// The signing key, on which its validity depends.
    key: KeyId,
    /// The principal at the first tenant that saw the token, almost always the only one.
    principal: OnceLock<Principal>,
}

impl ExternalToken {
    /// The principal at a tenant that trusts `issuer`.
    pub(super) fn principal(&self, tenant: &str, issuer: &str) -> Principal {
        let (subject, client) = (&self.claims.subject, self.claims.client.as_deref());
        let new = || Principal::new(tenant, Some(issuer), Some(subject), client);
        let first = self.principal.get_or_init(new);
        if first.tenant() == tenant && first.issuer() == Some(issuer) {
            first.clone()
        } else {
            new()
        }
    }
}

/// One issuer.
struct Issuer {
    keys: Arc<IssuerKeys>,
    /// Verified tokens by SHA-256, so that a repeated token costs a hash.
    verified: VerifiedTokens<ExternalToken>,
    introspected: Introspected,
}

impl Issuer {
    fn new(keys: Arc<IssuerKeys>) -> Self {
        Self {
            keys,
            verified: VerifiedTokens::new(VERIFIED, VERIFIED_LIFE),
            introspected: Introspected::new(),
        }
    }

    /// A cached token, unless its key has been removed since.
    async fn recall(&self, hash: &KeyId) -> Option<Arc<ExternalToken>> {
        let known = self.verified.get(hash).await?;
        let keys = self.keys.of_verified()?;
        if keys.has(&known.key) {
            return Some(known);
        }
        self.verified.remove(hash).await;
        None
    }
}

/// The issuers whose tokens are accepted, by their URLs; a handle. Tenants with the same issuer share its keys:
/// access is decided per tenant.
#[derive(Clone)]
pub(crate) struct TrustedIssuers {
    known: Cache<String, Arc<IssuerKeys>>,
    key_fetch: KeyFetch,
}

/// Dependencies of key fetches.
#[derive(Clone)]
pub(super) struct KeyFetch {
    /// The HTTP client.
    pub(super) outbound: Outbound,
    /// The tracker of fetch tasks.
    pub(super) tracker: TaskTracker,
    /// Cancels fetch tasks.
    pub(super) stop: CancellationToken,
    /// The clock by which tokens are issued.
    pub(super) clock: Clock,
}

impl TrustedIssuers {
    fn new(key_fetch: KeyFetch) -> Self {
        let known = Cache::builder()
            .max_capacity(ISSUERS)
            .time_to_idle(ISSUER_IDLE)
            .build();
        Self { known, key_fetch }
    }

    /// The keys of an issuer.
    async fn keys(&self, issuer: &str) -> Arc<IssuerKeys> {
        let make = async { IssuerKeys::new(issuer, self.key_fetch.clone()) };
        self.known.get_with_by_ref(issuer, make).await
    }

    /// Verifies that an issuer signed a token.
    pub(crate) async fn verify(&self, issuer: &str, jws: &Jws<'_>) -> Result<(), TokenError> {
        self.keys(issuer).await.signer(jws).await.map(drop)
    }
}

/// The keys of one issuer.
struct IssuerKeys {
    issuer: String,
    key_fetch: KeyFetch,
    state: KeyStateLock,
}

#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]
type KeyStateLock = std::sync::Mutex<KeyState>;

/// The state of an issuer's keys.
struct KeyState {
    /// The last keys, and the time of their fetch.
    keys: Option<(Arc<KeySet>, Instant)>,
    /// Turns true at the end of the current fetch.
    flight: Option<watch::Receiver<bool>>,
    /// Consecutive failures.
    failures: u32,
    /// The earliest time of the next fetch after a failure.
    again: Instant,
    /// Remaining fetches for unknown keys, and the time of that count.
    allowance: (u32, Instant),
    /// Key ids that were not found, and the time until which that holds.
    missing: HashMap<String, Instant>,
}

/// Whether a token with an unknown key may cause a fetch.
enum MayFetch {
    Now,
    /// Not before this time: nobody has asked the issuer for the key.
    Later(Duration),
    /// The issuer was asked for the key a moment ago.
    Asked,
}

impl IssuerKeys {
    fn new(issuer: &str, key_fetch: KeyFetch) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            issuer: issuer.to_owned(),
            key_fetch,
            state: KeyStateLock::new(KeyState {
                keys: None,
                flight: None,
                failures: 0,
                again: now,
                allowance: (ALLOWANCE, now),
                missing: HashMap::new(),
            }),
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut KeyState) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The keys, if recent enough to use; stale keys are refreshed in the background.
    fn current(self: &Arc<Self>) -> Option<Arc<KeySet>> {
        let now = Instant::now();
        let (keys, age) = self.with(|state| {
            let (keys, came) = state.keys.as_ref()?;
            Some((Arc::clone(keys), now - *came))
        })?;
        if age >= KEYS_FRESH {
            drop(self.fetch(now));
        }
        (age < KEYS_MAX).then_some(keys)
    }

    /// Reports whether there are keys of this age, of an issuer that did not just fail to answer: a failure of long ago says
    /// nothing about now.
    fn are_older(&self, age: Duration) -> bool {
        let now = Instant::now();
        self.with(|state| {
            let is_away = state.failures > 0 && now < state.again + KEYS_FRESH;
            let keys = state.keys.as_ref();
            !is_away && keys.is_some_and(|(_, came)| now - *came >= age)
        })
    }

    /// The keys, if recent enough to use. Those of an issuer whose tokens come seldom may have been withdrawn long ago, so
    /// newer ones are waited for, unless the issuer did not answer a moment ago.
    async fn recent(self: &Arc<Self>) -> Option<Arc<KeySet>> {
        if self.are_older(KEYS_FRESH)
            && let Some(flight) = self.fetch(Instant::now())
        {
            Box::pin(wait_for(flight, SOON)).await;
        }
        self.current()
    }

    /// The keys by which a token is good that was verified before; none if it has to be verified again by newer ones.
    fn of_verified(self: &Arc<Self>) -> Option<Arc<KeySet>> {
        // Tokens that come all the time never find keys of that age: the first one caused a fetch.
        if self.are_older(KEYS_FRESH * 2) {
            return None;
        }
        self.current()
    }

    /// The key that signed a token.
    async fn signer(self: &Arc<Self>, jws: &Jws<'_>) -> Result<KeyId, TokenError> {
        let keys = match self.recent().await {
            Some(keys) => keys,
            None => self.first().await?,
        };
        let outcome = match keys.check(jws) {
            Signature::NoKey => match self.may_fetch_for(jws.kid.as_deref()) {
                MayFetch::Now => match self.newer(&keys).await {
                    Some(keys) => {
                        let outcome = keys.check(jws);
                        self.remember(jws.kid.as_deref(), &outcome);
                        outcome
                    }
                    None => return Err(self.unavailable()),
                },
                MayFetch::Later(_) if self.came_after(&keys, jws.issued) => Signature::NoKey,
                // The key may be new, however many are made up: a 401 would end the log-in of the client.
                MayFetch::Later(wait) => return Err(TokenError::Unavailable(wait)),
                MayFetch::Asked => Signature::NoKey,
            },
            outcome => outcome,
        };
        match outcome {
            Signature::By(key) => Ok(key),
            Signature::Bad => Err(TokenError::Invalid("a bad signature")),
            // The key may be new: only keys that were fetched tell that the issuer has no such one.
            Signature::NoKey if self.with(|state| state.failures > 0) => Err(self.unavailable()),
            Signature::NoKey => Err(TokenError::Invalid("an unknown key")),
        }
    }

    /// Reports whether these keys were fetched after a token was issued, as it says itself: what has signed it is in them,
    /// or was withdrawn.
    fn came_after(&self, keys: &Arc<KeySet>, issued: Option<u64>) -> bool {
        let now = u64::try_from(self.key_fetch.clock.now_ms() / 1000).unwrap_or(0);
        let came = self.with(|state| {
            let last = state.keys.as_ref();
            let (_, came) = last.filter(|(last, _)| Arc::ptr_eq(last, keys))?;
            Some(now.saturating_sub(came.elapsed().as_secs() + 1))
        });
        // The clock of the issuer may differ, and the fetch took a moment.
        let issued = issued.map(|issued| issued.saturating_add(LEEWAY_S.into()));
        issued.is_some_and(|issued| came.is_some_and(|came| issued < came))
    }

    /// The first keys: all callers wait for the same fetch.
    async fn first(self: &Arc<Self>) -> Result<Arc<KeySet>, TokenError> {
        let flight = self.fetch(Instant::now());
        let flight = flight.ok_or_else(|| self.unavailable())?;
        wait_for(flight, FETCH * 2).await;
        self.current().ok_or_else(|| self.unavailable())
    }

    /// The refusal while the keys cannot be fetched, with the time until the next fetch.
    fn unavailable(&self) -> TokenError {
        let again = self.with(|state| state.again.saturating_duration_since(Instant::now()));
        TokenError::Unavailable(again.max(SECOND))
    }

    /// Keys newer than `old`, if a fetch returns any.
    async fn newer(self: &Arc<Self>, old: &Arc<KeySet>) -> Option<Arc<KeySet>> {
        wait_for(self.fetch(Instant::now())?, FETCH * 2).await;
        self.current().filter(|keys| !Arc::ptr_eq(keys, old))
    }

    /// Reports whether a token with an unknown key may cause a fetch: not for a key id that was not
    /// found recently, and otherwise at a limited rate.
    fn may_fetch_for(&self, kid: Option<&str>) -> MayFetch {
        let now = Instant::now();
        self.with(|state| {
            // During backoff nothing is fetched, and the allowance is kept.
            if state.flight.is_none() && now < state.again {
                return MayFetch::Later((state.again - now).max(SECOND));
            }
            if kid.is_some_and(|kid| state.missing.get(kid).is_some_and(|until| now < *until)) {
                return MayFetch::Asked;
            }
            let (left, counted) = &mut state.allowance;
            let earned = (now - *counted).as_secs() / ALLOWANCE_EVERY.as_secs();
            let earned = u32::try_from(earned).unwrap_or(u32::MAX).min(ALLOWANCE);
            if earned > 0 {
                (*left, *counted) = ((*left + earned).min(ALLOWANCE), now);
            }
            // Joining a current fetch costs nothing.
            if state.flight.is_some() {
                return MayFetch::Now;
            }
            if *left == 0 {
                let next = *counted + ALLOWANCE_EVERY;
                return MayFetch::Later(next.saturating_duration_since(now).max(SECOND));
            }
            *left -= 1;
            MayFetch::Now
        })
    }

    fn remember(&self, kid: Option<&str>, outcome: &Signature) {
        if let (Some(kid), Signature::NoKey) = (kid, outcome) {
            self.with(|state| {
                if state.missing.len() >= MISSING {
                    state.missing.clear();
                }
                let until = Instant::now() + MISSING_FOR;
                state.missing.insert(kid.to_owned(), until);
            });
        }
    }

    /// The current fetch, or a new one; none during backoff.
    fn fetch(self: &Arc<Self>, now: Instant) -> Option<watch::Receiver<bool>> {
        let (ended, flight) = watch::channel(false);
        let running = self.with(|state| {
            // A fetch whose task is gone does not count.
            state.flight.take_if(|flight| flight.has_changed().is_err());
            if state.flight.is_none() && now >= state.again {
                state.flight = Some(flight.clone());
                return None;
            }
            Some(state.flight.clone())
        });
        if let Some(running) = running {
            return running;
        }
        let issuer = Arc::clone(self);
        self.key_fetch.tracker.spawn(async move {
            let fetched = tokio::select! {
                fetched = tokio::time::timeout(FETCH, issuer.fetch_keys()) => {
                    fetched.unwrap_or_else(|_| Err("no answer in time".to_owned()))
                }
                () = issuer.key_fetch.stop.cancelled() => Err("the gateway ends".to_owned()),
            };
            issuer.finish(fetched);
            // All receivers may be gone.
            let _ = ended.send(true);
        });
        Some(flight)
    }

    fn finish(&self, fetched: Result<KeySet, String>) {
        let now = Instant::now();
        self.with(|state| {
            state.flight = None;
            match fetched {
                Ok(keys) => {
                    state.keys = Some((Arc::new(keys), now));
                    state.failures = 0;
                }
                Err(error) => {
                    let wait = BACKOFF * 2_u32.pow(state.failures.min(5));
                    state.failures += 1;
                    state.again = now + wait.min(BACKOFF_MAX);
                    let issuer = self.issuer.as_str();
                    tracing::warn!(issuer, error, "the keys of an issuer cannot be fetched");
                }
            }
        });
    }

    /// Fetches metadata, then keys.
    async fn fetch_keys(&self) -> Result<KeySet, String> {
        let mut last = "no metadata".to_owned();
        for url in issuer_metadata_urls(&self.issuer) {
            match self.key_fetch.outbound.json(&url, METADATA_BYTES).await {
                Ok(document) => match jwks_uri(&document, &self.issuer) {
                    Ok(uri) => {
                        let keys = self.key_fetch.outbound.json(&uri, KEYS_BYTES).await;
                        let keys = keys.map_err(|error| format!("jwks_uri: {error}"))?;
                        return KeySet::parse(&keys).map_err(|error| format!("jwks_uri: {error}"));
                    }
                    Err(error) => last = format!("metadata: {error}"),
                },
                Err(error) => last = format!("metadata: {error}"),
            }
        }
        Err(last)
    }
}

/// Waits for the end of a fetch, for `longest`. It has its own deadline: a longer one covers scheduling.
async fn wait_for(mut flight: watch::Receiver<bool>, longest: Duration) {
    let _ = tokio::time::timeout(longest, flight.wait_for(|ended| *ended)).await;
}

/// The `jwks_uri` of metadata, whose issuer must match exactly (RFC 8414, section 3.3).
fn jwks_uri(document: &[u8], issuer: &str) -> Result<String, &'static str> {
    #[derive(Deserialize)]
    struct Metadata {
        issuer: String,
        jwks_uri: String,
    }
    let metadata: Metadata =
        serde_json::from_slice(document).map_err(|_| "no issuer or no jwks_uri")?;
    if metadata.issuer == issuer {
        Ok(metadata.jwks_uri)
    } else {
        Err("of another issuer")
    }
}

/// The key of a token that no key has signed.
const NO_KEY: KeyId = [0; 32];
/// Maximum size of the cached tokens of one issuer, in bytes: 7,500 of the usual ones.
const VERIFIED: u64 = 10 << 20;
/// Upper bound for tokens with a later expiry.
const VERIFIED_LIFE: Duration = Duration::from_secs(3600);
/// Maximum cached issuers, and their lifetime without a token.
const ISSUERS: u64 = 1024;
const ISSUER_IDLE: Duration = Duration::from_secs(24 * 3600);
/// Age from which keys are refreshed, so that removed ones are noticed.
const KEYS_FRESH: Duration = Duration::from_secs(300);
/// The longest time for which a request waits for newer keys than it could use.
const SOON: Duration = Duration::from_secs(1);
/// Age from which keys are no longer used.
const KEYS_MAX: Duration = Duration::from_secs(3600);
/// Deadline of one fetch, all documents together.
const FETCH: Duration = Duration::from_secs(5);
/// Delay after the first failure, doubled by each further one.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Maximum fetches at once for unknown keys, and the interval at which one more is allowed.
const ALLOWANCE: u32 = 4;
const ALLOWANCE_EVERY: Duration = Duration::from_secs(15);
/// The shortest time after which a caller is told to come again.
const SECOND: Duration = Duration::from_secs(1);
/// Maximum remembered unknown key ids; a larger number suggests a flood of invented ones.
const MISSING: usize = 256;
const MISSING_FOR: Duration = Duration::from_secs(30);
/// Maximum size of metadata in bytes.
const METADATA_BYTES: usize = 64 << 10;
/// Maximum size of a key set in bytes: a few dozen keys.
const KEYS_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::JoinSet,
    };

    use super::super::jose::parse_unverified;
    use super::*;
    use crate::declare::Algorithm;

    const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

    const NOW: i64 = 1_000_000;

    /// Answers with the metadata and the keys of the issuer `url`.
    async fn serve(listener: TcpListener, url: String) {
        let metadata = format!(r#"{{"issuer":"{url}","jwks_uri":"{url}/keys"}}"#);
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let count = socket.read(&mut request).await.unwrap();
            let is_for_keys = request[..count].starts_with(b"GET /keys ");
            let body = if is_for_keys { KEYS } else { metadata.as_str() };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    /// An issuer that answers until the end of its tasks, and its keys.
    async fn served() -> (Arc<IssuerKeys>, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, url.clone()));
        let key_fetch = KeyFetch {
            outbound: Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]),
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            clock: Clock::of(|| NOW * 1000),
        };
        (IssuerKeys::new(&url, key_fetch), tasks)
    }

    /// Verifies a token that says it is by this key of the issuer.
    async fn ask(issuer: &Arc<IssuerKeys>, kid: &str) -> Result<KeyId, TokenError> {
        let header = format!(r#"{{"alg":"EdDSA","kid":"{kid}"}}"#);
        ask_with(issuer, &header, "{}").await
    }

    async fn ask_with(
        issuer: &Arc<IssuerKeys>,
        header: &str,
        payload: &str,
    ) -> Result<KeyId, TokenError> {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let text = format!("{}.{}.c2ln", part(header), part(payload));
        let (_, _, jws) = parse_unverified(&text, &[Algorithm::EdDsa]).unwrap();
        issuer.signer(&jws).await
    }

    /// A key that was withdrawn was good for an hour where no other token came meanwhile.
    #[tokio::test]
    async fn newer_keys_of_an_issuer_that_is_asked_seldom_are_waited_for() {
        let (issuer, mut tasks) = served().await;
        let old = Arc::new(KeySet::parse(KEYS.as_bytes()).unwrap());
        let aged = |age: Duration| {
            let came = Instant::now().checked_sub(age).unwrap();
            issuer.with(|state| state.keys = Some((Arc::clone(&old), came)));
        };
        aged(KEYS_FRESH / 2);
        assert!(Arc::ptr_eq(&issuer.recent().await.unwrap(), &old));
        assert!(issuer.of_verified().is_some());
        aged(KEYS_FRESH * 2);
        assert!(issuer.of_verified().is_none());
        assert!(!Arc::ptr_eq(&issuer.recent().await.unwrap(), &old));
        assert!(issuer.of_verified().is_some());
        // A failure of a moment ago tells that it is away; one of long ago, which no other token followed, tells nothing.
        let failed = |ago: Duration| {
            aged(KEYS_FRESH * 2);
            let again = Instant::now().checked_sub(ago).unwrap();
            issuer.with(|state| (state.failures, state.again) = (1, again));
        };
        failed(KEYS_FRESH / 2);
        assert!(issuer.of_verified().is_some());
        // That caused a fetch.
        let flight = issuer.with(|state| state.flight.clone());
        wait_for(flight.unwrap(), FETCH).await;
        failed(KEYS_FRESH);
        assert!(issuer.of_verified().is_none());
        assert!(!Arc::ptr_eq(&issuer.recent().await.unwrap(), &old));
        // While it is away, the last keys serve.
        tasks.shutdown().await;
        aged(KEYS_FRESH * 2);
        assert!(Arc::ptr_eq(&issuer.recent().await.unwrap(), &old));
        assert!(issuer.of_verified().is_some());
    }

    /// A token by a new key was refused for good while the keys of its issuer could not be fetched.
    #[tokio::test]
    async fn an_unknown_key_is_none_only_by_keys_that_were_fetched() {
        let (issuer, mut tasks) = served().await;
        let by = async |kid: &str| ask(&issuer, kid).await;
        assert_eq!(by("new").await, Err(TokenError::Invalid("an unknown key")));
        tasks.shutdown().await;
        let is_away = |refused: Result<KeyId, TokenError>| {
            let Err(TokenError::Unavailable(retry)) = refused else {
                return false;
            };
            (1..=30).contains(&retry.as_secs())
        };
        assert!(is_away(by("newer").await));
        let failures = || issuer.with(|state| state.failures);
        assert_eq!(failures(), 1);
        // Also one that was not found before. Until the next fetch is due, none of them causes one.
        let later = Instant::now() + BACKOFF_MAX;
        issuer.with(|state| state.again = later);
        for kid in ["new", "newer", "made up", "made up as well"] {
            assert!(is_away(by(kid).await), "{kid}");
        }
        assert_eq!(failures(), 1);
        // What is known of a known key is said all the same.
        assert_eq!(by("k").await, Err(TokenError::Invalid("a bad signature")));
    }

    /// Key ids that strangers made up used the fetches up, and a token by a new key was refused for good: its client threw its
    /// log-in away.
    #[tokio::test]
    async fn a_key_that_nobody_asked_for_may_be_new() {
        let (issuer, _tasks) = served().await;
        let unknown = || Err(TokenError::Invalid("an unknown key"));
        for number in 0..ALLOWANCE {
            assert_eq!(ask(&issuer, &format!("made up {number}")).await, unknown());
        }
        let Err(TokenError::Unavailable(wait)) = ask(&issuer, "new").await else {
            panic!("an answer of nobody");
        };
        assert!((SECOND..=ALLOWANCE_EVERY).contains(&wait), "{wait:?}");
        // Of these the issuer has said that it has none.
        assert_eq!(ask(&issuer, "made up 0").await, unknown());
        let earlier = Instant::now().checked_sub(ALLOWANCE_EVERY).unwrap();
        issuer.with(|state| state.allowance.1 = earlier);
        assert_eq!(ask(&issuer, "new").await, unknown());
    }

    /// A token by a withdrawn key, or one without a key id, got 503 until it expired, and its client did not log in anew.
    #[tokio::test]
    async fn keys_from_after_a_token_tell_that_its_key_is_none() {
        let (issuer, _tasks) = served().await;
        let unknown = || Err(TokenError::Invalid("an unknown key"));
        assert_eq!(ask(&issuer, "made up").await, unknown());
        issuer.with(|state| state.allowance.0 = 0);
        let leeway = i64::from(LEEWAY_S);
        let headers = [r#"{"alg":"EdDSA"}"#, r#"{"alg":"EdDSA","kid":"gone"}"#];
        let by = async |header: &str, issued: i64| {
            ask_with(&issuer, header, &format!(r#"{{"iat":{issued}}}"#)).await
        };
        let is_away =
            |refused: Result<KeyId, TokenError>| matches!(refused, Err(TokenError::Unavailable(_)));
        for header in headers {
            assert_eq!(by(header, NOW - 2 * leeway).await, unknown());
            for issued in [NOW - leeway, NOW, NOW + leeway] {
                assert!(is_away(by(header, issued).await), "{header} {issued}");
            }
            assert!(is_away(ask_with(&issuer, header, "{}").await));
        }
        // While the issuer is away, it may have made new ones.
        issuer.with(|state| state.failures = 1);
        assert!(is_away(by(headers[0], NOW - 2 * leeway).await));
        // Keys from before the token.
        issuer.with(|state| {
            state.failures = 0;
            let came = &mut state.keys.as_mut().unwrap().1;
            *came = came.checked_sub(KEYS_FRESH / 2).unwrap();
        });
        assert!(is_away(by(headers[0], NOW - 2 * leeway).await));
        assert_eq!(by(headers[0], NOW - 4 * leeway).await, unknown());
    }

    #[test]
    fn metadata_is_fetched_from_three_urls() {
        for issuer in ["https://a.test", "https://a.test/"] {
            let wanted = [
                "https://a.test/.well-known/oauth-authorization-server",
                "https://a.test/.well-known/openid-configuration",
            ];
            assert_eq!(issuer_metadata_urls(issuer), wanted);
        }
        let wanted = [
            "https://a.test:8443/.well-known/oauth-authorization-server/realms/x",
            "https://a.test:8443/.well-known/openid-configuration/realms/x",
            "https://a.test:8443/realms/x/.well-known/openid-configuration",
        ];
        assert_eq!(
            issuer_metadata_urls("https://a.test:8443/realms/x/"),
            wanted
        );
    }

    #[test]
    fn metadata_must_name_the_issuer_exactly() {
        let of = |text: &str| jwks_uri(text.as_bytes(), "https://a.test");
        let good = r#"{"issuer":"https://a.test","jwks_uri":"https://b.test/k"}"#;
        assert_eq!(of(good).unwrap(), "https://b.test/k");
        for bad in [
            r#"{"issuer":"https://a.test/","jwks_uri":"https://b.test/k"}"#,
            r#"{"issuer":"https://A.test","jwks_uri":"https://b.test/k"}"#,
            r#"{"issuer":"https://a.test"}"#,
            r#"{"issuer":"https://a.test","issuer":"https://a.test","jwks_uri":"x"}"#,
            "[]",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
