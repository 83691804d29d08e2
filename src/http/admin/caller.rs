//! Callers of the administration API: authentication by API key, and permissions.
//!
//! An operator sees every tenant. A tenant's administrator sees its own tenant, and cannot declare
//! what the gateway starts or connects to. Not here: API keys (`auth`).

use std::{
    net::IpAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header::WWW_AUTHENTICATE, request::Parts};
use tokio::{task::spawn_blocking, time::timeout};

use super::request::{Path, read_document};
use crate::{
    auth::{ADMIN_SCOPE, Administrator, AdministratorRefusal},
    base::budget::{Budget, OwnersTurn, Turns},
    config::ClientAddress,
    database::{self, Author, ForAdministrator},
    declare::{AuthMode, Document},
    http::{
        Front,
        admission::{bearer, challenge::REALM},
        reply::Problem,
    },
    oauth::Throttle,
    snapshot::Snapshot,
};

/// An authenticated administrator.
pub(super) struct Caller {
    pub(super) administrator: Administrator,
    /// The snapshot at the time of the request.
    pub(super) snapshot: Arc<Snapshot>,
    /// The address of the client.
    from: Option<IpAddr>,
}

/// What administrators of a tenant ask for and all replicas learn of: by a numbered row, which is kept for a day and read
/// at each start, or by a change, behind which they read the tenant again. Each is a record of the audit trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbered {
    /// A restart of a server, which ends children.
    Restart,
    /// A new signing key, or the end of one: every replica reads the public keys of all tenants again, and keeps the id
    /// of a removed one in memory.
    SigningKey,
    /// A change of an object, a new API key or another value of a secret: programs that keep a tenant in order make many
    /// at once, and must not use up the ends of access.
    Change,
    /// The end of access, or the removal of a secret.
    Other,
}

/// Permission that an operation requires of its caller, and the objects that its path must name.
///
/// A tenant that the caller may not see gets the same response as a tenant that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// Every administrator; the handler restricts a tenant's administrator to its tenant.
    Administrator,
    /// Operators.
    Operator,
    /// Administrators of the tenant in the path.
    Tenant,
    /// Operators, for an existing tenant in the path.
    OperatorOfTenant,
    /// Administrators of the tenant in the path, for an existing server in the path.
    Server,
    /// Administrators of the tenant in the path, if it has its own authorization server.
    Issuer,
}

