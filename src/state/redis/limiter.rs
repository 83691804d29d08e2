//! Limits that all replicas share, in Redis.
//!
//! While Redis is away each replica counts alone, so together they may give the limit once per
//! replica.

#![expect(
    clippy::disallowed_types,
    reason = "short critical sections without an await; a seat that is dropped must not wait"
)]

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{FromRedisValue, Value};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    client::{Call, Redis},
    scripts::{Lua, ms},
};
use crate::base::{hex, sha256};
use crate::state::{Account, BoxFuture, Limiter, Seat, Use, memory::MemoryLimiter};

/// The limits of all replicas together.
///
/// 1. Allotments come from a bucket in Redis, or from a local one while Redis is away.
/// 2. Redis counts seats per replica, as absolute numbers. One task writes the number of an account
///    after each change, and all of them from time to time, so that lost numbers are restored.
///    Replicas without a heartbeat do not count. While Redis is away, an account has as many seats
///    as this replica knows of.
/// 3. A value is used here first, then in Redis. While Redis is away, it is good once at each replica. A use whose
///    caller is gone before the answer is taken back.
pub(crate) struct RedisLimiter {
    redis: Redis,
    local: Arc<MemoryLimiter>,
    seats: Arc<Seats>,
    boot: Arc<str>,
    /// Counts the uses of values by this replica.
    uses: AtomicU64,
    tracker: TaskTracker,
}

impl RedisLimiter {
    /// The limits of the replica with the boot id `boot`; its task runs until `halt`.
    pub(crate) fn new(
        redis: Redis,
        boot: Arc<str>,
        tracker: &TaskTracker,
        halt: CancellationToken,
    ) -> Self {
        let seats = Arc::new(Seats::default());
        let reporter = Reporter {
            redis: redis.clone(),
            boot: Arc::clone(&boot),
            seats: Arc::clone(&seats),
        };
        tracker.spawn(async move {
            halt.run_until_cancelled(reporter.run()).await;
            // Seats that are taken lapse with the heartbeat; later requests get no answer.
            reporter.seats.close();
        });
        Self {
            redis,
            local: Arc::new(MemoryLimiter::default()),
            seats,
            boot,
            uses: AtomicU64::new(0),
            tracker: tracker.clone(),
        }
    }
}

impl Limiter for RedisLimiter {
    fn draw(self: Arc<Self>, account: Account, rate: u64, wanted: u64) -> BoxFuture<'static, u64> {
        Box::pin(async move {
            let key = self.redis.key(&name("rate:", &account));
            let call = Call::new(Lua::Draw, &[&key]).arg(rate).arg(wanted);
            let given = self.redis.call(call).await.ok();
            match given.and_then(|given| u64::from_redis_value(given).ok()) {
                Some(given) => given,
                None => Arc::clone(&self.local).draw(account, rate, wanted).await,
            }
        })
    }

    fn enter(self: Arc<Self>, account: Account, most: u64) -> BoxFuture<'static, Option<Seat>> {
        Box::pin(async move {
            let (given, seat) = oneshot::channel();
            self.seats.request(account, SeatRequest { most, given });
            seat.await.ok().flatten()
        })
    }

    fn once(
        self: Arc<Self>,
        tenant: Arc<str>,
        value: [u8; 32],
        window: Duration,
    ) -> BoxFuture<'static, Use> {
        Box::pin(async move {
            // A value that this replica knows costs no request, and Redis may have lost it.
            let here = Arc::clone(&self.local).once(tenant, value, window).await;
            if here != Use::First {
                return here;
            }
            // Also if its caller goes meanwhile: nobody else would know whether Redis has heard of it.
            let (tell, told) = oneshot::channel();
            let tracker = self.tracker.clone();
            tracker.spawn(self.use_in_redis(value, window, tell));
            // The process ends.
            told.await.unwrap_or(Use::Full)
        })
    }

    fn give_back(self: Arc<Self>, value: [u8; 32]) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // Where Redis does not hear of it, the value stays used until its window is over.
            let _ = self.redis.remove(&self.key_of_use(value)).await;
            Arc::clone(&self.local).give_back(value).await;
        })
    }
}

impl RedisLimiter {
    /// Uses a value in Redis that is used here, and takes both back if its caller is gone.
    async fn use_in_redis(
        self: Arc<Self>,
        value: [u8; 32],
        window: Duration,
        tell: oneshot::Sender<Use>,
    ) {
        let key = self.key_of_use(value);
        let number = self.uses.fetch_add(1, Ordering::Relaxed);
        let call = Call::new(Lua::Once, &[&key]);
        let call = call.arg(format!("{} {number}", self.boot)).arg(ms(window));
        let first = self.redis.call(call).await.ok();
        let first = first.and_then(|first| bool::from_redis_value(first).ok());
        let used = match first {
            Some(false) => Use::Again,
            Some(true) | None => Use::First,
        };
        if tell.send(used).is_ok() {
            return;
        }
        match first {
            Some(true) => self.give_back(value).await,
            // The use that Redis may know of is another's.
            None => Arc::clone(&self.local).give_back(value).await,
            Some(false) => {}
        }
    }

    fn key_of_use(&self, value: [u8; 32]) -> String {
        self.redis.key(&format!("once:{}", hex(&value[..16])))
    }
}

/// The name of an account in Redis: of bounded length, and without personal data.
fn name(kind: &str, account: &Account) -> String {
    kind.to_owned() + &hex(&sha256(account.to_string().as_bytes())[..16])
}

/// The seats of this replica.
#[derive(Default)]
struct Seats {
    table: Mutex<Table>,
    changes: Notify,
}

#[derive(Default)]
struct Table {
    accounts: HashMap<Account, Usage>,
    /// Accounts whose number in Redis may be outdated, each once.
    changed: VecDeque<Account>,
    is_closed: bool,
}

