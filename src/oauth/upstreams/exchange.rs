//! Access tokens of people for other audiences: exchanged at their identity providers (RFC 8693), kept in memory, and
//! exchanged again before they end.
//!
//! Not here: the requests (`oauth/providers`), and the tokens of the log-ins, which are exchanged (`standing`).

use std::{
    sync::{Arc, PoisonError, RwLock, RwLockWriteGuard},
    time::Duration,
};

use moka::future::Cache;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout,
};

use crate::{
    backend::{Refused, TokenFor, TokenOf, child::AccessToken},
    base::{Clock, Outbound, Secret},
    database::Tokens,
    declare::AuthMode,
    oauth::providers::{
        ExchangeError, HeldToken, ProviderTokens, Providers, StandingOf, Standings,
    },
    snapshot::CurrentSnapshot,
};

/// The exchanged tokens of people; a handle.
#[derive(Clone)]
pub(crate) struct Exchanges {
    /// Identity providers.
    pub(crate) providers: Providers,
    /// The standing of people there, with the tokens of their log-ins.
    pub(crate) standings: Standings,
    snapshot: Arc<CurrentSnapshot>,
    clock: Clock,
    /// One line for each person and audience: there is one request at a time.
    held: Cache<TokenOf, Arc<Line>>,
}

/// The line for the token of one person for one audience.
#[derive(Default)]
struct Line {
    /// What is known, also while a request is under way.
    held: RwLock<Held>,
    /// The turn to ask the provider.
    turn: Mutex<()>,
}

/// The next step of a caller.
enum Next<'l> {
    /// The provider is to be asked, in this turn.
    Ask(MutexGuard<'l, ()>),
    /// This is known without asking it.
    Told(Result<AccessToken, Refused>),
}

/// What is known of the token of one person for one audience.
#[derive(Default)]
struct Held {
    token: Option<Exchanged>,
    /// The last failure, and the time until which it counts, in milliseconds since 1970.
    failed: Option<(Refused, i64)>,
    /// The time from which the token of the log-in may be refreshed because the provider refused it.
    retry_ms: i64,
}

/// An exchanged token.
struct Exchanged {
    tokens: Tokens,
    /// The time of the exchange that gave it.
    version: i64,
}

impl Exchanged {
    fn is_alive(&self, now_ms: i64) -> bool {
        self.tokens.expires_ms.is_none_or(|at_ms| at_ms > now_ms)
    }

    fn is_due(&self, now_ms: i64) -> bool {
        let refresh_ms = self.tokens.refresh_ms();
        refresh_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// The token, to be looked at again not before `from_ms`.
    fn given(&self, from_ms: i64) -> AccessToken {
        AccessToken {
            value: self.tokens.access.clone(),
            version: self.version,
            look_ms: self.tokens.refresh_ms().map(|at_ms| at_ms.max(from_ms)),
        }
    }
}

impl Exchanges {
    /// No tokens yet; providers are reached through `outbound`. A refresh that was begun is ended by `standings`.
    pub(crate) fn new(
        outbound: Outbound,
        snapshot: Arc<CurrentSnapshot>,
        tracker: tokio_util::task::TaskTracker,
    ) -> Self {
        let clock = snapshot.clock().clone();
        let providers = Providers::new(outbound, clock.clone());
        let cache = Cache::builder().max_capacity(MOST).time_to_idle(IDLE);
        Self {
            standings: Standings::new(providers.clone(), Arc::clone(&snapshot), tracker),
            providers,
            snapshot,
            clock,
            held: cache.build(),
        }
    }

    /// The token of a person for an audience, exchanged if there is none that lasts.
    pub(super) async fn token(
        &self,
        of: &TokenOf,
        audience: &str,
        purpose: TokenFor,
    ) -> Result<AccessToken, Refused> {
        let standing = self.standing(of, audience)?;
        // What the person had here may have ended, and other log-ins be of another declaration.
        let has_tokens = self.standings.has_tokens(&standing).await;
        if !has_tokens.map_err(|error| unreadable(&standing, &error))? {
            self.held.invalidate(of).await;
            return Err(gone(&standing, audience));
        }
        let held = self
            .held
            .get_with_by_ref(of, async { Arc::default() })
            .await;
        let authority = standing.provider.authority();
        let _turn = match held.enter(&authority, purpose, &self.clock).await {
            Next::Ask(turn) => turn,
            Next::Told(told) => return told,
        };
        let mut retry_ms = held.write().retry_ms;
        let asked = self.exchange(&standing, audience, &mut retry_ms).await;
        // The request may have taken longer than the time that a failure counts.
        let now_ms = self.clock.now_ms();
        let mut held = held.write();
        held.retry_ms = retry_ms;
        held.learn(asked, &authority, now_ms)
    }