impl Caller {
    /// Authenticates the sender of a request by its head, before the body is read; `tenant` is that of
    /// its path.
    pub(super) async fn authenticated(
        parts: &Parts,
        tenant: Option<&str>,
        front: &Front,
    ) -> Result<Self, Response> {
        let credential = bearer::credential(&parts.headers)
            .map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "Authorization is repeated"))
            .map_err(IntoResponse::into_response)?;
        let snapshot = front.snapshot.load();
        if snapshot.version.is_none() {
            return Err(Problem::unavailable().into_response());
        }
        let from = parts.extensions.get::<ClientAddress>();
        let keys = (&*snapshot.catalog, &snapshot.operator_keys);
        let from = from.map(|from| from.0);
        let found = front.auth.administrator(keys, credential, tenant, from);
        match found {
            Ok(administrator) => Ok(Self {
                administrator,
                snapshot,
                from,
            }),
            // Nothing was reported: keys that are made up cost nothing.
            Err(AdministratorRefusal::NotRead) => Err(challenge(AdministratorRefusal::NotRead)),
            Err(why) => {
                front.auth.settle().await;
                Err(challenge(why))
            }
        }
    }

    /// Reads what another replica changed and this one does not know yet, and returns whether there
    /// was something: behind a load balancer, a tenant and its first server arrive at two replicas.
    ///
    /// # Errors
    ///
    /// There is no turn for it, or the database cannot be read: what is not known here may be declared there.
    pub(super) async fn catch_up(&mut self, front: &Front) -> Result<bool, Problem> {
        let snapshot = &front.snapshot;
        if snapshot.database().is_err() {
            return Ok(false);
        }
        // Names that are made up ask a database that is known to be away for nothing.
        if !snapshot.is_complete() {
            return Err(Problem::unavailable());
        }
        let _turn = self.turn().await?;
        let reached = snapshot.poll().await.map_err(|_| Problem::unavailable())?;
        if snapshot.load().version < Some(reached) {
            match snapshot.refresh_to(reached).await {
                Ok(()) => {}
                Err(database::Error::Unavailable(_)) => return Err(Problem::unavailable()),
                Err(failure) => {
                    tracing::warn!(%failure, "a change of another replica is not served yet");
                }
            }
        }
        let known = self.snapshot.version;
        self.snapshot = snapshot.load();
        Ok(known != self.snapshot.version)
    }

    /// Counts what the administrators of a tenant ask for; operators have no bound.
    ///
    /// # Errors
    ///
    /// The bound of the minute is reached.
    pub(super) fn count(&self, what: Numbered, tenant: &str) -> Result<(), Problem> {
        if self.administrator.is_operator() {
            return Ok(());
        }
        what.count(what.asked(), tenant)
    }

    /// Gives back what [`Self::count`] took for a change that changed nothing.
    pub(super) fn give_back(&self, what: Numbered, tenant: &str) {
        if !self.administrator.is_operator() {
            what.asked().refund(&tenant);
        }
    }

    /// The database as this caller may use it, at its turn, which is waited for. Take it behind the body of the request,
    /// whose sender may be slow.
    ///
    /// # Errors
    ///
    /// There is no turn for it, or its key has ended since the head of the request was admitted.
    pub(super) async fn store<'f>(
        &self,
        front: &'f Front,
    ) -> Result<ForAdministrator<'f>, Problem> {
        let database = self.database(front)?;
        let turn = self.turn().await?;
        self.check_key(front)?;
        Ok(database.at(turn.into_iter().collect()))
    }

    /// Refuses a caller whose key has ended since the head of the request was admitted: the next head is told why.
    fn check_key(&self, front: &Front) -> Result<(), Problem> {
        let snapshot = front.snapshot.load();
        let keys = (&*snapshot.catalog, &snapshot.operator_keys);
        if front.auth.is_still(keys, &self.administrator) {
            return Ok(());
        }
        let text = "the API key has ended since the request began";
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, text);
        Err(problem.with_retry(Duration::from_secs(1)))
    }

    /// The same for a change of a declared object of a tenant, or of none, at its turn as well.
    pub(super) async fn store_to_change<'f>(
        &self,
        front: &'f Front,
        tenant: Option<&str>,
    ) -> Result<ForAdministrator<'f>, Problem> {
        let database = self.database(front)?;
        let (Some(changes), Some(tenant)) = (database.changes(), tenant) else {
            return self.store(front).await;
        };
        let all = LazyLock::force(&TURNS);
        let turns = in_turn([changes, all], [tenant, self.owner()]).await?;
        self.check_key(front)?;
        Ok(database.at(turns.into()))
    }

    fn database<'f>(&self, front: &'f Front) -> Result<ForAdministrator<'f>, Problem> {
        let database = front.snapshot.database()?;
        Ok(database.for_administrator(self.administrator.is_operator()))
    }

    /// Parses a document. Of an object it is kept until the change is made: take the turn of that first.
    pub(super) async fn parsed(&self, body: Bytes) -> Result<Document, Problem> {
        parsed(&PARSING, self.owner(), body).await
    }

    /// The share of this caller's address in the memory for requests, which the parts of a stream are drawn from: the gate
    /// counts complete answers alone.
    pub(super) fn memory(&self, front: &Front) -> Arc<Budget> {
        let memory = front.hub.limits().memory();
        match self.from {
            Some(address) => memory.address(address),
            None => Arc::clone(memory.requests()),
        }
    }

    /// Waits for a turn of the caller's tenant. Operators wait for none: they have connections of their own.
    async fn turn(&self) -> Result<Option<OwnersTurn>, Problem> {
        if self.administrator.is_operator() {
            return Ok(None);
        }
        taken(&TURNS, self.owner()).await.map(Some)
    }

    /// The turns at reads of the audit trail, and the name that this caller takes them by: tenants' administrators have
    /// one, operators their own.
    pub(super) fn scans(&self) -> (&'static Turns, &str) {
        if self.administrator.is_operator() {
            (LazyLock::force(&SCANS), self.administrator.actor.as_str())
        } else {
            (LazyLock::force(&TURNS), self.owner())
        }
    }

    /// The owner of this caller's turns: its tenant, and for operators the name of none.
    pub(super) fn owner(&self) -> &str {
        let own = self.administrator.tenants().and_then(<[String]>::first);
        own.map_or("", String::as_str)
    }

    /// Returns the author of this caller's changes, for the audit trail.
    pub(super) fn author(&self) -> Author {
        Author::named(&self.administrator.actor)
    }

    fn require_operator(&self) -> Result<(), Problem> {
        if self.administrator.is_operator() {
            return Ok(());
        }
        let text = "this is for operators";
        Err(Problem::new(StatusCode::FORBIDDEN, text))
    }

    fn require_tenant(&self, tenant: &str) -> Result<(), Problem> {
        let exists = self.snapshot.catalog.tenants.contains_key(tenant);
        if exists && self.administrator.sees(tenant) {
            Ok(())
        } else {
            Err(Problem::no_such("tenant", tenant))
        }
    }

    fn require_issuer(&self, tenant: &str) -> Result<(), Problem> {
        let found = self.snapshot.catalog.tenants.get(tenant);
        if found.is_some_and(|tenant| matches!(tenant.auth, AuthMode::Builtin(_))) {
            return Ok(());
        }
        let text = "the tenant has no authorization server of its own";
        Err(Problem::new(StatusCode::CONFLICT, text))
    }
}

