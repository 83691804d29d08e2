//! Snapshot follower: applies each new snapshot to sessions, children and metrics.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    auth::administrator::ensure_operator,
    base::Secret,
    config::Config,
    declare::{Catalog, Offer, Server},
    hub::Hub,
    snapshot::CurrentSnapshot,
    telemetry::Metrics,
};

/// Applies new snapshots until `stop`.
pub(super) async fn follow(
    config: Arc<Config>,
    current: Arc<CurrentSnapshot>,
    hub: Hub,
    metrics: Arc<Metrics>,
    offer: Offer,
    stop: CancellationToken,
) {
    let mut changes = current.subscribe();
    changes.mark_changed();
    let (mut unenforced, mut has_operator) = (BTreeSet::new(), false);
    let mut is_due = false;
    loop {
        let next = async {
            tokio::select! {
                changed = changes.changed() => changed,
                () = sleep(RETRY), if is_due => Ok(()),
            }
        };
        let Some(Ok(())) = stop.run_until_cancelled(next).await else {
            return;
        };
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
        if current.database().is_ok() && !has_operator {
            let key = config.storage.admin_key.as_ref().map(Secret::expose);
            match ensure_operator(&current, key, &config.data_dir).await {
                Ok(()) => has_operator = true,
                Err(error) => tracing::error!(%error, "nobody may administrate yet"),
            }
            is_due = !has_operator;
        }
        hub.prepare(&snapshot.catalog);
        hub.follow(&snapshot.catalog).await;
    }
}

/// The delay before the first operator's key is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Settings of servers that this machine cannot enforce.
fn shortcomings(catalog: &Catalog, offer: &Offer) -> BTreeSet<(String, String, &'static str)> {
    let of = |server: &Arc<Server>| {
        let (tenant, name) = (server.tenant.clone(), server.name.clone());
        let missing = offer.shortcomings(server).into_iter();
        missing.map(move |missing| (tenant.clone(), name.clone(), missing.key))
    };
    catalog.servers().flat_map(of).collect()
}
