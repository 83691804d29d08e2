//! Tests of `hub::limits::quotas`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::super::allotments::MAX_ACCOUNTS;
use super::super::quotas::*;
use crate::{
    config::Format,
    manifest::reader,
    state::{BoxFuture, Use},
};

/// A limiter that answers draws and seats only with a permit of the test, like a slow store.
struct Slow {
    limiter: Arc<MemoryLimiter>,
    answers: Arc<Semaphore>,
}

impl Limiter for Slow {
    fn draw(self: Arc<Self>, account: Account, rate: u64, wanted: u64) -> BoxFuture<'static, u64> {
        Box::pin(async move {
            self.answers.acquire().await.unwrap().forget();
            Arc::clone(&self.limiter).draw(account, rate, wanted).await
        })
    }

    fn enter(self: Arc<Self>, account: Account, most: u64) -> BoxFuture<'static, Option<Seat>> {
        Box::pin(async move {
            self.answers.acquire().await.unwrap().forget();
            Arc::clone(&self.limiter).enter(account, most).await
        })
    }

    fn once(
        self: Arc<Self>,
        tenant: Arc<str>,
        value: [u8; 32],
        window: Duration,
    ) -> BoxFuture<'static, Use> {
        Arc::clone(&self.limiter).once(tenant, value, window)
    }

    fn give_back(self: Arc<Self>, value: [u8; 32]) -> BoxFuture<'static, ()> {
        Arc::clone(&self.limiter).give_back(value)
    }
}

fn of(limiter: Arc<dyn Limiter>) -> Arc<Limits> {
    let metrics = Arc::new(Metrics::new(None).unwrap());
    Limits::new(
        limiter,
        false,
        MemoryBudgets::of(1 << 30, 1 << 30, None),
        metrics,
        TaskTracker::new(),
        CancellationToken::new(),
    )
}

fn in_memory() -> Arc<Limits> {
    of(Arc::new(MemoryLimiter::default()))
}

fn access(tenant: &str, subject: &str, quotas: &Value) -> Access {
    let text = json!({"version": 1, "tenants": {tenant: {"auth": {"mode": "none"},
        "quotas": quotas, "servers": {"s": {"command": "x"}}}}});
    let read = reader::parse("F", &text.to_string(), Format::Json, &BTreeMap::new());
    let (tenant, server) = read.unwrap().catalog.find(tenant, "s").unwrap();
    Access::of(&tenant, &server, subject)
}

fn limit_of(error: &Error) -> Limit {
    match error {
        Error::Quota(quota) => quota.limit,
        other => panic!("{other:?}"),
    }
}

/// The oldest of 1024 retries of all tenants could be made again.
#[tokio::test]
async fn what_is_good_once_is_remembered_however_many_follow() {
    let (limits, minute) = (in_memory(), Duration::from_secs(60));
    let ada = access("a", "ada", &json!({}));
    assert_eq!(limits.once(&ada, [0; 32], minute).await.ok(), Some(true));
    for number in 0..2000_u32 {
        let mut value = [1; 32];
        value[..4].copy_from_slice(&number.to_le_bytes());
        // Each of so many callers uses one.
        let caller = access("b", &number.to_string(), &json!({}));
        assert_eq!(limits.once(&caller, value, minute).await.ok(), Some(true));
    }
    assert_eq!(limits.once(&ada, [0; 32], minute).await.ok(), Some(false));
    limits.give_back([0; 32]).await;
    assert_eq!(limits.once(&ada, [0; 32], minute).await.ok(), Some(true));
}

/// All callers without authentication had one rate of retries, and each address of a /64 tasks of its own.
#[tokio::test]
async fn anonymous_callers_are_told_apart_by_their_hosts() {
    let (limits, minute) = (in_memory(), Duration::from_secs(60));
    let from = |address: &str| {
        let access = access("a", "", &json!({}));
        access.anonymous_from_address(address.parse().unwrap())
    };
    let (one, same, other) = (
        from("2001:db8::1"),
        from("2001:db8::2"),
        from("2001:db8:0:1::1"),
    );
    let mut last = true;
    for number in 0..1000_u32 {
        let mut value = [1; 32];
        value[..4].copy_from_slice(&number.to_le_bytes());
        last = limits.once(&one, value, minute).await.is_ok();
    }
    assert!(!last, "it has its rate");
    assert_eq!(limits.once(&other, [0; 32], minute).await.ok(), Some(true));
    let _task = limits.task(&one, 1).unwrap();
    assert!(limits.task(&same, 1).is_none());
    assert!(limits.task(&other, 1).is_some());
}