impl Numbered {
    /// The most of a tenant's administrators in a minute. No person and no script that keeps a tenant in order comes near.
    fn bound(self) -> u32 {
        match self {
            Self::Restart => 60,
            Self::SigningKey => 10,
            Self::Change | Self::Other => 600,
        }
    }

    /// What was asked for in the last minute, by tenant. Each has a table of its own, in which two tenants may share a
    /// place.
    fn asked(self) -> &'static Throttle {
        match self {
            Self::Restart => &RESTARTS,
            Self::SigningKey => &SIGNING_KEYS,
            Self::Change => &CHANGES,
            Self::Other => &OTHERS,
        }
    }

    fn count(self, asked: &Throttle, tenant: &str) -> Result<(), Problem> {
        asked.spend(&tenant, self.bound()).map_err(|left| {
            let what = match self {
                Self::Restart => "the servers of the tenant were restarted",
                Self::SigningKey => "the signing keys of the tenant were changed",
                Self::Change => "objects and secrets of the tenant were changed",
                Self::Other => "access to the tenant was ended",
            };
            let text = format!("{what} too often in the last minute");
            Problem::new(StatusCode::TOO_MANY_REQUESTS, text).with_retry(left)
        })
    }
}

impl Permission {
    /// Refuses a caller that lacks this permission for `path`.
    pub(super) fn check(self, caller: &Caller, path: &Path) -> Result<(), Problem> {
        let tenant = path.tenant();
        match self {
            Self::Administrator => Ok(()),
            Self::Operator => caller.require_operator(),
            Self::Tenant => caller.require_tenant(tenant),
            Self::OperatorOfTenant => caller
                .require_tenant(tenant)
                .and_then(|()| caller.require_operator()),
            Self::Server => {
                caller.require_tenant(tenant)?;
                let name = path.name();
                let found = caller.snapshot.catalog.find(tenant, name);
                let missing = || Problem::no_such("server", &format!("{tenant}/{name}"));
                found.map(drop).ok_or_else(missing)
            }
            Self::Issuer => caller
                .require_tenant(tenant)
                .and_then(|()| caller.require_issuer(tenant)),
        }
    }
}

