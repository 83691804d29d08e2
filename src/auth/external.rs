//! Other authorization servers: where their keys are, and whether a token is one of theirs.
//!
//! What a token says decides nothing about what is asked of whom: documents come from the issuer
//! that the operator named, and the keys from where its metadata says (RFC 8414, section 2).

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, PoisonError},
    time::Duration,
};

use aws_lc_rs::digest::{SHA256, digest};
use moka::future::Cache;
use serde::Deserialize;
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    jws::{KeyId, KeySet, Signature},
    jwt::{Claims, Token},
    principals::Principal,
};
use crate::{base::Outbound, declare::External, endpoint::issuer_metadata_urls};

/// Every issuer that was asked for so far; clones share them.
#[derive(Clone)]
pub(super) struct Issuers {
    /// Tenants with the same settings share an issuer's keys, which are public. What a tenant may
    /// do with a token is decided each time.
    known: Cache<Arc<External>, Arc<Issuer>>,
    means: KeyFetch,
}

/// What it takes to fetch.
#[derive(Clone)]
pub(super) struct KeyFetch {
    /// By which documents are got.
    pub(super) outbound: Outbound,
    /// Where fetches belong.
    pub(super) tracker: TaskTracker,
    /// Ends them.
    pub(super) stop: CancellationToken,
}

/// Why a token was not believed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TokenError {
    /// It is not worth anything; the text is for the log.
    Invalid(&'static str),
    /// The issuer's keys are not to be had now.
    Unavailable(Duration),
}

impl Issuers {
    pub(super) fn new(means: KeyFetch) -> Self {
        let known = Cache::builder()
            .max_capacity(ISSUERS)
            .time_to_idle(ISSUER_IDLE)
            .build();
        Self { known, means }
    }

    /// What an access token of the issuer says, if it is one, holds at `now`, and is meant for a
    /// resource that `is_audience` knows.
    pub(super) async fn verify(
        &self,
        settings: &Arc<External>,
        text: &str,
        now: u64,
        is_audience: impl Fn(&str) -> bool,
    ) -> Result<Arc<ExternalToken>, TokenError> {
        let make = async { Issuer::new(Arc::clone(settings), self.means.clone()) };
        let issuer = self.known.get_with_by_ref(settings, make).await;
        let is_meant = |claims: &Claims| {
            claims.hold(now).map_err(TokenError::Invalid)?;
            let is_ours = claims
                .audiences
                .iter()
                .any(|audience| is_audience(audience));
            is_ours
                .then_some(())
                .ok_or(TokenError::Invalid("another audience"))
        };
        let mut hash = KeyId::default();
        hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        if let Some(known) = issuer.recall(&hash).await {
            is_meant(&known.claims)?;
            return Ok(known);
        }
        let token = Token::parse(text, (&**settings).into()).map_err(TokenError::Invalid)?;
        // Before any key is asked for: what is of no use here costs the issuer nothing.
        is_meant(&token.claims)?;
        let key = issuer.signer(&token).await?;
        let verified = Arc::new(ExternalToken {
            claims: token.claims,
            key,
            principal: OnceLock::new(),
        });
        issuer.verified.insert(hash, Arc::clone(&verified)).await;
        Ok(verified)
    }
}

/// A token whose signature was good.
pub(super) struct ExternalToken {
    /// What it says.
    pub(super) claims: Claims,
    /// Who signed it: it is worth as much as that key is now.
    key: KeyId,
    /// Whom it shows to the tenant that saw it first, which is almost always the only one.
    principal: OnceLock<Principal>,
}

impl ExternalToken {
    /// Whom it shows to a tenant that trusts `issuer`.
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
    settings: Arc<External>,
    means: KeyFetch,
    state: KeyStateLock,
    /// By the SHA-256 of a token, so that a token that comes again costs a hash.
    verified: Cache<KeyId, Arc<ExternalToken>>,
}

#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]
type KeyStateLock = std::sync::Mutex<KeyState>;

/// What is known of an issuer's keys.
struct KeyState {
    /// The last ones, and when they came.
    keys: Option<(Arc<KeySet>, Instant)>,
    /// Becomes true when the fetch that is under way has ended.
    flight: Option<watch::Receiver<bool>>,
    /// Failures in a row.
    failures: u32,
    /// After a failure: not before this.
    again: Instant,
    /// Fetches that tokens with unknown keys may still cause, and when that was counted.
    allowance: (u32, Instant),
    /// Key ids that were looked for in vain, and until when that is believed.
    missing: HashMap<String, Instant>,
}

