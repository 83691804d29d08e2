//! Audit of denied requests: the first one is recorded at once, repetitions are aggregated.
//!
//! Kinds and attempted users are told apart. A client in a loop or a password guesser must not fill the
//! log. Not here: the decision to deny.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::principals::Principal;
use crate::{
    database::Record,
    snapshot::AuditQueue,
    telemetry::{Denied, Metrics},
};

/// A denied request.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    /// The caller.
    pub(crate) who: Caller,
    /// The tenant in the path.
    pub(crate) tenant: Arc<str>,
    /// The server in the path, which may not exist; empty if the path names none.
    pub(crate) server: Arc<str>,
    /// The kind of endpoint: `mcp`, `sse`, `messages` or `login`.
    pub(crate) route: &'static str,
    /// The reason.
    pub(crate) reason: Denied,
    /// The user of the tenant whose password was attempted.
    pub(crate) user: Option<Arc<str>>,
    /// A short description without any part of the credentials.
    pub(crate) detail: &'static str,
}

/// The caller, as far as known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Caller {
    /// A principal with valid credentials.
    Known(Principal),
    /// An unknown caller at an address.
    At(Option<IpAddr>),
}

impl Caller {
    /// As one host is known: of IPv6 by its /64, of which it can choose any address (RFC 4291, section
    /// 2.5.1).
    fn of_host(&self) -> Self {
        match self {
            Self::At(Some(address)) => Self::At(Some(host_of(*address))),
            caller => caller.clone(),
        }
    }
}

/// The address by which a host is known.
pub(super) fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Denials of the last minute; a handle.
#[derive(Clone)]
pub(crate) struct Denials {
    table: Arc<Table>,
    metrics: Arc<Metrics>,
    audit: AuditQueue,
    settled: Arc<Settled>,
}

/// Progress of the audit trail. Counters instead of a flag, so that all concurrent callers wait.
#[derive(Default)]
struct Settled {
    /// Records written.
    written: AtomicU64,
    /// Records known to be stored.
    recorded: AtomicU64,
}

impl Settled {
    /// Waits for `record`, unless all earlier writes are stored.
    async fn wait(&self, record: impl Future<Output = ()>) {
        let written = self.written.load(Ordering::Acquire);
        if self.recorded.load(Ordering::Acquire) < written {
            record.await;
            self.recorded.fetch_max(written, Ordering::AcqRel);
        }
    }
}

#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]
type Table = std::sync::Mutex<Callers>;

/// The callers of the last minute.
#[derive(Default)]
struct Callers {
    all: HashMap<Key, Aggregate>,
    /// How many each tenant has.
    of_tenant: HashMap<Arc<str>, usize>,
}

/// What tells denials apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    who: Caller,
    tenant: Arc<str>,
    reason: Denied,
    user: Option<Arc<str>>,
}

/// The repetitions of a denial.
struct Aggregate {
    began: Instant,
    count: u64,
    last: Denial,
}

impl Denials {
    /// An empty table.
    pub(super) fn new(metrics: Arc<Metrics>, audit: AuditQueue) -> Self {
        Self {
            table: Arc::default(),
            metrics,
            audit,
            settled: Arc::default(),
        }
    }

    /// Waits for a short time until all writes are in the audit trail.
    pub(crate) async fn settle(&self) {
        self.settled.wait(self.audit.flush()).await;
    }

    /// Counts a denial, and records it if it is the caller's first of its kind, for its user, at this
    /// tenant within a minute.
    pub(crate) fn report(&self, mut denial: Denial) {
        self.metrics.denied.add(denial.reason);
        let now = Instant::now();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = Key {
            who: denial.who.of_host(),
            tenant: Arc::clone(&denial.tenant),
            reason: denial.reason,
            user: denial.user.clone(),
        };
        // A principal of the tenant cannot hide behind a flood from outside. There can be any number of them too, where
        // the tenant has an authorization server of its own.
        let most = match key.who {
            Caller::At(_) => OF_TENANT,
            Caller::Known(_) => 2 * OF_TENANT,
        };
        let of_tenant = table.of_tenant.get(&key.tenant);
        let is_full = table.all.len() >= CALLERS || of_tenant.is_some_and(|many| *many >= most);
        if is_full && !table.all.contains_key(&key) {
            // So many callers at once are treated as one attack, and none of them is blamed for all of it.
            (key.who, key.user) = (Caller::At(None), None);
            (denial.who, denial.user, denial.detail) = (Caller::At(None), None, MANY);
        }
        if let Some(aggregate) = table.all.get_mut(&key) {
            aggregate.count += 1;
            aggregate.last = denial;
            return;
        }
        let aggregate = Aggregate {
            began: now,
            count: 0,
            last: denial.clone(),
        };
        *table.of_tenant.entry(Arc::clone(&key.tenant)).or_default() += 1;
        table.all.insert(key, aggregate);
        drop(table);
        self.write(&denial, 1, now);
    }

