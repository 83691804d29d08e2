//! Contract tests of the limiter, in memory, on Redis and on Valkey.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::contract::{KINDS, Kind, Server, keys, redis, replica, until};
use crate::state::{
    Account, Directory, Limiter, Seat, Use,
    memory::MemoryLimiter,
    redis::{Redis, RedisDirectory, RedisLimiter},
};

fn account(name: &str) -> Account {
    Account {
        limit: "test",
        owner: name.into(),
    }
}

async fn enter(limiter: &Arc<dyn Limiter>, name: &str, most: u64) -> Option<Seat> {
    Arc::clone(limiter).enter(account(name), most).await
}

async fn seats_are_as_many_as_allowed_and_come_back(limiter: &Arc<dyn Limiter>) {
    let (one, two) = (enter(limiter, "a", 2).await, enter(limiter, "a", 2).await);
    assert!(one.is_some() && two.is_some());
    assert!(enter(limiter, "a", 2).await.is_none());
    assert!(enter(limiter, "b", 2).await.is_some(), "another account");
    drop(one);
    // A future that is dropped early takes no seat.
    drop(Arc::clone(limiter).enter(account("a"), 2));
    let again = enter(limiter, "a", 2).await;
    assert!(again.is_some() && enter(limiter, "a", 2).await.is_none());
}

async fn many_tasks_take_no_more_than_there_is(limiter: &Arc<dyn Limiter>) {
    let tasks = (0..200).map(|_| enter(limiter, "many", 50));
    let seats = futures_util::future::join_all(tasks).await;
    assert_eq!(seats.iter().flatten().count(), 50);
    drop(seats);
    let tasks = (0..200).map(|_| enter(limiter, "many", 50));
    let seats = futures_util::future::join_all(tasks).await;
    assert_eq!(seats.iter().flatten().count(), 50, "and the same again");
}

