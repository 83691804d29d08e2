//! Quotas of tenants, principals and addresses: checks that refuse what exceeds a limit.
//!
//! Rates are drawn ahead from the [`Limiter`] in allotments and spent here: no request waits for
//! a store. Sessions and streams take a seat from it when they begin. Calls in flight are counted
//! on this replica alone. Not here: the declared quotas (`declare::quotas`).

use std::{
    array::IntoIter,
    hash::RandomState,
    iter::Flatten,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU64,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    allotments::{Allotment, Allotments, amount, signed},
    memory::{MemoryBudgets, Source},
    turns::Turns,
};
use crate::{
    auth::Access,
    base::FastHash,
    base::budget::Drawn,
    declare::Bounds,
    error::{Error, Limit, Quota},
    protocol::{Body, Kind, Message, Method},
    state::{Account, Limiter, Seat, Use, memory::MemoryLimiter},
    telemetry::{LimitName, Metrics},
};

/// The limits of all tenants, principals and addresses.
pub(crate) struct Limits {
    limiter: Arc<dyn Limiter>,
    /// The calls in flight on this replica.
    calls: MemoryLimiter,
    /// The retries of each caller on this replica.
    retries: Arc<MemoryLimiter>,
    /// Whether other replicas share the limits.
    is_shared: bool,
    /// The allotments of tenants and principals.
    allotments: Allotments<FastHash>,
    /// The allotments of addresses, apart so that a flood of addresses evicts no tenant.
    addresses: Allotments<RandomState>,
    memory: Arc<MemoryBudgets>,
    authorization: Turns,
    born: Instant,
    metrics: Arc<Metrics>,
    tracker: TaskTracker,
    halt: CancellationToken,
}

/// The seats of one call, session or stream: one of its tenant and one of its principal.
pub(crate) type Seats = SmallVec<[Seat; 2]>;

/// The place of a session: its seats, and its part of the memory.
#[derive(Default)]
pub(crate) struct SessionPlace {
    _seats: Seats,
    _memory: Option<Drawn>,
}

/// The seats of the calls of a body, in their order.
pub(crate) type CallSeats = SmallVec<[Seats; 1]>;

/// The rest of a rate that is nearly used up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remaining {
    /// The limit.
    pub(crate) limit: Limit,
    /// The rate per second.
    pub(crate) bound: NonZeroU64,
    /// The rest.
    pub(crate) left: u64,
}

/// The rate of an account.
struct AccountLimit {
    account: Account,
    limit: Limit,
    bound: NonZeroU64,
}

/// The bytes of one connection, which count for its tenant and its principal.
pub(crate) struct Flow {
    limits: Arc<Limits>,
    account_limits: AccountLimits,
}

/// The limits of a principal and its tenant, as far as they are declared.
struct AccountLimits([Option<AccountLimit>; 2]);

impl AccountLimits {
    fn iter(&self) -> impl Iterator<Item = &AccountLimit> {
        self.0.iter().flatten()
    }
}

impl IntoIterator for AccountLimits {
    type Item = AccountLimit;
    type IntoIter = Flatten<IntoIter<Option<AccountLimit>, 2>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

/// The state of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draw {
    /// No draw was due, or its amount is in the balance.
    Done,
    /// Another thread draws, or the limiter has not answered.
    Underway,
}