impl Issuer {
    fn new(settings: Arc<External>, means: KeyFetch) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            settings,
            means,
            state: KeyStateLock::new(KeyState {
                keys: None,
                flight: None,
                failures: 0,
                again: now,
                allowance: (ALLOWANCE, now),
                missing: HashMap::new(),
            }),
            verified: Cache::builder()
                .max_capacity(VERIFIED)
                .time_to_live(VERIFIED_LIFE)
                .build(),
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut KeyState) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A token that was verified before, unless its key has been taken away since.
    async fn recall(self: &Arc<Self>, hash: &KeyId) -> Option<Arc<ExternalToken>> {
        let known = self.verified.get(hash).await?;
        let keys = self.current()?;
        if keys.has(&known.key) {
            return Some(known);
        }
        self.verified.invalidate(hash).await;
        None
    }

    /// The keys, if they may be believed; when they are no longer fresh, others are fetched
    /// meanwhile.
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

    /// The key that made a token.
    async fn signer(self: &Arc<Self>, token: &Token<'_>) -> Result<KeyId, TokenError> {
        let keys = match self.current() {
            Some(keys) => keys,
            None => self.first().await?,
        };
        let outcome = match keys.check(&token.jws) {
            Signature::NoKey if self.may_ask(token.kid()) => match self.newer(&keys).await {
                Some(keys) => {
                    let outcome = keys.check(&token.jws);
                    self.remember(token.kid(), &outcome);
                    outcome
                }
                None => Signature::NoKey,
            },
            outcome => outcome,
        };
        match outcome {
            Signature::By(key) => Ok(key),
            Signature::Bad => Err(TokenError::Invalid("a bad signature")),
            Signature::NoKey => Err(TokenError::Invalid("an unknown key")),
        }
    }

    /// Keys, where there are none yet: everybody waits for the same fetch.
    async fn first(self: &Arc<Self>) -> Result<Arc<KeySet>, TokenError> {
        let now = Instant::now();
        let unavailable = || {
            let again = self.with(|state| state.again.saturating_duration_since(Instant::now()));
            TokenError::Unavailable(again.max(Duration::from_secs(1)))
        };
        let flight = self.fetch(now).ok_or_else(unavailable)?;
        landed(flight).await;
        self.current().ok_or_else(unavailable)
    }

    /// Keys that came after `old`, if a fetch brings any.
    async fn newer(self: &Arc<Self>, old: &Arc<KeySet>) -> Option<Arc<KeySet>> {
        landed(self.fetch(Instant::now())?).await;
        self.current().filter(|keys| !Arc::ptr_eq(keys, old))
    }

    /// Whether a token with an unknown key may cause a fetch: a key that was looked for in vain
    /// does not, and all others together only so often.
    fn may_ask(&self, kid: Option<&str>) -> bool {
        let now = Instant::now();
        self.with(|state| {
            // After a failure nothing is asked for a while, and nothing is used up.
            if state.flight.is_none() && now < state.again {
                return false;
            }
            if kid.is_some_and(|kid| state.missing.get(kid).is_some_and(|until| now < *until)) {
                return false;
            }
            let (left, counted) = &mut state.allowance;
            let earned = (now - *counted).as_secs() / ALLOWANCE_EVERY.as_secs();
            let earned = u32::try_from(earned).unwrap_or(u32::MAX).min(ALLOWANCE);
            if earned > 0 {
                (*left, *counted) = ((*left + earned).min(ALLOWANCE), now);
            }
            // Whoever joins a fetch that is under way costs nothing.
            if state.flight.is_some() {
                return true;
            }
            let may = *left > 0;
            *left = left.saturating_sub(1);
            may
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

    /// The fetch that is under way, or a new one; none so soon after a failure.
    fn fetch(self: &Arc<Self>, now: Instant) -> Option<watch::Receiver<bool>> {
        let (ended, flight) = watch::channel(false);
        let running = self.with(|state| {
            // One whose task is gone without a word counts for nothing.
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
        self.means.tracker.spawn(async move {
            let fetched = tokio::select! {
                fetched = tokio::time::timeout(FETCH, issuer.ask()) => {
                    fetched.unwrap_or_else(|_| Err("no answer in time".to_owned()))
                }
                () = issuer.means.stop.cancelled() => Err("the gateway ends".to_owned()),
            };
            issuer.land(fetched);
            // Nobody may be waiting any more.
            let _ = ended.send(true);
        });
        Some(flight)
    }

    fn land(&self, fetched: Result<KeySet, String>) {
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
                    let issuer = self.settings.issuer.as_str();
                    tracing::warn!(issuer, error, "the keys of an issuer cannot be fetched");
                }
            }
        });
    }

    /// Metadata, then keys.
    async fn ask(&self) -> Result<KeySet, String> {
        let mut last = "no metadata".to_owned();
        for url in issuer_metadata_urls(&self.settings.issuer) {
            match self.means.outbound.json(&url, METADATA_BYTES).await {
                Ok(document) => match jwks_uri(&document, &self.settings.issuer) {
                    Ok(uri) => {
                        let keys = self.means.outbound.json(&uri, KEYS_BYTES).await;
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

/// Waits for the end of a fetch, which has its own deadline; this one is for its task's turn.
async fn landed(mut flight: watch::Receiver<bool>) {
    let _ = tokio::time::timeout(FETCH * 2, flight.wait_for(|ended| *ended)).await;
}

/// Where the keys are, by metadata that must be of that very issuer (RFC 8414, section 3.3).
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

/// Issuers that are kept, and for how long without a token.
const ISSUERS: u64 = 1024;
const ISSUER_IDLE: Duration = Duration::from_secs(24 * 3600);
/// Tokens of one issuer that are remembered; about 1 KiB each.
const VERIFIED: u64 = 10_000;
/// They end by themselves; this bounds what nobody uses.
const VERIFIED_LIFE: Duration = Duration::from_secs(3600);
/// Keys are fetched anew when they are older, so that those taken away are noticed.
const KEYS_FRESH: Duration = Duration::from_secs(300);
/// If that fails for so long, they are not believed any more.
const KEYS_MAX: Duration = Duration::from_secs(3600);
/// All documents of one fetch together.
const FETCH: Duration = Duration::from_secs(5);
/// After the first failure; doubled by each further one.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Fetches that unknown keys may cause at once, and how soon there is one more.
const ALLOWANCE: u32 = 4;
const ALLOWANCE_EVERY: Duration = Duration::from_secs(15);
/// Key ids that are known to be unknown; when there are more, somebody makes them up.
const MISSING: usize = 256;
const MISSING_FOR: Duration = Duration::from_secs(30);
/// Metadata is a few KiB.
const METADATA_BYTES: usize = 64 << 10;
/// A few dozen keys.
const KEYS_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_looked_for_in_three_places() {
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
    fn metadata_is_of_that_very_issuer() {
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
