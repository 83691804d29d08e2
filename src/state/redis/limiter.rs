//! Limits counted for all replicas together, in Redis.
//!
//! While Redis is away each replica counts for itself: together they may give as many times the
//! limit as there are replicas.

#![expect(
    clippy::disallowed_types,
    reason = "short critical sections without an await; a seat that is dropped must not wait"
)]

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
use crate::state::{Account, Later, Limiter, Seat, memory::MemoryLimiter};

/// Limits of all replicas together.
///
/// 1. What is drawn comes from a bucket in Redis; while that is away, from one of this replica.
/// 2. Seats are counted in Redis per replica, as absolute numbers: one task writes the number of
///    an account after each change, and again from time to time, so that what was lost comes
///    right by itself. Replicas without a heartbeat do not count. While Redis is away, an account
///    has as many seats as this replica knows of.
pub(crate) struct RedisLimiter {
    redis: Redis,
    local: Arc<MemoryLimiter>,
    seats: Arc<Seats>,
}

impl RedisLimiter {
    /// The limits of the replica that beats under `boot`; its task runs until `halt`.
    pub(crate) fn new(
        redis: Redis,
        boot: Arc<str>,
        tracker: &TaskTracker,
        halt: CancellationToken,
    ) -> Self {
        let seats = Arc::new(Seats::default());
        let clerk = Clerk {
            redis: redis.clone(),
            boot,
            seats: Arc::clone(&seats),
        };
        tracker.spawn(async move {
            halt.run_until_cancelled(clerk.run()).await;
            // What is out comes back with the heartbeat; nobody is told of more.
            clerk.seats.close();
        });
        Self {
            redis,
            local: Arc::new(MemoryLimiter::default()),
            seats,
        }
    }
}

impl Limiter for RedisLimiter {
    fn draw(self: Arc<Self>, account: Account, rate: u64, wanted: u64) -> Later<'static, u64> {
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

    fn enter(self: Arc<Self>, account: Account, most: u64) -> Later<'static, Option<Seat>> {
        Box::pin(async move {
            let (given, seat) = oneshot::channel();
            self.seats.ask(account, Ask { most, given });
            seat.await.ok().flatten()
        })
    }
}

/// What an account is called in Redis: of a bounded length, and naming nobody.
fn name(kind: &str, account: &Account) -> String {
    kind.to_owned() + &hex(&sha256(account.0.as_bytes())[..16])
}

/// The seats of this replica.
#[derive(Default)]
struct Seats {
    table: Mutex<Table>,
    news: Notify,
}

#[derive(Default)]
struct Table {
    accounts: HashMap<Account, Held>,
    /// Those whose number in Redis may be another one, each once.
    changed: VecDeque<Account>,
    is_closed: bool,
}

/// What this replica has of an account.
#[derive(Default)]
struct Held {
    out: u64,
    asks: VecDeque<Ask>,
    is_changed: bool,
}

/// Somebody wants a seat.
struct Ask {
    most: u64,
    given: oneshot::Sender<Option<Seat>>,
}

impl Seats {
    fn locked(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, account: Account, ask: Ask) {
        let mut table = self.locked();
        if table.is_closed {
            return;
        }
        let held = table.accounts.entry(account.clone()).or_default();
        held.asks.push_back(ask);
        table.change(account);
        drop(table);
        self.news.notify_one();
    }

    fn leave(&self, account: Account) {
        let mut table = self.locked();
        if let Some(held) = table.accounts.get_mut(&account) {
            held.out = held.out.saturating_sub(1);
            table.change(account);
            drop(table);
            self.news.notify_one();
        }
    }

    /// Some accounts that have changed, with how many seats are out and who wants one.
    fn take(&self) -> Vec<Round> {
        let mut table = self.locked();
        let mut rounds = Vec::new();
        while rounds.len() < ROUNDS {
            let Some(account) = table.changed.pop_front() else {
                break;
            };
            let Some(held) = table.accounts.get_mut(&account) else {
                continue;
            };
            held.is_changed = false;
            let mut asks = std::mem::take(&mut held.asks);
            asks.retain(|ask| !ask.given.is_closed());
            rounds.push(Round {
                account,
                out: held.out,
                asks,
            });
        }
        rounds
    }

