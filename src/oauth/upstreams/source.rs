//! Access tokens of people at upstreams: read, refreshed by one replica at a time, and looked at.
//!
//! Not here: the requests to upstreams (`client`), and the children that get the tokens (`backend`).

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::task::TaskTracker;

use super::{
    client::{UpstreamClient, UpstreamError},
    exchange::Exchanges,
};
use crate::{
    backend::{Refused, TokenFor, TokenOf, TokenSource, child::AccessToken},
    base::{Clock, Outbound},
    database::{self, Author, Connection, ConnectionAt, Tokens, objects::Connections},
    declare::{AuthMode, TokenFrom, Upstream},
    snapshot::CurrentSnapshot,
};

/// The connections of people to upstreams; a handle.
#[derive(Clone)]
pub(crate) struct Upstreams {
    /// The requests to upstreams.
    pub(crate) client: UpstreamClient,
    /// Tokens of identity providers for other audiences.
    pub(crate) exchanges: Exchanges,
    snapshot: Arc<CurrentSnapshot>,
    clock: Clock,
    /// A refresh that was begun is ended: its refresh token may be used up.
    pub(crate) tracker: TaskTracker,
    /// The lines in front of connections that another request refreshes.
    lines: Lines,
}

/// The lines in front of connections that are refreshed, by tenant, upstream and holder: only the first in each looks at
/// the database.
#[derive(Clone)]
struct Lines(Cache<[String; 3], Arc<Mutex<()>>>);

impl Lines {
    fn new() -> Self {
        let cache = Cache::builder().max_capacity(LINES).time_to_idle(IDLE);
        Self(cache.build())
    }

    /// The line in front of a connection.
    async fn of(&self, at: ConnectionAt<'_>) -> Arc<Mutex<()>> {
        let names = [at.tenant, at.upstream, at.holder].map(str::to_owned);
        self.0.get_with(names, async { Arc::default() }).await
    }
}

/// What a connection leaves that has ended here.
pub(crate) struct Left {
    /// The upstream, as it is declared now.
    upstream: Option<Arc<Upstream>>,
    /// The tokens, if they could be read.
    tokens: Option<Tokens>,
}

/// What became of an attempt.
enum Step {
    Done(AccessToken),
    /// Read the connection again.
    Again,
    /// Another request refreshes it, or has just failed to.
    Busy,
}

impl Upstreams {
    /// The connections in the database of `snapshot`; others are reached through `outbound`.
    pub(crate) fn new(
        outbound: Outbound,
        snapshot: Arc<CurrentSnapshot>,
        tracker: TaskTracker,
    ) -> Self {
        let clock = snapshot.clock().clone();
        Self {
            client: UpstreamClient::new(outbound.clone()),
            exchanges: Exchanges::new(outbound, Arc::clone(&snapshot), tracker.clone()),
            snapshot,
            clock,
            tracker,
            lines: Lines::new(),
        }
    }

    /// The source of access tokens for children.
    pub(crate) fn source(&self) -> TokenSource {
        let upstreams = self.clone();
        Arc::new(move |of, purpose| {
            let (one, tracker) = (upstreams.clone(), upstreams.tracker.clone());
            let task = tracker.spawn(async move { one.token(&of, purpose).await });
            Box::pin(async move { task.await.unwrap_or(Err(Refused::Unreadable)) })
        })
    }

    /// Ends one of the connections that are kept here; none if there is none. The caller revokes what it leaves
    /// ([`Self::revoke_left`]), once it has ended its turn at the database.
    pub(crate) async fn disconnect(
        &self,
        kept: Connections<'_>,
        of: ConnectionAt<'_>,
        author: &Author,
    ) -> Result<Option<Left>, database::Error> {
        // One whose tokens do not open can still be ended.
        let known = kept.get(of).await.ok().flatten();
        if !kept
            .remove(of, None, "upstream.disconnected", author)
            .await?
        {
            return Ok(None);
        }
        self.snapshot.refresh_issued().await?;
        Ok(Some(Left {
            upstream: self.upstream(of.tenant, of.upstream),
            tokens: known.map(|known| known.tokens),
        }))
    }

    /// Revokes what a connection has left at its upstream, where that has an endpoint for it.
    pub(crate) async fn revoke_left(&self, left: Left) {
        if let (Some(upstream), Some(tokens)) = (left.upstream, left.tokens)
            && tokens.authority == upstream.authority()
        {
            self.revoke(upstream, tokens).await;
        }
    }

