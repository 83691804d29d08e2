//! Records of calls that a tenant may add to the audit trail, and counts of its calls that are not in it.
//!
//! A tenant decides how many calls it makes, and each record is kept for months. Not here: the queue in
//! which records wait (`audit_queue`).

use std::{
    sync::{PoisonError, RwLock, RwLockWriteGuard},
    time::Duration,
};

use serde_json::json;
use tokio::time::Instant;

use crate::{base::Table, database::Record};

/// The allowances of tenants, and their calls that are not in the trail.
#[derive(Default)]
pub(super) struct CallRecords {
    /// Never locked across an await. Only tenants with a server that audits calls are in it.
    tenants: RwLock<Table<String, Allowance>>,
}

/// What a tenant may add.
struct Allowance {
    /// When it may add [`BURST`] again, if it adds nothing until then.
    whole_at: Instant,
    /// Its calls that are not in the trail, and when the first of them began.
    missing: Option<(u64, Instant)>,
}

/// Calls of a tenant that are not in the trail.
pub(super) struct Missing {
    tenant: String,
    count: u64,
    /// When the first of them began.
    began: Instant,
}

impl CallRecords {
    /// Takes the record of a call from the allowance of its tenant; false if nothing is left of that.
    pub(super) fn take(&self, call: &Record, now: Instant) -> bool {
        self.change(tenant_of(call), now, |allowance| {
            let whole_at = allowance.whole_at.max(now) + COST;
            let is_left = whole_at <= now + BURST;
            if is_left {
                allowance.whole_at = whole_at;
            }
            is_left
        })
    }

    /// Counts a call that is not in the trail.
    pub(super) fn miss(&self, call: &Record, now: Instant) {
        let began = call.began().unwrap_or(now);
        self.add(tenant_of(call), 1, began);
    }

    /// The calls that are not in the trail since the last time. Tenants with a whole allowance are forgotten.
    pub(super) fn take_missing(&self, now: Instant) -> Vec<Missing> {
        let mut tenants = self.lock();
        let missing = tenants.iter_mut().filter_map(|(tenant, allowance)| {
            let (count, began) = allowance.missing.take()?;
            let tenant = tenant.clone();
            Some(Missing {
                tenant,
                count,
                began,
            })
        });
        let missing = missing.collect();
        tenants.retain(|_, allowance| allowance.whole_at > now);
        missing
    }

    /// Gives back counts that could not be written.
    pub(super) fn give_back(&self, missing: &[Missing]) {
        for one in missing {
            self.add(&one.tenant, one.count, one.began);
        }
    }

    fn add(&self, tenant: &str, count: u64, began: Instant) {
        self.change(tenant, began, |allowance| {
            let (before, first) = allowance.missing.unwrap_or((0, began));
            allowance.missing = Some((before + count, first.min(began)));
        });
    }

    fn change<T>(&self, tenant: &str, now: Instant, change: impl FnOnce(&mut Allowance) -> T) -> T {
        let mut tenants = self.lock();
        change(tenants.entry(tenant.to_owned()).or_insert(Allowance {
            whole_at: now,
            missing: None,
        }))
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Table<String, Allowance>> {
        self.tenants.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Missing {
    /// The record that says so.
    pub(super) fn record(&self) -> Record {
        let target = format!("tenant {}", self.tenant);
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let detail = json!({"count": self.count, "ms": ms});
        Record::new(Some(&self.tenant), "calls.dropped", "", &target, detail).since(self.began)
    }
}

/// A call is always one of a tenant.
fn tenant_of(call: &Record) -> &str {
    call.tenant.as_deref().unwrap_or_default()
}

/// The time after which a tenant may add a further record of a call: 30,000 a minute, more than what people make whose
/// calls somebody wants to read, and a part of what the database takes.
const COST: Duration = Duration::from_millis(2);
/// The time whose records a tenant may add at once, after as long a time without calls: 30,000.
const BURST: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use super::super::call_records::*;

    fn call(tenant: &str, began: Instant) -> Record {
        Record::new(Some(tenant), "call", "ada", "server a/x", json!({})).since(began)
    }

    /// How many records of calls fit at this time.
    fn fitting(calls: &CallRecords, tenant: &str, now: Instant) -> usize {
        let call = call(tenant, now);
        (0..100_000).take_while(|_| calls.take(&call, now)).count()
    }

    #[test]
    fn records_of_calls_have_a_rate_and_a_burst() {
        let (calls, began) = (CallRecords::default(), Instant::now());
        assert_eq!(fitting(&calls, "a", began), 30_000);
        assert_eq!(
            fitting(&calls, "b", began),
            30_000,
            "each tenant has its own"
        );
        let second = began + Duration::from_secs(1);
        assert_eq!(fitting(&calls, "a", second), 500);
        assert_eq!(fitting(&calls, "a", second), 0);
        let later = second + 2 * BURST;
        assert_eq!(fitting(&calls, "a", later), 30_000, "and no more");
    }

    #[test]
    fn missing_calls_are_counted_until_they_are_recorded() {
        let (calls, began) = (CallRecords::default(), Instant::now());
        let later = began + Duration::from_secs(1);
        for (tenant, at) in [("a", later), ("a", began), ("b", later)] {
            calls.miss(&call(tenant, at), later);
        }
        let taken = |now| {
            let mut missing = calls.take_missing(now);
            missing.sort_by(|one, other| one.tenant.cmp(&other.tenant));
            missing
        };
        let missing = taken(later);
        let shown = |missing: &[Missing]| {
            let all = missing.iter();
            let all = all.map(|one| (one.tenant.clone(), one.count, one.began));
            all.collect::<Vec<_>>()
        };
        let wanted = [("a".to_owned(), 2, began), ("b".to_owned(), 1, later)];
        assert_eq!(shown(&missing), wanted);
        assert!(taken(later).is_empty());
        // A count that could not be written is in the next one.
        calls.give_back(&missing);
        calls.miss(&call("b", later), later);
        let wanted = [("a".to_owned(), 2, began), ("b".to_owned(), 2, later)];
        assert_eq!(shown(&taken(later)), wanted);
    }

    #[test]
    fn tenants_without_calls_are_forgotten() {
        let (calls, began) = (CallRecords::default(), Instant::now());
        assert!(calls.take(&call("a", began), began));
        calls.take_missing(began);
        assert_eq!(calls.lock().len(), 1, "a part of its allowance is used");
        calls.take_missing(began + COST);
        assert_eq!(calls.lock().len(), 0);
    }
}