    /// Records aggregated denials once a minute per caller, and the rest at `stop`.
    pub(super) async fn watch(self, stop: CancellationToken) {
        loop {
            let ended = tokio::time::timeout(SWEEP, stop.cancelled()).await.is_ok();
            self.sweep(if ended { Duration::ZERO } else { MINUTE });
            if ended {
                return;
            }
        }
    }

    /// Removes entries of at least this age and records their repetitions.
    fn sweep(&self, age: Duration) -> usize {
        let now = Instant::now();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let Callers { all, of_tenant } = &mut *table;
        let old = all.extract_if(|_, aggregate| now - aggregate.began >= age);
        let old: Vec<Aggregate> = old.map(|(_, aggregate)| aggregate).collect();
        for aggregate in &old {
            if let Some(many) = of_tenant.get_mut(&aggregate.last.tenant) {
                *many -= 1;
            }
        }
        of_tenant.retain(|_, many| *many > 0);
        if all.capacity() > 64 && all.len() < all.capacity() / 4 {
            all.shrink_to_fit();
        }
        drop(table);
        let aggregate = old.iter().filter(|aggregate| aggregate.count > 0);
        aggregate
            .map(|aggregate| self.write(&aggregate.last, aggregate.count, aggregate.began))
            .count()
    }

    /// Records `count` denials since `began`, of which this is the last.
    fn write(&self, denial: &Denial, count: u64, began: Instant) {
        log(denial, count);
        let (actor, address) = match &denial.who {
            Caller::Known(principal) => (principal.subject().unwrap_or("anonymous"), None),
            Caller::At(address) => ("", address.map(|address| address.to_string())),
        };
        let (tenant, server) = (&*denial.tenant, &*denial.server);
        let target = if server.is_empty() {
            format!("tenant {tenant}")
        } else {
            format!("server {tenant}/{server}")
        };
        let detail = json!({
            "route": denial.route, "reason": denial.reason.into_str(), "detail": denial.detail,
            "address": address, "count": count, "user": denial.user,
        });
        let of = (!tenant.is_empty()).then_some(tenant);
        let record = Record::new(of, "denied", actor, &target, detail);
        self.audit.add(record.since(began));
        self.settled.written.fetch_add(1, Ordering::AcqRel);
    }
}

/// Writes the log line.
fn log(denial: &Denial, count: u64) {
    let (principal, address) = match &denial.who {
        Caller::Known(principal) => (Some(principal.key()), None),
        Caller::At(address) => (None, address.map(tracing::field::display)),
    };
    tracing::info!(
        target: "lockgate::audit",
        {
            event = "denied",
            principal,
            client.address = address,
            tenant.id = &*denial.tenant,
            server.name = &*denial.server,
            route = denial.route,
            reason = denial.reason.into_str(),
            user.name = denial.user.as_deref(),
            detail = denial.detail,
            count
        },
        "access denied"
    );
}