    /// The person, whose provider may be asked for this audience.
    fn standing(&self, of: &TokenOf, audience: &str) -> Result<StandingOf, Refused> {
        let catalog = self.snapshot.catalog();
        let tenant = catalog.tenants.get(&of.tenant).ok_or(Refused::Missing)?;
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            return Err(Refused::Missing);
        };
        let standing = StandingOf::of(tenant, builtin, &of.holder);
        let may = |of: &StandingOf| of.provider.exchange.iter().any(|one| one == audience);
        let standing = standing.filter(|of| may(of) && !of.recheck.is_zero());
        standing.ok_or_else(|| {
            tracing::info!(
                tenant.id = of.tenant,
                audience,
                "a person has no identity provider that may be asked for this audience"
            );
            Refused::Missing
        })
    }

    /// Asks the provider, and once more by a refreshed token of the log-in if it refuses the first one, which may have
    /// ended early: not before `retry_ms`, so that a provider that always refuses is not asked twice each time.
    async fn exchange(
        &self,
        of: &StandingOf,
        audience: &str,
        retry_ms: &mut i64,
    ) -> Result<ProviderTokens, Refused> {
        let subject = self.subject(of, audience, None).await?;
        let provider = self.providers.of(&of.provider);
        let mut asked = provider.exchange(&subject, audience).await;
        let now_ms = self.clock.now_ms();
        if let Err(ExchangeError::Refused(error)) = &asked
            && OF_THE_SUBJECT.contains(error)
            && *retry_ms <= now_ms
        {
            *retry_ms = now_ms + RETRY_MS;
            let renewed = self.subject(of, audience, Some(&subject)).await?;
            asked = provider.exchange(&renewed, audience).await;
        }
        asked.map_err(|error| refusal(of, audience, &error))
    }

    /// The token of the log-in, other than one that was refused.
    async fn subject(
        &self,
        of: &StandingOf,
        audience: &str,
        refused: Option<&Secret>,
    ) -> Result<Secret, Refused> {
        let held = self.standings.access_token(of, refused).await;
        match held.map_err(|error| unreadable(of, &error))? {
            HeldToken::Alive(subject) => Ok(subject),
            HeldToken::Gone => Err(gone(of, audience)),
            HeldToken::Unknown => Err(Refused::Unreadable),
        }
    }
}