fn challenge(why: AdministratorRefusal) -> Response {
    let (status, text, challenge) = match why {
        AdministratorRefusal::NoToken => (
            StatusCode::UNAUTHORIZED,
            "an API key is needed",
            format!("Bearer realm=\"{REALM}\""),
        ),
        AdministratorRefusal::BadToken => (
            StatusCode::UNAUTHORIZED,
            "no such API key",
            format!("Bearer realm=\"{REALM}\", error=\"invalid_token\""),
        ),
        AdministratorRefusal::NotRead => return Problem::unavailable().into_response(),
        AdministratorRefusal::NoScope => (
            StatusCode::FORBIDDEN,
            "the API key lacks the scope admin",
            format!("Bearer error=\"insufficient_scope\", scope=\"{ADMIN_SCOPE}\""),
        ),
    };
    let mut response = Problem::new(status, text).into_response();
    if let Ok(value) = HeaderValue::try_from(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, value);
    }
    response
}

/// Parses a document: a long one beside few others, off the threads that serve requests. The turn is kept until the tree is
/// made, whether or not the sender still waits for it.
async fn parsed(turns: &Turns, owner: &str, body: Bytes) -> Result<Document, Problem> {
    if body.len() <= QUICK {
        return read_document(&body);
    }
    let turn = taken(turns, owner).await?;
    let parsed = spawn_blocking(move || {
        let parsed = read_document(&body);
        drop(turn);
        parsed
    });
    parsed.await.unwrap_or_else(|error| {
        let bug = format!("a body is not parsed: {error}");
        Err(Problem::of(database::Error::Bug(bug), false))
    })
}

/// Waits for a turn, but not for long.
pub(super) async fn taken(turns: &Turns, owner: &str) -> Result<OwnersTurn, Problem> {
    within(WAIT, turns.take(owner)).await
}

/// Waits for the turn of a tenant at a change, and then for that of an owner at the database: changes that wait for one
/// another keep nobody from it.
async fn in_turn(
    [changes, all]: [&Turns; 2],
    [tenant, owner]: [&str; 2],
) -> Result<[OwnersTurn; 2], Problem> {
    let change = taken(changes, tenant).await?;
    Ok([change, taken(all, owner).await?])
}

/// Waits for a turn as long as the limit.
pub(super) async fn within(
    limit: Duration,
    turn: impl Future<Output = OwnersTurn>,
) -> Result<OwnersTurn, Problem> {
    timeout(limit, turn).await.map_err(|_| Problem::busy())
}