    /// Revokes tokens at the upstream that gave them, where it has an endpoint for that.
    pub(crate) async fn revoke(&self, upstream: Arc<Upstream>, tokens: Tokens) {
        let client = self.client.clone();
        let revoking = async move { client.revoke(&upstream, &tokens).await };
        // It goes on when the request that wanted it does not.
        _ = self.tracker.spawn(revoking).await;
    }

    /// The upstream, as it is declared now.
    fn upstream(&self, tenant: &str, name: &str) -> Option<Arc<Upstream>> {
        let catalog = self.snapshot.catalog();
        match &catalog.tenants.get(tenant)?.auth {
            AuthMode::Builtin(builtin) => builtin.upstreams.get(name).cloned(),
            _ => None,
        }
    }

    async fn token(&self, of: &TokenOf, purpose: TokenFor) -> Result<AccessToken, Refused> {
        match &of.from {
            TokenFrom::Exchange(audience) => self.exchanges.token(of, audience, purpose).await,
            TokenFrom::Upstream(upstream) => {
                let at = ConnectionAt {
                    tenant: &of.tenant,
                    upstream,
                    holder: &of.holder,
                };
                self.connected(at, purpose).await
            }
        }
    }

    /// The access token of a connection.
    async fn connected(
        &self,
        at: ConnectionAt<'_>,
        purpose: TokenFor,
    ) -> Result<AccessToken, Refused> {
        let upstream = self.upstream(at.tenant, at.upstream);
        let upstream = upstream.ok_or(Refused::Missing)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let step = self.attempt(at, &upstream).await;
            match step.map_err(|error| unreadable(at, &error))?? {
                Step::Done(token) => return Ok(token),
                Step::Busy if purpose == TokenFor::Renewal => return Err(Refused::Unreadable),
                Step::Busy if Instant::now() >= deadline => return Err(Refused::Unreadable),
                Step::Busy => {
                    let waited = self.wait(at, deadline).await;
                    waited.map_err(|error| unreadable(at, &error))?;
                }
                // A refresh of this replica may have taken longer than the patience, and has succeeded.
                Step::Again => sleep(AGAIN).await,
            }
        }
    }

    /// Waits until nobody has the lease of a connection, or until the deadline. All that wait at this replica look at the
    /// database one after the other: together, they would leave no connection to it for others.
    async fn wait(&self, at: ConnectionAt<'_>, deadline: Instant) -> Result<(), database::Error> {
        sleep(AGAIN).await;
        let line = self.lines.of(at).await;
        let Ok(_first) = timeout_at(deadline, line.lock()).await else {
            return Ok(());
        };
        while Instant::now() < deadline && self.is_leased(at).await? {
            sleep(AGAIN).await;
        }
        Ok(())
    }

    async fn is_leased(&self, at: ConnectionAt<'_>) -> Result<bool, database::Error> {
        let found = self.snapshot.database()?.connections().get(at).await?;
        Ok(found.is_some_and(|known| known.is_leased(self.clock.now_ms())))
    }

    async fn attempt(
        &self,
        at: ConnectionAt<'_>,
        upstream: &Upstream,
    ) -> Result<Result<Step, Refused>, database::Error> {
        let now_ms = self.clock.now_ms();
        let found = self.snapshot.database()?.connections().get(at).await?;
        let authority = upstream.authority();
        let Some(known) = found.filter(|known| known.tokens.authority == authority) else {
            return Ok(Err(Refused::Missing));
        };
        let is_due = known
            .tokens
            .refresh_ms()
            .is_some_and(|at_ms| at_ms <= now_ms);
        if is_due {
            return self.refresh(at, upstream, &known, now_ms).await;
        }
        self.look(at, upstream, known, now_ms).await
    }

    /// Refreshes tokens, unless another request does.
    async fn refresh(
        &self,
        at: ConnectionAt<'_>,
        upstream: &Upstream,
        known: &Connection,
        now_ms: i64,
    ) -> Result<Result<Step, Refused>, database::Error> {
        let (kept, version) = (self.snapshot.database()?.connections(), known.version);
        let is_expired = known.tokens.expires_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let Some(refresh) = &known.tokens.refresh else {
            if is_expired {
                return self.end(at, version).await;
            }
            return Ok(Ok(Step::Done(given(known, known.tokens.expires_ms))));
        };
        let until_ms = now_ms + LEASE_MS;
        if !kept.lease(at, known, until_ms).await? {
            let valid = given(known, known.tokens.refresh_ms());
            return Ok(Ok(if is_expired {
                Step::Busy
            } else {
                Step::Done(valid)
            }));
        }
        match self.client.refresh(upstream, refresh, now_ms).await {
            Ok(mut tokens) => {
                stretch(&mut tokens, self.clock.now_ms());
                self.replace(at, version, tokens, until_ms).await?;
                // This replica has not to wait until its own change is announced to it.
                Ok(Ok(Step::Again))
            }
            Err(UpstreamError::Ended) => self.end(at, version).await,
            Err(error) => {
                warn(at, &error, "a connection cannot be refreshed");
                kept.end_lease(at, version, self.clock.now_ms() + BACKOFF_MS)
                    .await?;
                let valid = given(known, known.tokens.refresh_ms());
                Ok(if is_expired {
                    Err(Refused::Unreadable)
                } else {
                    Ok(Step::Done(valid))
                })
            }
        }
    }

    /// Stores tokens in place of those of this version, which the upstream may take no more. While the database is away,
    /// that goes on behind the caller's error until the end of the lease.
    async fn replace(
        &self,
        at: ConnectionAt<'_>,
        version: i64,
        tokens: Tokens,
        until_ms: i64,
    ) -> Result<(), database::Error> {
        let stored = self.store(at, version, &tokens).await;
        if matches!(stored, Err(database::Error::Unavailable(_))) {
            let names = [at.tenant, at.upstream, at.holder].map(str::to_owned);
            let one = self.clone();
            let late = async move { one.replace_late(&names, version, &tokens, until_ms).await };
            self.tracker.spawn(late);
        }
        stored
    }

    async fn replace_late(
        &self,
        [tenant, upstream, holder]: &[String; 3],
        version: i64,
        tokens: &Tokens,
        until_ms: i64,
    ) {
        let at = ConnectionAt {
            tenant,
            upstream,
            holder,
        };
        while self.clock.now_ms() < until_ms {
            sleep(REPEAT).await;
            if self.store(at, version, tokens).await.is_ok() {
                return;
            }
        }
        tracing::warn!(
            tenant.id = tenant,
            upstream.name = upstream,
            "refreshed tokens could not be stored: the person may have to connect again"
        );
    }

    async fn store(
        &self,
        at: ConnectionAt<'_>,
        version: i64,
        tokens: &Tokens,
    ) -> Result<(), database::Error> {
        let kept = self.snapshot.database()?.connections();
        if kept.refreshed(at, version, tokens).await? || kept.get(at).await?.is_some() {
            return Ok(());
        }
        // The person disconnected meanwhile: nobody has these any more. To revoke them beside a new connection may end that.
        let upstream = self.upstream(at.tenant, at.upstream);
        if let Some(upstream) = upstream.filter(|one| one.authority() == tokens.authority) {
            self.revoke(upstream, tokens.clone()).await;
        }
        Ok(())
    }

    /// Asks the upstream now and then whether it has ended the access token (2025-03-26 authorization, "Session
    /// Binding Requirements" 2). Where it cannot be asked, the next refresh tells.
    async fn look(
        &self,
        at: ConnectionAt<'_>,
        upstream: &Upstream,
        mut known: Connection,
        now_ms: i64,
    ) -> Result<Result<Step, Refused>, database::Error> {
        let (refresh_ms, version) = (known.tokens.refresh_ms(), known.version);
        if matches!(self.client.introspects(upstream).await, Ok(false)) {
            return Ok(Ok(Step::Done(given(&known, refresh_ms))));
        }
        let since_ms = now_ms - LOOK_MS;
        let kept = self.snapshot.database()?.connections();
        let mut checked_ms = known.checked_ms;
        if checked_ms <= since_ms && kept.check(at, version, since_ms).await? {
            match self.client.is_active(upstream, &known.tokens.access).await {
                Ok(Some(false)) => {
                    // It ended early, and leaves its refresh token good (RFC 7009, section 2.1): it has expired, for
                    // the children of all replicas, and is refreshed.
                    known.tokens.expires_ms = Some(now_ms);
                    kept.refreshed(at, version, &known.tokens).await?;
                    return Ok(Ok(Step::Again));
                }
                Ok(_) => {}
                Err(error) => warn(at, &error, "a token cannot be looked at"),
            }
            checked_ms = now_ms;
        }
        let next_ms = (checked_ms + LOOK_MS).max(now_ms + SHORT_MS);
        let look_ms = refresh_ms.map_or(next_ms, |at_ms| at_ms.min(next_ms));
        Ok(Ok(Step::Done(given(&known, Some(look_ms)))))
    }

    /// Ends a connection that the upstream does not honour any more.
    async fn end(
        &self,
        at: ConnectionAt<'_>,
        version: i64,
    ) -> Result<Result<Step, Refused>, database::Error> {
        let (kept, author) = (
            self.snapshot.database()?.connections(),
            Author::named(ACTOR),
        );
        let is_ended = kept
            .remove(at, Some(version), "upstream.expired", &author)
            .await?;
        // Another version is another connection.
        Ok(if is_ended {
            Err(Refused::Missing)
        } else {
            Ok(Step::Again)
        })
    }
}