impl Limits {
    /// Limits of which nothing is used.
    pub(crate) fn new(
        limiter: Arc<dyn Limiter>,
        is_shared: bool,
        memory: Arc<MemoryBudgets>,
        metrics: Arc<Metrics>,
        tracker: TaskTracker,
        halt: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            limiter,
            calls: MemoryLimiter::default(),
            retries: Arc::default(),
            is_shared,
            allotments: Allotments::new(),
            addresses: Allotments::new(),
            memory,
            authorization: Turns::new(AUTHORIZATION),
            born: Instant::now(),
            metrics,
            tracker,
            halt,
        })
    }

    /// The limiter, which other replicas may share.
    pub(crate) fn limiter(&self) -> &Arc<dyn Limiter> {
        &self.limiter
    }

    /// The budgets of memory.
    pub(crate) fn memory(&self) -> &Arc<MemoryBudgets> {
        &self.memory
    }

    /// Counts the refusal of a caller whose share of the memory is used up.
    pub(crate) fn count_no_room(&self) {
        self.metrics.limited.add(LimitName("caller_memory"));
    }

    /// Counts the refusal of a caller whose share of the memory is used up, and makes its error.
    pub(crate) fn no_room(&self, retry: Duration) -> Error {
        self.count_no_room();
        Error::Busy {
            what: "too much of this caller is under way",
            retry,
        }
    }

    /// The turns at authorization servers.
    pub(crate) fn authorization(&self) -> &Turns {
        &self.authorization
    }

    /// Counts one request from an address, before it is authenticated.
    ///
    /// # Errors
    ///
    /// `Quota`.
    pub(crate) fn address(&self, address: IpAddr, bound: NonZeroU64) -> Result<(), Error> {
        let owner = match Source::of(address) {
            Source::V4(bits) => Ipv4Addr::from_bits(bits).to_string(),
            Source::V6(half) => format!("{half:x}"),
        };
        let (limit, owner) = (Limit::AddressRequests, owner.into());
        let account = Account {
            limit: "address",
            owner,
        };
        let rate = AccountLimit {
            account,
            limit,
            bound,
        };
        self.spend(&rate).map(drop)
    }

    /// Counts one request; returns the rest if little is left.
    ///
    /// # Errors
    ///
    /// `Quota`.
    pub(crate) fn request(&self, access: &Access) -> Result<Option<Remaining>, Error> {
        let account_limits = limits_of(
            access,
            Limit::Requests,
            Limit::PrincipalRequests,
            |bounds| bounds.requests_per_second,
        );
        let mut least: Option<Remaining> = None;
        for (at, rate) in account_limits.iter().enumerate() {
            match self.spend(rate) {
                Ok(left) => {
                    let is_least = least.is_none_or(|least| left.left < least.left);
                    least = if is_least { Some(left) } else { least };
                }
                Err(error) => {
                    // A refusal by one rate must not spend the other.
                    for rate in account_limits.iter().take(at) {
                        let now = self.now();
                        let allotment = self.allotments.of(&rate.account, rate.bound.get(), now);
                        allotment.balance.fetch_add(1, Ordering::Relaxed);
                    }
                    return Err(error);
                }
            }
        }
        // Streams pause at zero. Requests are refused once responses owe the bytes of a second.
        for rate in bytes_out(access) {
            let owed = self.balance(&rate).0.saturating_neg();
            if owed > signed(rate.bound.get()) {
                return Err(self.refuse(rate.limit, rate.bound, wait(owed, rate.bound)));
            }
        }
        // With several replicas the rest of all of them is unknown.
        let is_little = |least: &Remaining| least.left < least.bound.get() / 10 && !self.is_shared;
        Ok(least.filter(is_little))
    }

    /// Seats for the calls of a body, in their order: all or none.
    ///
    /// # Errors
    ///
    /// `Quota`.
    pub(crate) fn calls(&self, access: &Access, body: &Body) -> Result<CallSeats, Error> {
        let is_call = |message: &&Message| {
            let is_counted = !matches!(message.method(), Method::Ping | Method::Initialize);
            message.kind() == Kind::Request && is_counted
        };
        let calls = match body {
            Body::One(message) => usize::from(is_call(&message)),
            Body::Batch(items) => items.iter().flatten().filter(is_call).count(),
        };
        let account_limits = limits_of(access, Limit::Calls, Limit::PrincipalCalls, |bounds| {
            bounds.calls
        });
        let seat = |rate: &AccountLimit| {
            let seat = self.calls.seat(&rate.account, rate.bound.get());
            seat.ok_or_else(|| self.refuse(rate.limit, rate.bound, RETRY_CALL))
        };
        let seats = (0..calls).map(|_| account_limits.iter().map(seat).collect());
        seats.collect()
    }

    /// A seat for a task of a principal that may have so many on this replica; none if it has them.
    pub(crate) fn task(&self, access: &Access, most: u64) -> Option<Seat> {
        let (limit, owner) = ("tasks", caller(access));
        self.calls.seat(&Account { limit, owner }, most)
    }

    /// A place for a session.
    ///
    /// # Errors
    ///
    /// `Quota`; `Busy` if the caller's share of the memory has no room for it.
    pub(crate) async fn session(&self, access: &Access) -> Result<SessionPlace, Error> {
        let memory = self.memory.caller(access).draw(SESSION);
        let memory = memory.ok_or_else(|| self.no_room(RETRY_SESSION))?;
        let seats = self
            .take_seats(session_limits(access), RETRY_SESSION)
            .await?;
        Ok(SessionPlace {
            _seats: seats,
            _memory: Some(memory),
        })
    }

    /// The place of a session that exists already. It counts beyond the quotas of its caller too, or new ones would begin
    /// in its place. Seats that the limiter does not give in time are missing, and so is memory that would be the last for
    /// the caller's requests.
    pub(crate) async fn adopted(&self, access: &Access) -> SessionPlace {
        let own = self.memory.caller(access);
        let is_last = !own.has_room(SESSION + own.total() / 64);
        let memory = if is_last { None } else { own.draw(SESSION) };
        let mut seats = Seats::new();
        for rate in session_limits(access) {
            let Ok(seat) = self.enter(rate.account, u64::MAX, RETRY_SESSION).await else {
                break;
            };
            seats.extend(seat);
        }
        SessionPlace {
            _seats: seats,
            _memory: memory,
        }
    }

    /// Seats for a stream.
    ///
    /// # Errors
    ///
    /// `Quota`.
    pub(crate) async fn stream(&self, access: &Access) -> Result<Seats, Error> {
        let account_limits = limits_of(access, Limit::Streams, Limit::PrincipalStreams, |bounds| {
            bounds.streams
        });
        self.take_seats(account_limits, RETRY_CALL).await
    }

    /// Seats for the stream that the answer to a POST may become.
    ///
    /// Most answers never do. Other replicas count a stream once it is one ([`Self::became_stream`]),
    /// so that no call waits for them.
    ///
    /// # Errors
    ///
    /// `Quota`.
    pub(crate) async fn seats_for_post(&self, access: &Access) -> Result<Seats, Error> {
        if !self.is_shared {
            return self.stream(access).await;
        }
        let account_limits = limits_of(access, Limit::Streams, Limit::PrincipalStreams, |bounds| {
            bounds.streams
        });
        let seat = |rate: &AccountLimit| {
            let seat = self.calls.seat(&rate.account, rate.bound.get());
            seat.ok_or_else(|| self.refuse(rate.limit, rate.bound, RETRY_CALL))
        };
        account_limits.iter().map(seat).collect()
    }

    /// Seats for a stream that a POST has become, on all replicas. None if the limit was reached
    /// meanwhile: the stream continues.
    pub(crate) async fn became_stream(&self, access: &Access) -> Seats {
        if self.is_shared {
            self.stream(access).await.unwrap_or_default()
        } else {
            Seats::new()
        }
    }

    async fn take_seats(
        &self,
        account_limits: AccountLimits,
        retry: Duration,
    ) -> Result<Seats, Error> {
        let mut seats = Seats::new();
        for rate in account_limits {
            let seat = self.enter(rate.account, rate.bound.get(), retry).await?;
            seats.push(seat.ok_or_else(|| self.refuse(rate.limit, rate.bound, retry))?);
        }
        Ok(seats)
    }

    /// Uses what a retry of the caller may use once within `window`, on all replicas; false if it was used. While
    /// their store is away, each replica knows of its own use alone.
    ///
    /// # Errors
    ///
    /// `Limit` if the caller retries too often, `Busy` if no more can be remembered.
    pub(crate) async fn once(
        &self,
        access: &Access,
        value: [u8; 32],
        window: Duration,
    ) -> Result<bool, Error> {
        let account = Account {
            limit: "retries",
            owner: caller(access),
        };
        let tenant = Arc::clone(access.principal().tenant_account());
        // Counted before it is remembered, so that no caller fills the table.
        if Arc::clone(&self.retries).draw(account, RETRIES, 1).await == 0 {
            let what = "too many retries of this caller";
            return Err(Error::Limit {
                what,
                retry: RETRY_CALL,
            });
        }
        match Arc::clone(&self.limiter).once(tenant, value, window).await {
            Use::First => Ok(true),
            Use::Again => Ok(false),
            Use::Full => Err(Error::Busy {
                what: "too many retries are remembered",
                retry: RETRY_CALL,
            }),
        }
    }

    /// Takes back the use of a retry that came to nothing.
    pub(crate) async fn give_back(&self, value: [u8; 32]) {
        Arc::clone(&self.limiter).give_back(value).await;
    }

    async fn enter(
        &self,
        account: Account,
        most: u64,
        retry: Duration,
    ) -> Result<Option<Seat>, Error> {
        if let Poll::Ready(seat) = self.limiter.enter_at_once(&account, most) {
            return Ok(seat);
        }
        let entered = Arc::clone(&self.limiter).enter(account, most);
        let entered = timeout(LIMITER_TIMEOUT, entered).await;
        entered.map_err(|_| Error::Busy {
            what: "the limits cannot be read",
            retry,
        })
    }

    /// The byte counter of a connection.
    pub(crate) fn flow(self: &Arc<Self>, access: &Access) -> Flow {
        Flow {
            limits: Arc::clone(self),
            account_limits: bytes_out(access),
        }
    }

    fn refuse(&self, limit: Limit, bound: NonZeroU64, retry: Duration) -> Error {
        self.metrics.limited.add(LimitName(limit.name()));
        Error::Quota(Quota {
            limit,
            bound,
            retry,
        })
    }

    fn spend(&self, rate: &AccountLimit) -> Result<Remaining, Error> {
        let (allotment, drawn) = self.fill(rate);
        let lent = signed(rate.bound.get());
        let taken =
            allotment
                .balance
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |balance| {
                    // While a draw is under way its result is unknown: the rate of a second is lent.
                    let lent = if drawn == Draw::Underway { lent } else { 0 };
                    (balance > -lent).then_some(balance - 1)
                });
        let AccountLimit { limit, bound, .. } = *rate;
        match taken {
            Ok(before) => Ok(Remaining {
                limit,
                bound,
                left: u64::try_from(before - 1).unwrap_or(0),
            }),
            Err(balance) => Err(self.refuse(limit, bound, wait(1 - balance, bound))),
        }
    }

    /// The balance of a rate.
    fn balance(&self, rate: &AccountLimit) -> (i64, Arc<Allotment>) {
        let (allotment, _) = self.fill(rate);
        (allotment.balance.load(Ordering::Relaxed), allotment)
    }

    /// Draws an allotment if one is due.
    fn fill(&self, rate: &AccountLimit) -> (Arc<Allotment>, Draw) {
        let (bound, now) = (rate.bound.get(), self.now());
        let allotment = match rate.limit {
            Limit::AddressRequests => self.addresses.of(&rate.account, bound, now),
            _ => self.allotments.of(&rate.account, bound, now),
        };
        let last = allotment.drawn.load(Ordering::Relaxed);
        let balance = allotment.balance.load(Ordering::Relaxed);
        let since = (last > 0).then(|| now.saturating_sub(last));
        let wanted = match since {
            // Other replicas begin as well: each with one allotment.
            None if self.is_shared => amount(bound),
            since => wanted(bound, balance, since),
        };
        if allotment.is_drawing.load(Ordering::Relaxed) {
            return (allotment, Draw::Underway);
        }
        if wanted == 0 {
            return (allotment, Draw::Done);
        }
        let swapped =
            allotment
                .drawn
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
        if swapped.is_err() {
            return (allotment, Draw::Underway);
        }
        // A new account has begun with an allotment that was not drawn.
        let credit = if last == 0 { amount(bound) } else { 0 };
        let mut draw = Arc::clone(&self.limiter).draw(rate.account.clone(), bound, wanted);
        // A limiter in memory answers at once; no request waits for one in a store.
        let mut context = Context::from_waker(Waker::noop());
        let drawn = match draw.as_mut().poll(&mut context) {
            Poll::Ready(given) => {
                allotment.add(given, credit);
                Draw::Done
            }
            Poll::Pending => {
                allotment.is_drawing.store(true, Ordering::Relaxed);
                let (allotment, halt) = (Arc::clone(&allotment), self.halt.clone());
                self.tracker.spawn(async move {
                    let given = halt
                        .run_until_cancelled(timeout(LIMITER_TIMEOUT, draw))
                        .await;
                    if let Some(Ok(given)) = given {
                        allotment.add(given, credit);
                    }
                    allotment.is_drawing.store(false, Ordering::Relaxed);
                });
                Draw::Underway
            }
        };
        (allotment, drawn)
    }

    /// Milliseconds since the start; never 0.
    fn now(&self) -> u64 {
        let ms = u64::try_from(self.born.elapsed().as_millis());
        ms.unwrap_or(u64::MAX).saturating_add(1)
    }
}

