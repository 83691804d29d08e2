//! Snapshot follower: applies each new snapshot to sessions, children and metrics.

use std::{collections::BTreeSet, sync::Arc};

use tokio_util::sync::CancellationToken;

use crate::{
    declare::{Catalog, Offer, Server},
    hub::Hub,
    snapshot::CurrentSnapshot,
    telemetry::Metrics,
};

/// Applies new snapshots until `stop`.
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
    while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
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
        hub.prepare(&snapshot.catalog);
        hub.follow(&snapshot.catalog);
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