impl Line {
    /// The turn to ask the provider, or what is known. While another request is under way, a token that lasts is given
    /// at once; without one a start waits, and a renewal does not.
    async fn enter(&self, authority: &str, purpose: TokenFor, clock: &Clock) -> Next<'_> {
        let known = || self.write().known(authority, clock.now_ms());
        if let Some(told) = known() {
            return Next::Told(told);
        }
        if let Ok(turn) = self.turn.try_lock() {
            // A request may have ended just now.
            return known().map_or(Next::Ask(turn), Next::Told);
        }
        let told = self.write().at_once(authority, clock.now_ms());
        if told.is_ok() || purpose == TokenFor::Renewal {
            return Next::Told(told);
        }
        match timeout(PATIENCE, self.turn.lock()).await {
            Ok(turn) => known().map_or(Next::Ask(turn), Next::Told),
            Err(_) => Next::Told(Err(Refused::Unreadable)),
        }
    }

    /// What is known, which is never held while something is waited for.
    fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// What can be told without asking the provider of this authority: a token that is not due, or the last failure. What
    /// another one gave is forgotten.
    fn known(&mut self, authority: &str, now_ms: i64) -> Option<Result<AccessToken, Refused>> {
        let of = self.token.as_ref().map(|known| &known.tokens.authority);
        if of.is_some_and(|of| of != authority) {
            *self = Self::default();
        }
        match &self.token {
            Some(known) if !known.is_due(now_ms) => return Some(Ok(known.given(0))),
            _ => {}
        }
        let failed = self.failed.clone();
        let (why, until_ms) = failed.filter(|(_, at_ms)| *at_ms > now_ms)?;
        Some(self.or(why, now_ms, until_ms))
    }

    /// What can be told while the provider is asked: a token that lasts, even if it is due.
    fn at_once(&mut self, authority: &str, now_ms: i64) -> Result<AccessToken, Refused> {
        let known = self.known(authority, now_ms);
        known.unwrap_or_else(|| self.or(Refused::Unreadable, now_ms, now_ms + SHORT_MS))
    }

    /// Takes what the provider answered just now.
    fn learn(
        &mut self,
        asked: Result<ProviderTokens, Refused>,
        authority: &str,
        now_ms: i64,
    ) -> Result<AccessToken, Refused> {
        let again_ms = now_ms + BACKOFF_MS;
        match asked {
            Ok(given) => Ok(self.keep(given, authority, now_ms)),
            Err(why) => {
                if matches!(why, Refused::Missing) {
                    self.token = None;
                }
                self.failed = Some((why.clone(), again_ms));
                self.or(why, now_ms, again_ms)
            }
        }
    }

    fn keep(&mut self, given: ProviderTokens, authority: &str, now_ms: i64) -> AccessToken {
        let lasts = i64::try_from(given.lasts.unwrap_or(ASSUMED).as_millis());
        let expires_ms = now_ms.saturating_add(lasts.unwrap_or(i64::MAX));
        // A provider that gives the same token again changes nothing for the children that have it.
        let same = self
            .token
            .as_ref()
            .filter(|known| known.tokens.access == given.access);
        let version = same.map_or(now_ms, |known| known.version);
        let tokens = Tokens {
            access: given.access,
            refresh: None,
            given_ms: now_ms,
            expires_ms: Some(expires_ms),
            authority: authority.to_owned(),
        };
        self.failed = None;
        let known = self.token.insert(Exchanged { tokens, version });
        known.given(now_ms + SHORT_MS)
    }

    /// The token while it lasts, to be looked at again at `from_ms`, or the failure.
    fn or(&self, why: Refused, now_ms: i64, from_ms: i64) -> Result<AccessToken, Refused> {
        let known = self.token.as_ref().filter(|known| known.is_alive(now_ms));
        known.map(|known| known.given(from_ms)).ok_or(why)
    }
}

fn refusal(of: &StandingOf, audience: &str, error: &ExchangeError) -> Refused {
    let (tenant, provider) = (&of.tenant, &of.provider.name);
    match error {
        ExchangeError::Refused(error) => {
            tracing::warn!(
                tenant.id = tenant,
                provider,
                audience,
                error,
                "an identity provider refuses a token for another audience"
            );
            Refused::Missing
        }
        ExchangeError::Failed(error) => {
            tracing::warn!(
                tenant.id = tenant,
                provider,
                audience,
                %error,
                "an identity provider gives no token for another audience"
            );
            Refused::Unreadable
        }
    }
}

fn unreadable(of: &StandingOf, error: &crate::database::Error) -> Refused {
    let (tenant, provider) = (&of.tenant, &of.provider.name);
    tracing::warn!(tenant.id = tenant, provider, %error, "the tokens of a log-in cannot be read");
    Refused::Unreadable
}

fn gone(of: &StandingOf, audience: &str) -> Refused {
    tracing::info!(
        tenant.id = of.tenant,
        provider = of.provider.name,
        audience,
        "a person has to log in again, before the identity provider is asked for this audience: it gave no token \
         that lasts"
    );
    Refused::Missing
}