impl Flow {
    /// Counts bytes that were written, or are about to be.
    pub(crate) fn wrote(&self, bytes: usize) {
        for rate in self.account_limits.iter() {
            let (_, allotment) = self.limits.balance(rate);
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            // The debt is bounded, so that no sum overflows.
            let most = signed(rate.bound.get()).saturating_mul(-60);
            let owe = |balance: i64| Some(balance.saturating_sub(bytes).max(most));
            // `owe` always returns a balance.
            let _ = allotment
                .balance
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, owe);
        }
    }

    /// The time for which nothing more may be written.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let waits = self.account_limits.iter().filter_map(|rate| {
            let (balance, _) = self.limits.balance(rate);
            (balance <= 0).then(|| wait(1 - balance, rate.bound))
        });
        waits.max()
    }
}

/// The amount to draw, `since` milliseconds after the last draw: an allotment when less than one
/// is left. After an idle second it is the rate of a second, so that a burst within the rate passes.
fn wanted(bound: u64, balance: i64, since: Option<u64>) -> u64 {
    let missing = u64::try_from(signed(bound).saturating_sub(balance)).unwrap_or(0);
    match since {
        None => bound,
        Some(since) if since >= 1000 => missing.min(bound),
        Some(since) if since >= DRAW_INTERVAL && balance < signed(amount(bound)) => {
            let passed = bound.saturating_mul(since) / 1000;
            passed.max(amount(bound))
        }
        Some(_) => 0,
    }
}