/// The use of one account by this replica.
#[derive(Default)]
struct Usage {
    taken: u64,
    requests: VecDeque<SeatRequest>,
    is_changed: bool,
}

/// A request for a seat.
struct SeatRequest {
    most: u64,
    given: oneshot::Sender<Option<Seat>>,
}

impl Seats {
    fn locked(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, account: Account, request: SeatRequest) {
        let mut table = self.locked();
        if table.is_closed {
            return;
        }
        let usage = table.accounts.entry(account.clone()).or_default();
        usage.requests.push_back(request);
        table.change(account);
        drop(table);
        self.changes.notify_one();
    }

    fn leave(&self, account: Account) {
        let mut table = self.locked();
        if let Some(usage) = table.accounts.get_mut(&account) {
            usage.taken = usage.taken.saturating_sub(1);
            table.change(account);
            drop(table);
            self.changes.notify_one();
        }
    }

    /// Takes some changed accounts, with their number of seats and pending requests.
    fn take(&self) -> Vec<Update> {
        let mut table = self.locked();
        let mut updates = Vec::new();
        while updates.len() < MAX_UPDATES {
            let Some(account) = table.changed.pop_front() else {
                break;
            };
            let Some(usage) = table.accounts.get_mut(&account) else {
                continue;
            };
            usage.is_changed = false;
            let mut requests = std::mem::take(&mut usage.requests);
            requests.retain(|request| !request.given.is_closed());
            updates.push(Update {
                account,
                taken: usage.taken,
                requests,
            });
        }
        updates
    }

    /// Applies the reply to an update: gives seats, and repeats the update if there is no reply.
    fn apply(self: &Arc<Self>, update: Update, reply: Option<Vec<bool>>) {
        let mut given = Vec::new();
        let mut table = self.locked();
        let Some(usage) = table.accounts.get_mut(&update.account) else {
            return;
        };
        let is_known = reply.is_some();
        let mut reply = reply.into_iter().flatten();
        for request in update.requests {
            let has_seat = reply
                .next()
                .unwrap_or(!is_known && usage.taken < request.most);
            usage.taken += u64::from(has_seat);
            given.push((request.given, has_seat));
        }
        let is_used = usage.taken > 0 || !usage.requests.is_empty() || usage.is_changed;
        if !is_known {
            table.change(update.account.clone());
        } else if !is_used {
            table.accounts.remove(&update.account);
        }
        // A seat whose caller is gone is dropped at once, which takes the lock again.
        drop(table);
        for (request, has_seat) in given {
            let (seats, account) = (Arc::clone(self), update.account.clone());
            let seat = has_seat.then(|| Seat::new(move || seats.leave(account)));
            let _ = request.send(seat);
        }
    }

    /// Marks all accounts as changed.
    fn change_all(&self) {
        let mut table = self.locked();
        let all: Vec<Account> = table.accounts.keys().cloned().collect();
        for account in all {
            table.change(account);
        }
    }

    fn is_sent(&self) -> bool {
        self.locked().changed.is_empty()
    }

    fn close(&self) {
        let mut table = self.locked();
        table.is_closed = true;
        for usage in table.accounts.values_mut() {
            usage.requests.clear();
        }
    }
}

impl Table {
    fn change(&mut self, account: Account) {
        if let Some(usage) = self.accounts.get_mut(&account)
            && !usage.is_changed
        {
            usage.is_changed = true;
            self.changed.push_back(account);
        }
    }
}

/// The update of one account in Redis.
struct Update {
    account: Account,
    taken: u64,
    requests: VecDeque<SeatRequest>,
}

/// The task that writes the numbers to Redis.
struct Reporter {
    redis: Redis,
    boot: Arc<str>,
    seats: Arc<Seats>,
}

impl Reporter {
    async fn run(&self) {
        let mut renewed = Instant::now();
        loop {
            if self.seats.is_sent() {
                let left = RENEWAL.saturating_sub(renewed.elapsed());
                let _ = timeout(left, self.seats.changes.notified()).await;
            }
            if renewed.elapsed() >= RENEWAL {
                renewed = Instant::now();
                self.seats.change_all();
            }
            let updates = self.seats.take();
            if !updates.is_empty() && !self.send(updates).await {
                sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Returns whether Redis took all updates.
    async fn send(&self, updates: Vec<Update>) -> bool {
        let calls = updates.iter().map(|update| self.call(update)).collect();
        let Ok(replies) = self.redis.all(calls).await else {
            for update in updates {
                self.seats.apply(update, None);
            }
            return false;
        };
        let mut is_complete = true;
        for (update, reply) in updates.into_iter().zip(replies) {
            let reply = reply.ok().and_then(read);
            is_complete &= reply.is_some();
            self.seats.apply(update, reply);
        }
        is_complete
    }

    fn call(&self, update: &Update) -> Call {
        let key = self.redis.key(&name("seats:", &update.account));
        let mut call = Call::new(Lua::Seats, &[&key])
            .arg(self.redis.key("replica:"))
            .arg(&*self.boot)
            .arg(update.taken)
            .arg(ms(COUNT_TTL));
        for request in &update.requests {
            call.add(request.most);
        }
        call
    }
}

fn read(reply: Value) -> Option<Vec<bool>> {
    Vec::<bool>::from_redis_value(reply).ok()
}

/// Maximum number of accounts in one pipeline.
const MAX_UPDATES: usize = 256;
/// The time that a number in Redis is valid without a renewal.
const COUNT_TTL: Duration = Duration::from_secs(120);
/// The interval at which all numbers are renewed.
const RENEWAL: Duration = Duration::from_secs(30);
/// The delay before a failed update is retried.
const RETRY_DELAY: Duration = Duration::from_millis(100);