/// Draws for `ms` milliseconds as fast as possible; returns the amount drawn and the maximum
/// allowed.
async fn drawn(limiters: &[&Arc<dyn Limiter>], name: &str, rate: u64, ms: u64) -> (u64, f64) {
    let began = Instant::now();
    let mut given = 0;
    while began.elapsed() < Duration::from_millis(ms) {
        for limiter in limiters {
            given += Arc::clone(limiter)
                .draw(account(name), rate, rate / 10)
                .await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let most = rate as f64 * (1.0 + began.elapsed().as_secs_f64());
    (given, most)
}

async fn a_rate_is_kept_whoever_draws(limiters: &[&Arc<dyn Limiter>]) {
    let (given, most) = drawn(limiters, "a", 1000, 500).await;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let share = given as f64 / most;
    assert!((0.9..=1.0).contains(&share), "{given} of {most}");
    let limiter = limiters[0];
    let other = Arc::clone(limiter).draw(account("b"), 10, 100).await;
    assert_eq!(
        other, 10,
        "another account has its second at once, and no more"
    );
    assert_eq!(Arc::clone(limiter).draw(account("b"), 10, 1).await, 0);
}

/// `limiters` are those of all replicas.
async fn a_value_is_good_once_at_whichever_replica(limiters: &[&Arc<dyn Limiter>]) {
    let minute = Duration::from_secs(60);
    let once = |at: usize, value: u8, window| {
        Arc::clone(limiters[at % limiters.len()]).once("a".into(), [value; 32], window)
    };
    assert_eq!(once(0, 1, minute).await, Use::First);
    for at in 0..4 {
        assert_eq!(once(at, 1, minute).await, Use::Again);
    }
    assert_eq!(once(1, 2, minute).await, Use::First, "another value");
    Arc::clone(limiters[0]).give_back([5; 32]).await;
    assert_eq!(once(0, 5, minute).await, Use::First, "it was not used");
    Arc::clone(limiters[0]).give_back([5; 32]).await;
    assert_eq!(once(1, 5, minute).await, Use::First, "given back");
    assert_eq!(once(0, 5, minute).await, Use::Again);
    let uses = (0..50).map(|at| once(at, 3, minute));
    let uses = futures_util::future::join_all(uses).await;
    let first = uses.iter().filter(|used| **used == Use::First);
    assert_eq!(first.count(), 1, "{uses:?}");
    let short = Duration::from_millis(50);
    assert_eq!(once(0, 4, short).await, Use::First);
    until("it is forgotten", async || {
        once(1, 4, short).await == Use::First
    })
    .await;
}

/// The limiter of one live replica.
struct Side {
    limiter: Arc<dyn Limiter>,
    redis: Redis,
    boot: &'static str,
    tracker: TaskTracker,
    halt: CancellationToken,
}

impl Side {
    async fn on(server: &Server, boot: &'static str) -> Self {
        let (tracker, halt) = (TaskTracker::new(), CancellationToken::new());
        let redis = redis(server, &tracker, &halt);
        let limiter = RedisLimiter::new(redis.clone(), boot.into(), &tracker, halt.clone());
        let side = Self {
            limiter: Arc::new(limiter),
            redis,
            boot,
            tracker,
            halt,
        };
        side.beat().await;
        side
    }

    async fn beat(&self) {
        let directory = RedisDirectory::new(self.redis.clone(), self.boot.into(), keys());
        directory.beat(&replica(self.boot)).await.unwrap();
    }

    async fn leave(&self) {
        let directory = RedisDirectory::new(self.redis.clone(), self.boot.into(), keys());
        directory.leave(&replica(self.boot)).await;
    }

    async fn enter(&self, most: u64) -> Option<Seat> {
        enter(&self.limiter, "shared", most).await
    }

    async fn end(self) {
        self.halt.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[tokio::test]
async fn memory_keeps_the_promises() {
    let limiter: Arc<dyn Limiter> = Arc::new(MemoryLimiter::default());
    seats_are_as_many_as_allowed_and_come_back(&limiter).await;
    many_tasks_take_no_more_than_there_is(&limiter).await;
    a_rate_is_kept_whoever_draws(&[&limiter]).await;
    a_value_is_good_once_at_whichever_replica(&[&limiter]).await;
}

#[tokio::test]
async fn redis_keeps_the_promises_of_a_limiter() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (one, two) = (
            Side::on(&server, "one").await,
            Side::on(&server, "two").await,
        );
        seats_are_as_many_as_allowed_and_come_back(&one.limiter).await;
        many_tasks_take_no_more_than_there_is(&two.limiter).await;
        let both = [&one.limiter, &two.limiter];
        a_rate_is_kept_whoever_draws(&both).await;
        a_value_is_good_once_at_whichever_replica(&both).await;
        one.end().await;
        two.end().await;
        let left = || {
            let keys = server.keys();
            keys.into_iter().filter(|key| key.contains(":rate:"))
        };
        until("buckets go", async || left().count() == 0).await;
    }
}

#[tokio::test]
async fn seats_are_counted_over_all_living_replicas() {
    let server = Server::start(Kind::Redis);
    let (one, two) = (
        Side::on(&server, "one").await,
        Side::on(&server, "two").await,
    );
    let seats = [one.enter(3).await, one.enter(3).await, two.enter(3).await];
    assert!(seats.iter().all(Option::is_some));
    assert!(one.enter(3).await.is_none() && two.enter(3).await.is_none());
    let [first, ..] = seats;
    drop(first);
    let mut again = None;
    until("a seat comes back", async || {
        again = two.enter(3).await;
        again.is_some()
    })
    .await;
    // Replica `one` withdraws its heartbeat and releases no seat: its seats no longer count.
    one.leave().await;
    let more = [two.enter(3).await, two.enter(3).await];
    assert!(more.iter().flatten().count() == 1 && more[0].is_some());
    // A lost count is restored by the next one, because counts are absolute.
    server.command(&["FLUSHALL"]);
    one.beat().await;
    two.beat().await;
    assert!(two.enter(2).await.is_none());
    assert!(two.enter(4).await.is_some());
    one.end().await;
    two.end().await;
}

/// A client that lost its connection meanwhile was told that its retry had been made.
#[tokio::test]
async fn a_use_whose_caller_is_gone_is_taken_back() {
    let server = Server::start(Kind::Redis);
    let (one, two) = (
        Side::on(&server, "one").await,
        Side::on(&server, "two").await,
    );
    let once =
        |side: &Side| Arc::clone(&side.limiter).once("a".into(), [1; 32], Duration::from_secs(60));
    server.pause();
    let gone = timeout(Duration::from_millis(50), once(&one)).await;
    assert!(gone.is_err(), "{gone:?}");
    server.resume();
    until("it is good again", async || once(&one).await == Use::First).await;
    assert_eq!(once(&two).await, Use::Again);
    one.end().await;
    two.end().await;
}

#[tokio::test]
async fn while_redis_is_away_a_replica_counts_for_itself() {
    let mut server = Server::start(Kind::Redis);
    let one = Side::on(&server, "one").await;
    let first = one.enter(2).await;
    assert!(first.is_some());
    server.kill();
    let second = one.enter(2).await;
    assert!(second.is_some() && one.enter(2).await.is_none());
    let once = || Arc::clone(&one.limiter).once("a".into(), [1; 32], Duration::from_secs(60));
    assert_eq!((once().await, once().await), (Use::First, Use::Again));
    let draw = || Arc::clone(&one.limiter).draw(account("a"), 10, 100);
    assert_eq!((draw().await, draw().await), (10, 0));
    drop(second);
    server.restart();
    until("it is told again", async || {
        let keys = server.keys();
        keys.iter().any(|key| key.contains(":seats:"))
    })
    .await;
    one.beat().await;
    assert!(one.enter(1).await.is_none(), "the first one is out still");
    one.end().await;
}