/// Lets the calls that wait use tokens that have expired as they come (`expires_in` 0): otherwise each would be
/// refreshed at once, without end, and none used.
fn stretch(tokens: &mut Tokens, now_ms: i64) {
    if tokens.expires_ms.is_some_and(|at_ms| at_ms <= now_ms) {
        tokens.given_ms = now_ms;
        tokens.expires_ms = Some(now_ms.saturating_add(LEAST_MS));
    }
}

fn unreadable(at: ConnectionAt<'_>, error: &database::Error) -> Refused {
    let (tenant, name) = (at.tenant, at.upstream);
    tracing::warn!(tenant.id = tenant, upstream.name = name, %error, "a connection cannot be read");
    Refused::Unreadable
}

fn warn(at: ConnectionAt<'_>, error: &UpstreamError, what: &str) {
    tracing::warn!(
        tenant.id = at.tenant,
        upstream.name = at.upstream,
        ?error,
        "{what}"
    );
}

fn given(known: &Connection, look_ms: Option<i64>) -> AccessToken {
    AccessToken {
        value: known.tokens.access.clone(),
        version: known.version,
        look_ms,
    }
}

/// The actor of what the gateway does by itself.
const ACTOR: &str = "upstream";
/// The time that a start waits for the refresh of another request: as long as that may wait for metadata and tokens.
const PATIENCE: Duration = Duration::from_secs(12);
/// The time between two looks at it.
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum lines in memory; starts that have lost theirs stand in another one.
const LINES: u64 = 4_096;
/// The time for which a line is kept that nobody stands in: longer than anybody does.
const IDLE: Duration = Duration::from_mins(1);
/// The time for which one replica alone refreshes, in milliseconds: longer than its requests may take.
const LEASE_MS: i64 = 20_000;
/// The time between two attempts to store new tokens while the database is away.
const REPEAT: Duration = Duration::from_millis(250);
/// The time between two attempts at an upstream that is away, in milliseconds.
const BACKOFF_MS: i64 = 5_000;
/// The life of an access token that has expired as a refresh returns it, in milliseconds: the refreshes of a
/// connection are three quarters of it apart.
const LEAST_MS: i64 = 8_000;
/// The time for which the answer of an upstream about a token counts, in milliseconds.
const LOOK_MS: i64 = 60_000;
/// The least time between two looks of one child, in milliseconds.
const SHORT_MS: i64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Secret;

    /// Starts that waited for one refresh read the connection ten times a second each.
    #[tokio::test]
    async fn one_start_at_a_time_looks_at_a_connection_that_is_refreshed() {
        let lines = Lines::new();
        let at = |holder| ConnectionAt {
            tenant: "a",
            upstream: "hub",
            holder,
        };
        let (line, again) = (lines.of(at("ada")).await, lines.of(at("ada")).await);
        let first = line.lock().await;
        assert!(again.try_lock().is_err());
        assert!(lines.of(at("eve")).await.try_lock().is_ok());
        drop(first);
        assert!(again.try_lock().is_ok());
    }

    /// It was refreshed fifty times at each use, and then refused.
    #[test]
    fn tokens_that_have_expired_as_they_come_are_used_for_a_while() {
        let (now_ms, life_ms) = (1_000_000, LEAST_MS);
        for (given_ms, expires_ms, becomes_ms) in [
            (now_ms, Some(now_ms), Some(now_ms + life_ms)),
            (now_ms - 2_000, Some(now_ms - 1_000), Some(now_ms + life_ms)),
            (now_ms, Some(now_ms + 1_000), Some(now_ms + 1_000)),
            (now_ms, None, None),
        ] {
            let mut tokens = Tokens {
                access: Secret::new("at".to_owned()),
                refresh: None,
                given_ms,
                expires_ms,
                authority: String::new(),
            };
            stretch(&mut tokens, now_ms);
            assert_eq!(tokens.expires_ms, becomes_ms);
            assert!(tokens.refresh_ms().is_none_or(|at_ms| at_ms > now_ms));
        }
    }
}