/// The limits of a tenant and a principal. The principal comes first, so that a principal at its own
/// limit spends nothing of its tenant's.
fn limits_of(
    access: &Access,
    of_tenant: Limit,
    of_principal: Limit,
    bound: impl Fn(&Bounds) -> Option<NonZeroU64>,
) -> AccountLimits {
    let (quotas, principal) = (&access.tenant().quotas, access.principal());
    let account_limit = |limit: Limit, owner: &Arc<str>, bound| AccountLimit {
        account: Account {
            limit: limit.name(),
            owner: Arc::clone(owner),
        },
        limit,
        bound,
    };
    AccountLimits([
        bound(&quotas.principal)
            .map(|bound| account_limit(of_principal, principal.account(), bound)),
        bound(&quotas.tenant)
            .map(|bound| account_limit(of_tenant, principal.tenant_account(), bound)),
    ])
}

fn session_limits(access: &Access) -> AccountLimits {
    limits_of(
        access,
        Limit::Sessions,
        Limit::PrincipalSessions,
        |bounds| bounds.sessions,
    )
}

/// The account of a caller: of a principal, and where nothing but the address tells callers apart, of one host.
fn caller(access: &Access) -> Arc<str> {
    let principal = access.principal().account();
    match access.anonymous_from() {
        Some(address) => format!("{principal} {:?}", Source::of(address)).into(),
        None => Arc::clone(principal),
    }
}

