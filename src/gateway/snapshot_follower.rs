//! Snapshot follower: applies each new snapshot to sessions, children and metrics.
//!
//! Sessions follow the end of API keys as well, which changes no snapshot.

use std::{collections::BTreeSet, future, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    base::Clock,
    declare::{Catalog, Offer, Server},
    hub::Hub,
    snapshot::CurrentSnapshot,
    telemetry::Metrics,
};

/// Applies new snapshots, and ends of keys, until `stop`.
pub(super) async fn follow(
    current: Arc<CurrentSnapshot>,
    hub: Hub,
    metrics: Arc<Metrics>,
    offer: Offer,
    stop: CancellationToken,
) {
    let mut changes = current.subscribe();
    changes.mark_changed();
    let mut unenforced = BTreeSet::new();
    let mut prepared = Prepared::default();
    let mut next_end_ms = None;
    loop {
        let is_changed = tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => changed.is_ok(),
            // The end of a key changes no snapshot.
            () = end_of_key(current.clock(), next_end_ms) => {
                let catalog = Arc::clone(&changes.borrow().catalog);
                next_end_ms = follow_access(&hub, current.clock(), &catalog).await;
                continue;
            }
        };
        if !is_changed {
            return;
        }
        let snapshot = Arc::clone(&changes.borrow_and_update());
        if snapshot.version.is_none() {
            continue;
        }
        let known = std::mem::replace(&mut unenforced, shortcomings(&snapshot.catalog, &offer));
        for (sign, (tenant, server, key)) in unenforced
            .difference(&known)
            .map(|new| (1, new))
            .chain(known.difference(&unenforced).map(|gone| (-1, gone)))
        {
            metrics.unenforced.add([tenant, server, key], sign);
        }
        if prepared.follow(&snapshot.catalog, Instant::now()) {
            hub.prepare(&snapshot.catalog);
        }
        next_end_ms = follow_access(&hub, current.clock(), &snapshot.catalog).await;
    }
}

/// The last catalogue, and the time at which its servers were prepared.
#[derive(Default)]
struct Prepared(Option<(Arc<Catalog>, Instant)>);

impl Prepared {
    /// Takes the next catalogue; returns whether its servers are to be prepared: if they are others, as after a
    /// revocation they are not, or if the last look for what earlier children and stores left behind was long ago.
    fn follow(&mut self, catalog: &Arc<Catalog>, now: Instant) -> bool {
        let last = self.0.take();
        let last = last.filter(|(known, at)| now < *at + AGAIN && catalog.has_servers_of(known));
        let is_due = last.is_none();
        let at = last.map_or(now, |(_, at)| at);
        self.0 = Some((Arc::clone(catalog), at));
        is_due
    }
}

/// Makes sessions and children follow `catalog`; returns the next end of an API key.
async fn follow_access(hub: &Hub, clock: &Clock, catalog: &Arc<Catalog>) -> Option<i64> {
    // Read before they follow, so that no end falls between.
    let now_ms = clock.now_ms();
    hub.follow(catalog).await;
    catalog.next_key_end(now_ms)
}

/// Waits for the end of an API key; for ever without one.
async fn end_of_key(clock: &Clock, end_ms: Option<i64>) {
    let Some(end_ms) = end_ms else {
        return future::pending().await;
    };
    loop {
        let Ok(left_ms @ 1..) = u64::try_from(end_ms.saturating_sub(clock.now_ms())) else {
            // With all that end by then: to follow costs all sessions a look.
            return sleep(GATHER).await;
        };
        // In parts: the clock of the database may be set meanwhile.
        sleep(Duration::from_millis(left_ms).min(LOOK)).await;
    }
}

/// Settings of servers that this machine cannot enforce.
fn shortcomings(catalog: &Catalog, offer: &Offer) -> BTreeSet<(String, String, &'static str)> {
    let of = |server: &Arc<Server>| {
        let (tenant, name) = (server.tenant.clone(), server.name.clone());
        let missing = offer.shortcomings(server).into_iter();
        missing.map(move |missing| (tenant.clone(), name.clone(), missing.key))
    };
    catalog.servers().flat_map(of).collect()
}

/// The time after which a change looks for leftovers again although it is none of servers.
const AGAIN: Duration = Duration::from_hours(1);
/// The time for which ends of keys are gathered.
const GATHER: Duration = Duration::from_millis(500);
/// The longest time between two looks at the clock while a key has an end.
const LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        pin::pin,
        sync::atomic::{AtomicI64, Ordering},
    };

    use tokio::time::timeout;

    use super::*;
    use crate::{config::Format, manifest::reader::parse};

    /// Each revocation began a look at all stores and private directories, and a task for each server with a recipe.
    #[test]
    fn servers_are_prepared_when_they_change() {
        let read = |servers: &str| {
            let text = format!("tenants: {{a: {{auth: {{mode: none}}, servers: {{{servers}}}}}}}");
            let read = parse("F", &text, Format::Yaml, &BTreeMap::new());
            read.unwrap().catalog
        };
        let one = Arc::new(read("one: {command: x}"));
        let revoked = Arc::new(Catalog::new(one.tenants.clone(), Arc::default()));
        let read = |servers: &str| Arc::new(read(servers).reusing(&one));
        let same = read("one: {command: x}");
        let more = read("one: {command: x}, two: {command: x}");
        let changed = read("one: {command: y}");
        let (mut prepared, now) = (Prepared::default(), Instant::now());
        for (catalog, at, is_due) in [
            (&one, now, true),
            (&revoked, now, false),
            (&same, now, false),
            (&more, now, true),
            (&one, now, true),
            (&changed, now, true),
            (&changed, now + AGAIN / 2, false),
            (&changed, now + AGAIN, true),
            (&changed, now + AGAIN * 3 / 2, false),
        ] {
            assert_eq!(prepared.follow(catalog, at), is_due);
        }
    }

    /// The clock of the database may be set forward after the wait has begun.
    #[tokio::test]
    async fn the_end_of_a_key_follows_the_clock() {
        const DAY_MS: i64 = 86_400_000;
        let now_ms = Arc::new(AtomicI64::new(0));
        let shown = Arc::clone(&now_ms);
        let clock = Clock::of(move || shown.load(Ordering::Relaxed));
        end_of_key(&clock, Some(0)).await;
        let mut never = pin!(end_of_key(&clock, None));
        assert!(timeout(Duration::ZERO, &mut never).await.is_err());
        let mut ending = pin!(end_of_key(&clock, Some(DAY_MS)));
        assert!(timeout(Duration::ZERO, &mut ending).await.is_err());
        now_ms.store(DAY_MS, Ordering::Relaxed);
        assert!(timeout(Duration::from_mins(1), ending).await.is_ok());
    }
}
