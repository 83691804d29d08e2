//! Access tokens of people for other audiences: exchanged at their identity providers (RFC 8693), kept in memory, and
//! exchanged again before they end.
//!
//! Not here: the requests (`oauth/providers`), and the tokens of the log-ins, which are exchanged (`standing`).

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use tokio::sync::Mutex;

use crate::{
    backend::{Refused, TokenOf, child::AccessToken},
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
    /// One lock for each person and audience: there is one request at a time.
    held: Cache<TokenOf, Arc<Mutex<Held>>>,
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
    pub(super) async fn token(&self, of: &TokenOf, audience: &str) -> Result<AccessToken, Refused> {
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
        let mut held = held.lock().await;
        let (now_ms, authority) = (self.clock.now_ms(), standing.provider.authority());
        if held
            .token
            .as_ref()
            .is_some_and(|known| known.tokens.authority != authority)
        {
            *held = Held::default();
        }
        match &held.token {
            Some(known) if !known.is_due(now_ms) => return Ok(known.given(0)),
            _ => {}
        }
        if let Some((why, until_ms)) = held.failed.clone().filter(|(_, at_ms)| *at_ms > now_ms) {
            return held.or(why, now_ms, until_ms);
        }
        let again_ms = now_ms + BACKOFF_MS;
        match self.exchange(&standing, audience, &mut held.retry_ms).await {
            Ok(given) => {
                held.keep(given, &authority, self.clock.now_ms());
                let known = held.token.as_ref().ok_or(Refused::Unreadable)?;
                Ok(known.given(now_ms + SHORT_MS))
            }
            Err(Refused::Missing) => {
                held.token = None;
                held.failed = Some((Refused::Missing, again_ms));
                Err(Refused::Missing)
            }
            Err(why) => {
                held.failed = Some((why.clone(), again_ms));
                held.or(why, now_ms, again_ms)
            }
        }
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

impl Held {
    fn keep(&mut self, given: ProviderTokens, authority: &str, now_ms: i64) {
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
        self.token = Some(Exchanged { tokens, version });
        self.failed = None;
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
/// The time between two requests after a failure, in milliseconds.
const BACKOFF_MS: i64 = 5_000;
/// The least time between two exchanges of one token, in milliseconds.
const SHORT_MS: i64 = 1_000;