fn bytes_out(access: &Access) -> AccountLimits {
    limits_of(
        access,
        Limit::BytesOut,
        Limit::PrincipalBytesOut,
        |bounds| bounds.bytes_out,
    )
}

/// The time until this amount is available.
fn wait(missing: i64, bound: NonZeroU64) -> Duration {
    let missing = u64::try_from(missing).unwrap_or(0);
    let ms = missing.saturating_mul(1000) / bound;
    Duration::from_millis(ms.max(DRAW_INTERVAL))
}

/// Milliseconds between two draws of an account.
const DRAW_INTERVAL: u64 = 100;
/// Retries of a caller per second on one replica that use a ticket once: each takes about 120 bytes until the ticket
/// ends, as a rule for ten minutes, of a table with room for a million.
const RETRIES: u64 = 500;
/// The deadline of the limiter.
const LIMITER_TIMEOUT: Duration = Duration::from_secs(1);
/// Requests of authorization servers at once: more than the database answers before any of them has
/// waited for long.
const AUTHORIZATION: u64 = 512;
/// What a session takes: its task, its tables, and a connection that listens.
const SESSION: u64 = 16 << 10;
/// The `Retry-After` of calls and streams.
const RETRY_CALL: Duration = Duration::from_secs(1);
/// The `Retry-After` of sessions.
const RETRY_SESSION: Duration = Duration::from_secs(10);

#[cfg(test)]
#[path = "../tests/quotas.rs"]
mod tests;