/// Time for which denials of one caller are aggregated.
const MINUTE: Duration = Duration::from_mins(1);
/// Interval between sweeps of the table.
const SWEEP: Duration = Duration::from_secs(5);
/// Maximum callers in the table.
const CALLERS: usize = 4096;
/// Callers of one tenant in it, beyond which unknown ones share a record, and beyond twice as many principals too: each
/// is one a minute, kept for months.
const OF_TENANT: usize = 512;
/// The detail of a record of callers beyond them.
const MANY: &str = "more callers than are told apart";

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(last: u8) -> Denial {
        Denial {
            who: Caller::At(Some(IpAddr::from([10, 0, last / 200, last]))),
            tenant: "a".into(),
            server: "x".into(),
            route: "mcp",
            reason: Denied::NoToken,
            user: None,
            detail: "no token",
        }
    }

    #[test]
    fn the_first_denial_is_recorded_and_repetitions_are_counted() {
        let denials = Denials::new(
            Arc::new(Metrics::new(None).unwrap()),
            AuditQueue::disabled(),
        );
        let waiting = || {
            let table = denials.table.lock().unwrap();
            let counts = table.all.values().map(|aggregate| aggregate.count);
            let mut counts: Vec<u64> = counts.collect();
            counts.sort_unstable();
            counts
        };
        for _ in 0..1000 {
            denials.report(denial(1));
        }
        denials.report(denial(2));
        assert_eq!(waiting(), [0, 999]);
        assert_eq!(denials.sweep(MINUTE), 0, "the minute is not over");
        assert_eq!(waiting(), [0, 999]);
        assert_eq!(denials.sweep(Duration::ZERO), 1, "one line for 999");
        assert!(waiting().is_empty());
    }

    #[test]
    fn kinds_and_users_are_told_apart() {
        let denials = Denials::new(
            Arc::new(Metrics::new(None).unwrap()),
            AuditQueue::disabled(),
        );
        let password = |user: Option<&str>| Denial {
            reason: Denied::BadPassword,
            user: user.map(Arc::from),
            ..denial(1)
        };
        for _ in 0..3 {
            denials.report(denial(1));
            denials.report(password(None));
            denials.report(password(Some("ada")));
            denials.report(password(Some("eve")));
        }
        let table = denials.table.lock().unwrap();
        let mut counts: Vec<(&str, Option<&str>, u64)> = table
            .all
            .iter()
            .map(|(key, aggregate)| {
                let last = &aggregate.last;
                assert_eq!((key.reason, &key.user), (last.reason, &last.user));
                (key.reason.into_str(), key.user.as_deref(), aggregate.count)
            })
            .collect();
        counts.sort_unstable();
        let wanted = [
            ("bad_password", None, 2),
            ("bad_password", Some("ada"), 2),
            ("bad_password", Some("eve"), 2),
            ("no_token", None, 2),
        ];
        assert_eq!(counts, wanted);
    }

    #[tokio::test]
    async fn concurrent_denials_wait_for_their_records() {
        let settled = Settled::default();
        let write = || settled.written.fetch_add(1, Ordering::AcqRel);
        write();
        let (record, recorded) = tokio::sync::oneshot::channel::<()>();
        let first = async {
            let recorded = async { recorded.await.unwrap() };
            settled.wait(recorded).await;
        };
        tokio::pin!(first);
        assert!(futures_util::poll!(&mut first).is_pending());
        // The first caller still waits: the denial is not on record, so a second caller waits too.
        let mut is_asked = false;
        settled.wait(async { is_asked = true }).await;
        assert!(is_asked);
        write();
        record.send(()).unwrap();
        first.await;
        // The record of the first caller does not cover a denial written while it waited.
        let mut is_asked = false;
        settled.wait(async { is_asked = true }).await;
        assert!(is_asked);
        settled
            .wait(async { unreachable!("all is on record") })
            .await;
    }

    #[tokio::test]
    async fn the_table_is_bounded_and_flushed_at_the_end() {
        let denials = Denials::new(
            Arc::new(Metrics::new(None).unwrap()),
            AuditQueue::disabled(),
        );
        let flood = |tenant: &str| {
            for number in 0..1000_u32 {
                let who = Caller::At(Some(IpAddr::from(number.to_be_bytes())));
                let (tenant, user) = (tenant.into(), Some("ada".into()));
                let mine = denial(1);
                denials.report(Denial {
                    who,
                    tenant,
                    user,
                    ..mine
                });
            }
        };
        let kept = || denials.table.lock().unwrap().all.len();
        flood("one");
        assert_eq!(
            kept(),
            OF_TENANT + 1,
            "one tenant has no more than its part"
        );
        let who = Caller::Known(Principal::new("one", None, Some("eve"), None));
        let tenant = "one".into();
        denials.report(Denial {
            who,
            tenant,
            ..denial(1)
        });
        assert_eq!(kept(), OF_TENANT + 2, "a principal is named beside a flood");
        let key = Key {
            who: Caller::At(None),
            tenant: "one".into(),
            reason: Denied::NoToken,
            user: None,
        };
        let others = denials.table.lock().unwrap().all.remove(&key).unwrap();
        assert_eq!(others.count, 999 - OF_TENANT as u64);
        let (who, user) = (others.last.who, others.last.user);
        assert_eq!((who, user), (Caller::At(None), None), "nobody is blamed");
        for tenant in 0..9 {
            flood(&format!("{tenant}"));
        }
        assert!((CALLERS..CALLERS + 10).contains(&kept()), "{}", kept());
        let stop = CancellationToken::new();
        stop.cancel();
        denials.clone().watch(stop).await;
        let table = denials.table.lock().unwrap();
        assert!(table.all.is_empty());
    }

    /// The principals of one tenant, whose issuer signs any subject, filled the table of all tenants.
    #[test]
    fn principals_of_one_tenant_leave_room_for_the_callers_of_others() {
        let denials = Denials::new(
            Arc::new(Metrics::new(None).unwrap()),
            AuditQueue::disabled(),
        );
        for number in 0..CALLERS + 9 {
            let subject = number.to_string();
            let who = Principal::new("a", Some("https://idp.test"), Some(&subject), None);
            denials.report(Denial {
                who: Caller::Known(who),
                ..denial(1)
            });
        }
        let (tenant, user) = ("b".into(), Some("ada".into()));
        denials.report(Denial {
            tenant,
            user,
            ..denial(2)
        });
        let table = denials.table.lock().unwrap();
        assert_eq!(table.all.len(), 2 * OF_TENANT + 2);
        let named = |key: &Key| key.user.is_some() && key.who == denial(2).who;
        assert_eq!(table.all.keys().filter(|key| named(key)).count(), 1);
    }

    #[test]
    fn the_addresses_of_one_host_are_one_caller() {
        let denials = Denials::new(
            Arc::new(Metrics::new(None).unwrap()),
            AuditQueue::disabled(),
        );
        for address in [
            "2001:db8::1",
            "2001:db8::2",
            "2001:db8:0:1::1",
            "::ffff:10.0.0.1",
            "10.0.0.1",
        ] {
            let who = Caller::At(Some(address.parse().unwrap()));
            denials.report(Denial { who, ..denial(1) });
        }
        assert_eq!(denials.table.lock().unwrap().all.len(), 3);
    }
}