#[tokio::test]
async fn no_caller_uses_up_what_is_remembered_of_retries() {
    let (limits, minute) = (in_memory(), Duration::from_secs(60));
    let (ada, bob) = (
        access("a", "ada", &json!({})),
        access("a", "bob", &json!({})),
    );
    let mut refused = 0;
    for number in 0..2000_u32 {
        let mut value = [1; 32];
        value[..4].copy_from_slice(&number.to_le_bytes());
        let used = limits.once(&ada, value, minute).await;
        refused += usize::from(matches!(used, Err(Error::Limit { .. })));
    }
    assert!(refused >= 100, "{refused}");
    assert_eq!(limits.once(&bob, [0; 32], minute).await.ok(), Some(true));
}

#[tokio::test]
async fn no_request_waits_for_a_limiter_that_takes_its_time() {
    let answers = Arc::new(Semaphore::new(0));
    let limiter = Arc::new(MemoryLimiter::default());
    let slow = Slow {
        limiter,
        answers: Arc::clone(&answers),
    };
    let limits = of(Arc::new(slow));
    let ada = access("a", "ada", &json!({"requests_per_second": 100}));
    // `request` is not async, so it cannot wait.
    let taken = (0..300).filter(|_| limits.request(&ada).is_ok()).count();
    let expected = 100..=112;
    assert!(expected.contains(&taken), "a second's on trust: {taken}");
    answers.add_permits(100);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut more = 0;
    while more < 60 {
        tokio::task::yield_now().await;
        more += usize::from(limits.request(&ada).is_ok());
    }
    // A session waits for the limiter until its deadline.
    let silent = Arc::new(Semaphore::new(0));
    let slow = Slow {
        limiter: Arc::new(MemoryLimiter::default()),
        answers: silent,
    };
    let refused = of(Arc::new(slow)).session(&ada).await;
    assert!(matches!(refused, Err(Error::Busy { .. })));
}

#[tokio::test]
async fn a_principal_at_its_limit_leaves_its_tenant_the_rest() {
    let limits = in_memory();
    let quotas = json!({"requests_per_second": 30, "principal": {"requests_per_second": 5}});
    let (ada, bob) = (access("a", "ada", &quotas), access("a", "bob", &quotas));
    let mut of_ada = 0;
    for _ in 0..500 {
        match limits.request(&ada) {
            Ok(_) => of_ada += 1,
            Err(error) => assert_eq!(limit_of(&error), Limit::PrincipalRequests),
        }
    }
    assert!((5..=7).contains(&of_ada), "{of_ada}");
    assert!(
        (0..5).all(|_| limits.request(&bob).is_ok()),
        "bob has his own"
    );
    // Conversely, a refusal at the tenant's limit spends none of the principal's allowance.
    let quotas = json!({"requests_per_second": 3, "principal": {"requests_per_second": 50}});
    let cyd = access("c", "cyd", &quotas);
    for _ in 0..500 {
        if let Err(error) = limits.request(&cyd) {
            assert_eq!(limit_of(&error), Limit::Requests);
        }
    }
}

#[tokio::test]
async fn accounts_of_two_tenants_are_two_whatever_their_names() {
    let limits = in_memory();
    let quotas = json!({"sessions": 1, "principal": {"sessions": 1}});
    let mut seats = Vec::new();
    for (tenant, subject) in [("a", "b/c"), ("a-b", "c"), ("b", "a"), ("c", "a/b/c")] {
        seats.push(
            limits
                .session(&access(tenant, subject, &quotas))
                .await
                .unwrap(),
        );
    }
    let again = limits.session(&access("a", "other", &quotas)).await;
    assert_eq!(limit_of(&again.err().unwrap()), Limit::Sessions);
    seats.clear();
    assert!(limits.session(&access("a", "other", &quotas)).await.is_ok());
}

/// New ones began in its place, and after some restarts a replica had several times what the limits say.
#[tokio::test]
async fn a_session_that_was_taken_over_counts_beyond_its_quotas() {
    let limits = in_memory();
    let ada = access("a", "ada", &json!({"sessions": 1}));
    let memory = limits.memory.caller(&ada);
    let own = limits.session(&ada).await.unwrap();
    let adopted = limits.adopted(&ada).await;
    assert_eq!(memory.used(), 2 * SESSION);
    // Requests of the caller are not refused for one more.
    let left = u64::try_from(memory.left()).unwrap();
    let others = memory.hold(left - memory.total() / 64);
    let before = memory.used();
    let uncounted = limits.adopted(&ada).await;
    assert_eq!(memory.used(), before);
    assert!(memory.has_room(SESSION));
    drop((own, others, uncounted));
    let refused = limits.session(&ada).await;
    assert_eq!(limit_of(&refused.err().unwrap()), Limit::Sessions);
    drop(adopted);
    assert!(limits.session(&ada).await.is_ok());
    // Without an answer of the limiter its memory counts nevertheless.
    let limits = of(Arc::new(Slow {
        limiter: Arc::new(MemoryLimiter::default()),
        answers: Arc::new(Semaphore::new(0)),
    }));
    let memory = limits.memory.caller(&ada);
    let _adopted = limits.adopted(&ada).await;
    assert_eq!(memory.used(), SESSION);
}

