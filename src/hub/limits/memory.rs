//! Memory of the gateway, shared out to addresses, tenants and their principals.
//!
//! All that outsiders can make the gateway keep is drawn from a budget before it is kept. An owner beyond
//! its share is refused; others are not, because a share ends before the budget does.

use std::{hash::RandomState, net::IpAddr, sync::Arc};

use super::session_memory::{RecordMemory, SessionMemory};
use crate::{
    auth::Access,
    base::FastHash,
    base::budget::{Budget, Shares},
    config::Config,
    state::LogShare,
};

/// The budgets of the gateway's memory, in bytes.
#[derive(Debug)]
pub(crate) struct MemoryBudgets {
    /// Bodies, requests and answers under way (`limits.memory`).
    requests: Owners,
    /// Requests whose caller is not known yet, of the same budget.
    addresses: Shares<Source, RandomState>,
    /// Health probes of addresses that have no room there, in a budget of their own: of an address that never stops probing
    /// they would take the room of all others.
    probes: Shares<Source, RandomState>,
    /// Events that the log keeps (`log.memory`; `log.redis` with Redis).
    kept: Owners,
    /// What there is only with Redis.
    redis: Option<InRedis>,
}

/// Budgets of what Redis keeps besides events, and of what this process keeps besides Redis.
#[derive(Debug)]
struct InRedis {
    /// Records of sessions, in half of `log.redis`. They are held in `kept` too, where events give way
    /// to them.
    records: Owners,
    /// Copies of events (`log.memory`).
    copies: Owners,
}

/// The shares of tenants and their principals in one budget.
#[derive(Debug)]
pub(crate) struct Owners {
    root: Arc<Budget>,
    tenants: Shares<Arc<str>, FastHash>,
    callers: Shares<Caller, RandomState>,
}

/// An owner of a share of its tenant's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Caller {
    /// The account of a principal.
    Principal(Arc<str>),
    /// An address, at a tenant without authentication, where all have one principal.
    Anonymous(Arc<str>, Source),
}

/// The part of an address that one host is known by: of IPv6 the /64, of which it can choose any
/// address (RFC 4291, section 2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// An IPv4 address.
    V4(u32),
    /// The first half of an IPv6 address.
    V6(u64),
}

impl Source {
    /// The source of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => {
                // The shift leaves 64 bits.
                Self::V6(u64::try_from(address.to_bits() >> 64).unwrap_or_default())
            }
        }
    }
}

impl MemoryBudgets {
    /// Budgets of which nothing is used.
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        let redis = config.redis.as_ref().map(|_| config.log.redis);
        Self::of(config.limits.memory, config.log.memory, redis)
    }

    /// Budgets of these bytes.
    pub(crate) fn of(requests: u64, events: u64, in_redis: Option<u64>) -> Arc<Self> {
        let probes = Shares::new(Budget::new(requests / PROBES));
        let (requests, memory) = (Owners::new(requests), Owners::new(events));
        let (kept, redis) = match in_redis {
            Some(total) => {
                let (records, copies) = (Owners::new(total / 2), memory);
                (Owners::new(total), Some(InRedis { records, copies }))
            }
            None => (memory, None),
        };
        Arc::new(Self {
            addresses: Shares::new(Arc::clone(&requests.root)),
            probes,
            requests,
            kept,
            redis,
        })
    }

    /// The share of a caller that is not known yet.
    pub(crate) fn address(&self, address: IpAddr) -> Arc<Budget> {
        self.addresses.of(&Source::of(address))
    }

    /// The share of an address for health probes beyond the other one.
    pub(crate) fn probes(&self, address: IpAddr) -> Arc<Budget> {
        self.probes.of(&Source::of(address))
    }

    /// The share of a caller for what is under way.
    pub(crate) fn caller(&self, access: &Access) -> Arc<Budget> {
        self.requests.of(access)
    }

    /// The share of a tenant for what is under way.
    pub(crate) fn tenant(&self, name: &str) -> Arc<Budget> {
        self.requests.tenants.of(&name.into())
    }

    /// A share for the events of a session.
    pub(crate) fn session(&self, access: &Access) -> LogShare {
        let redis = self.redis.as_ref();
        LogShare {
            kept: self.kept.of(access).share(),
            copies: redis.map(|redis| redis.copies.of(access).share()),
            under_way: self.caller(access),
        }
    }

    /// Memory of a session that keeps nothing yet.
    pub(crate) fn session_state(&self, access: &Access) -> SessionMemory {
        let redis = self.redis.as_ref();
        let record = redis.map(|redis| RecordMemory {
            records: redis.records.of(access).hold(0),
            kept: self.kept.of(access).hold(0),
        });
        SessionMemory::new(self.caller(access), record)
    }

    /// Memory of a record in Redis beside those of sessions; none if the share of its caller has no room.
    pub(crate) fn record(&self, access: &Access, state: &[u8]) -> Option<RecordMemory> {
        let redis = self.redis.as_ref()?;
        let (records, kept) = (redis.records.of(access), self.kept.of(access));
        RecordMemory::draw(&records, &kept, state)
    }

    /// Memory of a session that is kept in this process only, and keeps nothing yet.
    pub(crate) fn local_state(&self, access: &Access) -> SessionMemory {
        SessionMemory::new(self.caller(access), None)
    }

    /// A share for the events of a session that are kept in this process only.
    pub(crate) fn local_session(&self, access: &Access) -> LogShare {
        let redis = self.redis.as_ref();
        let events = redis.map_or(&self.kept, |redis| &redis.copies);
        LogShare {
            kept: events.of(access).share(),
            copies: None,
            under_way: self.caller(access),
        }
    }

    /// What is under way, and its budget.
    pub(crate) fn requests(&self) -> &Arc<Budget> {
        &self.requests.root
    }

    /// Events in Redis, and their budget; none without Redis.
    pub(crate) fn events_in_redis(&self) -> Option<&Arc<Budget>> {
        self.redis.is_some().then_some(&self.kept.root)
    }
}

impl Owners {
    /// A budget of which nothing is used.
    pub(crate) fn new(total: u64) -> Self {
        let root = Budget::new(total);
        Self {
            tenants: Shares::new(Arc::clone(&root)),
            callers: Shares::new(Arc::clone(&root)),
            root,
        }
    }

    /// What all of them hold.
    pub(crate) fn used(&self) -> u64 {
        self.root.used()
    }

    /// The share of a caller.
    pub(crate) fn of(&self, access: &Access) -> Arc<Budget> {
        let principal = access.principal();
        let tenant = principal.tenant_account();
        let caller = match access.anonymous_from() {
            None => Caller::Principal(Arc::clone(principal.account())),
            Some(address) => Caller::Anonymous(Arc::clone(tenant), Source::of(address)),
        };
        self.callers.below(|| self.tenants.of(tenant), &caller)
    }
}

/// The part of `limits.memory` that health probes of addresses without room may take beside it.
const PROBES: u64 = 16;