/// Errors that may be about the token of the log-in (RFC 8693, section 2.2.2, and what providers write instead).
const OF_THE_SUBJECT: [&str; 3] = ["invalid_request", "invalid_grant", "invalid_token"];
/// The time between two refreshes after such errors, in milliseconds.
const RETRY_MS: i64 = 60_000;
/// Maximum tokens in memory; those beyond are exchanged again.
const MOST: u64 = 4_096;
/// The time for which a token is kept that nobody asks for.
const IDLE: Duration = Duration::from_hours(1);
/// The life of a token of which the provider does not say it (RFC 8693, section 2.2.1: recommended).
const ASSUMED: Duration = Duration::from_mins(10);
/// The time that a start waits for the request of another one.
const PATIENCE: Duration = Duration::from_secs(12);
/// The time between the end of a request that failed and the next one, in milliseconds.
const BACKOFF_MS: i64 = 5_000;
/// The least time between two exchanges of one token, in milliseconds.
const SHORT_MS: i64 = 1_000;

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicI64, Ordering},
    };

    use futures_util::FutureExt;

    use super::*;

    const IDP: &str = "idp";

    fn given(access: &str) -> ProviderTokens {
        ProviderTokens {
            access: Secret::new(access.to_owned()),
            refresh: None,
            lasts: Some(Duration::from_secs(100)),
        }
    }

    /// A line whose token is due from 75,000 on and ends at 100,000.
    fn line() -> Line {
        let line = Line::default();
        line.write().learn(Ok(given("first")), IDP, 0).unwrap();
        line
    }

    fn at(ms: i64) -> Clock {
        Clock::of(move || ms)
    }

    /// What is told without waiting; none for the turn to ask.
    fn told(line: &Line, purpose: TokenFor, now_ms: i64) -> Option<Result<String, Refused>> {
        let clock = at(now_ms);
        let next = line.enter(IDP, purpose, &clock).now_or_never();
        match next.unwrap() {
            Next::Ask(_) => None,
            Next::Told(told) => Some(told.map(|token| token.value.expose().to_owned())),
        }
    }

    /// Each start waited in line while its token was good for another minute.
    #[tokio::test]
    async fn a_token_that_lasts_is_given_while_the_provider_is_asked() {
        let line = line();
        let both = [TokenFor::Start, TokenFor::Renewal];
        for purpose in both {
            assert!(matches!(told(&line, purpose, 1), Some(Ok(_))));
            assert!(told(&line, purpose, 80_000).is_none(), "it is due");
        }
        let _turn = line.turn.lock().await;
        for purpose in both {
            let given = told(&line, purpose, 80_000);
            assert_eq!(given.unwrap().unwrap(), "first");
        }
        // Another declaration of the provider has given none.
        let clock = at(80_000);
        let other = line
            .enter("other", TokenFor::Renewal, &clock)
            .now_or_never();
        assert!(matches!(other, Some(Next::Told(Err(Refused::Unreadable)))));
    }

    /// Starts asked one after the other a provider that hung, each for eight seconds and more.
    #[tokio::test]
    async fn starts_that_wait_for_a_request_are_told_its_failure() {
        let line = line();
        let now_ms = Arc::new(AtomicI64::new(100_000));
        let clock = {
            let now_ms = Arc::clone(&now_ms);
            Clock::of(move || now_ms.load(Ordering::Relaxed))
        };
        let turn = line.turn.lock().await;
        // A renewal comes again.
        let renewal = told(&line, TokenFor::Renewal, 100_000);
        assert!(matches!(renewal, Some(Err(Refused::Unreadable))));
        let mut start = pin!(line.enter(IDP, TokenFor::Start, &clock));
        let waits = timeout(SOON, start.as_mut()).await;
        assert!(waits.is_err(), "there is no token to give");
        // The request took longer than a failure counts.
        now_ms.store(108_000, Ordering::Relaxed);
        let failed = Err(Refused::Unreadable);
        assert!(line.write().learn(failed, IDP, clock.now_ms()).is_err());
        drop(turn);
        let told = start.await;
        assert!(matches!(told, Next::Told(Err(Refused::Unreadable))));
        now_ms.store(108_000 + BACKOFF_MS, Ordering::Relaxed);
        let next = line.enter(IDP, TokenFor::Start, &clock).await;
        assert!(matches!(next, Next::Ask(_)));
    }

    /// The time after which something is taken to wait.
    const SOON: Duration = Duration::from_millis(50);
}