/// Turns of tenants' administrators at the database: half of the connections that they share with outsiders.
static TURNS: LazyLock<Turns> = LazyLock::new(|| Turns::new(4));
/// Turns of operators at the audit trail, which they read by the same connections: a page may take as long as a
/// statement may.
static SCANS: LazyLock<Turns> = LazyLock::new(|| Turns::new(2));
/// Turns at documents that are parsed, each of which takes a hundred times its length meanwhile.
static PARSING: LazyLock<Turns> = LazyLock::new(|| Turns::new(4));
/// Restarts by tenants' administrators.
static RESTARTS: LazyLock<Throttle> = LazyLock::new(Throttle::new);
/// Changes of signing keys by them.
static SIGNING_KEYS: LazyLock<Throttle> = LazyLock::new(Throttle::new);
/// Changes of objects and secrets by them.
static CHANGES: LazyLock<Throttle> = LazyLock::new(Throttle::new);
/// What else they ask for of [`Numbered`].
static OTHERS: LazyLock<Throttle> = LazyLock::new(Throttle::new);
/// Bytes that are parsed within a millisecond.
const QUICK: usize = 16 << 10;
/// Time limit for a turn.
pub(super) const WAIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::caller::*;

    /// Those of operators had no bound: eight of them took all connections by which people log in.
    #[tokio::test]
    async fn operators_read_the_trail_in_turn_beside_tenants() {
        let turn = |owner: &'static str| SCANS.take(owner).now_or_never();
        let first = turn("operator:first");
        assert!(first.is_some() && turn("operator:first").is_none());
        let second = turn("operator:second");
        assert!(second.is_some() && turn("operator:third").is_none());
        assert!(TURNS.take("a").now_or_never().is_some());
    }

    /// There was no bound: 64 KiB that counted became 5 MiB that did not, in each thread for what blocks.
    #[tokio::test]
    async fn long_documents_are_parsed_in_turn() {
        let turns = Turns::new(4);
        let long = Bytes::from(format!("{{\"a\": \"{}\"}}", "x".repeat(QUICK)));
        let held = [(); 3].map(|()| turns.take("a").now_or_never().unwrap());
        let mut waiting = Box::pin(parsed(&turns, "a", long.clone()));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(parsed(&turns, "a", Bytes::from_static(b"{}")).await.is_ok());
        assert!(parsed(&turns, "b", long.clone()).await.is_ok());
        assert!(parsed(&turns, "b", long.slice(1..)).await.is_err());
        assert!((&mut waiting).now_or_never().is_none());
        drop(held);
        assert_eq!(waiting.await.unwrap().len(), 1);
        // The sender of one that is parsed has left.
        drop(Box::pin(parsed(&turns, "a", long)).now_or_never());
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(turns.take("a").await);
        }
    }

    /// Three of a tenant held three of the four turns, two of them only to wait for the first.
    #[tokio::test]
    async fn changes_that_wait_for_one_another_hold_no_turn_at_the_database() {
        let (changes, all) = (Turns::new(2), Turns::new(4));
        let change = || Box::pin(in_turn([&changes, &all], ["a", "a"]));
        let under_way = change().await.unwrap();
        let mut waiting = [change(), change()];
        for one in &mut waiting {
            assert!(one.now_or_never().is_none());
        }
        let reads = [(); 2].map(|()| all.take("a").now_or_never().unwrap());
        assert!(change().now_or_never().is_none());
        assert!(changes.take("b").now_or_never().is_some());
        drop((under_way, reads));
        for one in waiting {
            one.await.map(drop).unwrap();
        }
    }

    /// A tenant's administrator could write so many rows that no replica would read them in time at its start.
    #[tokio::test]
    async fn rows_of_a_tenant_are_bounded_by_the_minute() {
        let all = [
            (Numbered::Restart, 60),
            (Numbered::SigningKey, 10),
            (Numbered::Change, 600),
            (Numbered::Other, 600),
        ];
        for (what, most) in all {
            let asked = Throttle::new();
            for _ in 0..most {
                what.count(&asked, "a").unwrap();
            }
            let refused = what.count(&asked, "a").unwrap_err().into_response();
            assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
            let retry = refused.headers()["retry-after"].to_str().unwrap();
            assert!((1..=60).contains(&retry.parse::<u64>().unwrap()), "{retry}");
            assert!(what.count(&asked, "b").is_ok());
        }
    }

    /// The requests of one tenant's administrators were in front of everybody else's, without an end.
    #[tokio::test]
    async fn a_tenant_whose_turns_are_taken_is_told_to_come_again() {
        let turns = Turns::new(4);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(taken(&turns, "a").await.unwrap());
        }
        let waiting = within(Duration::from_millis(1), turns.take("a"));
        let refused = waiting.await.map(drop).unwrap_err();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        let refused = refused.into_response();
        assert!(refused.headers().contains_key("retry-after"));
        assert!(taken(&turns, "b").await.is_ok());
        held.clear();
        assert!(taken(&turns, "a").await.is_ok());
    }
}
