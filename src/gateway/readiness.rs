//! Readiness: what the outage of a database or of Redis means for this replica.
//!
//! Not here: the endpoints that report it (`http::ops`), and the stop (`lifecycle`).

use crate::{
    snapshot::Freshness,
    telemetry::{Health, Loss},
};

/// Reports the database, which counts as lost until there is a snapshot: without one everything
/// fails, else only operations that need the database. A manifest that is not applied is named too.
pub(super) fn of_database(
    health: &Health,
    has_snapshot: bool,
) -> Box<dyn Fn(Freshness) + Send + Sync> {
    let health = health.clone();
    if !has_snapshot {
        health.lost("sql", Loss::All);
    }
    Box::new(move |reach| match reach {
        Freshness::Current => {
            health.back("sql");
            health.back("manifest");
        }
        Freshness::Unapplied => {
            health.back("sql");
            health.lost("manifest", Loss::Some);
        }
        Freshness::Stale => health.lost("sql", Loss::Some),
        Freshness::Empty => health.lost("sql", Loss::All),
    })
}

/// Reports Redis, which counts as lost until the first heartbeat: without it no session is served.
pub(super) fn of_redis(health: &Health) -> impl Fn(bool) + use<> {
    let health = health.clone();
    health.lost("redis", Loss::All);
    move |has_lease| {
        if has_lease {
            health.back("redis");
        } else {
            health.lost("redis", Loss::All);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::readiness::*;
    use crate::telemetry::Readiness;

    #[test]
    fn a_manifest_that_is_not_applied_is_named() {
        let health = Health::default();
        let report = of_database(&health, false);
        report(Freshness::Unapplied);
        let degraded = (Readiness::Degraded, vec!["manifest"]);
        assert_eq!(health.readiness(), degraded);
        report(Freshness::Stale);
        assert_eq!(health.readiness().1, ["manifest", "sql"]);
        report(Freshness::Unapplied);
        assert_eq!(health.readiness(), degraded);
        report(Freshness::Current);
        assert_eq!(health.readiness(), (Readiness::Ready, vec![]));
    }
}