#[tokio::test]
async fn a_batch_gets_all_of_its_places_or_none() {
    let limits = in_memory();
    let ada = access("a", "ada", &json!({"calls": 3, "principal": {"calls": 2}}));
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let note = r#"{"jsonrpc":"2.0","method":"x"}"#;
    let body = |items: &[&str]| Body::parse(format!("[{}]", items.join(",")).into()).unwrap();
    let calls = |items: &[&str]| limits.calls(&ada, &body(items));
    let error = calls(&[call, call, call]).err().unwrap();
    assert_eq!(limit_of(&error), Limit::PrincipalCalls);
    let two = calls(&[call, ping, note, "5", call]).unwrap();
    assert_eq!(two.len(), 2);
    assert!(calls(&[call]).is_err() && calls(&[ping, note]).unwrap().is_empty());
    drop(two);
    assert!(calls(&[call, call]).is_ok());
}

#[tokio::test]
async fn a_flood_of_addresses_costs_bounded_memory_and_is_limited_as_one() {
    let limits = in_memory();
    let bound = NonZeroU64::new(2).unwrap();
    let address = |number: u32| IpAddr::from(number.to_be_bytes());
    let all = u32::try_from(MAX_ACCOUNTS).unwrap() * 2;
    let began = Instant::now();
    let passed = (0..all).filter(|number| limits.address(address(*number), bound).is_ok());
    let passed = passed.count();
    // Accounts that were idle for two seconds are dropped.
    let rounds = 1 + usize::try_from(began.elapsed().as_secs() / 2).unwrap();
    assert!(limits.addresses.accounts.read().unwrap().len() <= MAX_ACCOUNTS);
    assert!(
        passed < MAX_ACCOUNTS * rounds + 1000,
        "{passed} in {rounds}"
    );
    // Neither tenants nor earlier addresses are affected.
    let ada = access("a", "ada", &json!({"requests_per_second": 1}));
    assert!(limits.request(&ada).is_ok());
    assert!(limits.address(address(0), bound).is_ok());
    assert!((0..10).any(|_| limits.address(address(0), bound).is_err()));
    let v6 = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, last, 2, 3, last]);
    let six = in_memory();
    assert!(six.address(v6(1), bound).is_ok() && six.address(v6(2), bound).is_ok());
    assert!(six.address(v6(3), bound).is_err(), "one /64");
}

#[tokio::test]
async fn bytes_that_are_owed_pause_streams_and_then_refuse_requests() {
    let limits = in_memory();
    let ada = access("a", "ada", &json!({"bytes_out": 1000}));
    let flow = limits.flow(&ada);
    assert_eq!(flow.pause(), None);
    flow.wrote(1500);
    let pause = flow.pause().unwrap();
    assert!(
        pause >= Duration::from_millis(100) && pause <= Duration::from_secs(1),
        "{pause:?}"
    );
    assert!(
        limits.request(&ada).is_ok(),
        "less than a second's worth is owed"
    );
    flow.wrote(1000);
    assert_eq!(
        limit_of(&limits.request(&ada).unwrap_err()),
        Limit::BytesOut
    );
    flow.wrote(usize::MAX);
    assert!(
        flow.pause().unwrap() <= Duration::from_secs(61),
        "a bound to what is owed"
    );
    assert_eq!(limits.flow(&access("b", "x", &json!({}))).pause(), None);
}

#[test]
fn allotments_are_a_tenth_and_at_most_every_100_ms() {
    assert_eq!([1, 9, 50, 100, 5000].map(amount), [1, 9, 10, 10, 500]);
    let table = [
        (1000, 0, None, 1000),
        (1000, 0, Some(99), 0),
        (1000, 99, Some(100), 100),
        (1000, 100, Some(100), 0),
        (1000, 0, Some(500), 500),
        (1000, -700, Some(300), 300),
        (1000, 400, Some(1000), 600),
        (1000, -400, Some(1000), 1000),
        (1000, 1000, Some(60_000), 0),
        (5, 0, Some(100), 5),
    ];
    for (bound, balance, since, expected) in table {
        let found = wanted(bound, balance, since);
        assert_eq!(found, expected, "{bound} {balance} {since:?}");
    }
}