    /// What came of a round: which asks get a seat. Without an answer it has to be told again.
    fn settle(self: &Arc<Self>, round: Round, answer: Option<Vec<bool>>) {
        let mut given = Vec::new();
        let mut table = self.locked();
        let Some(held) = table.accounts.get_mut(&round.account) else {
            return;
        };
        let is_known = answer.is_some();
        let mut answer = answer.into_iter().flatten();
        for ask in round.asks {
            let has_seat = answer.next().unwrap_or(!is_known && held.out < ask.most);
            held.out += u64::from(has_seat);
            given.push((ask.given, has_seat));
        }
        let is_used = held.out > 0 || !held.asks.is_empty() || held.is_changed;
        if !is_known {
            table.change(round.account.clone());
        } else if !is_used {
            table.accounts.remove(&round.account);
        }
        // A seat that nobody takes any more is dropped, which takes the lock again.
        drop(table);
        for (ask, has_seat) in given {
            let (seats, account) = (Arc::clone(self), round.account.clone());
            let seat = has_seat.then(|| Seat::new(move || seats.leave(account)));
            let _ = ask.send(seat);
        }
    }

    /// All numbers are to be told again.
    fn change_all(&self) {
        let mut table = self.locked();
        let all: Vec<Account> = table.accounts.keys().cloned().collect();
        for account in all {
            table.change(account);
        }
    }

    fn is_settled(&self) -> bool {
        self.locked().changed.is_empty()
    }

    fn close(&self) {
        let mut table = self.locked();
        table.is_closed = true;
        for held in table.accounts.values_mut() {
            held.asks.clear();
        }
    }
}

impl Table {
    fn change(&mut self, account: Account) {
        if let Some(held) = self.accounts.get_mut(&account)
            && !held.is_changed
        {
            held.is_changed = true;
            self.changed.push_back(account);
        }
    }
}

/// One account that is told to Redis.
struct Round {
    account: Account,
    out: u64,
    asks: VecDeque<Ask>,
}

/// The task that tells Redis what changed.
struct Clerk {
    redis: Redis,
    boot: Arc<str>,
    seats: Arc<Seats>,
}

impl Clerk {
    async fn run(&self) {
        let mut told = Instant::now();
        loop {
            if self.seats.is_settled() {
                let left = AGAIN.saturating_sub(told.elapsed());
                let _ = timeout(left, self.seats.news.notified()).await;
            }
            if told.elapsed() >= AGAIN {
                told = Instant::now();
                self.seats.change_all();
            }
            let rounds = self.seats.take();
            if !rounds.is_empty() && !self.tell(rounds).await {
                sleep(DELAY).await;
            }
        }
    }

    /// Whether Redis knows.
    async fn tell(&self, rounds: Vec<Round>) -> bool {
        let calls = rounds.iter().map(|round| self.call(round)).collect();
        let Ok(answers) = self.redis.all(calls).await else {
            for round in rounds {
                self.seats.settle(round, None);
            }
            return false;
        };
        let mut is_told = true;
        for (round, answer) in rounds.into_iter().zip(answers) {
            let answer = answer.ok().and_then(read);
            is_told &= answer.is_some();
            self.seats.settle(round, answer);
        }
        is_told
    }

    fn call(&self, round: &Round) -> Call {
        let key = self.redis.key(&name("seats:", &round.account));
        let mut call = Call::new(Lua::Seats, &[&key])
            .arg(self.redis.key("replica:"))
            .arg(&*self.boot)
            .arg(round.out)
            .arg(ms(STANDS));
        for ask in &round.asks {
            call.add(ask.most);
        }
        call
    }
}

fn read(answer: Value) -> Option<Vec<bool>> {
    Vec::<bool>::from_redis_value(answer).ok()
}

/// Accounts that are told to Redis in one go.
const ROUNDS: usize = 256;
/// How long a number in Redis stands without being told again.
const STANDS: Duration = Duration::from_secs(120);
/// When all numbers are told again.
const AGAIN: Duration = Duration::from_secs(30);
/// Before Redis is told again what it did not take.
const DELAY: Duration = Duration::from_millis(100);
