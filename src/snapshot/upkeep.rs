//! Upkeep of the database: removal of old audit records and expired rows, and signing keys, which are
//! created and rotated in time.
//!
//! Not here: which keys are old enough (`database::oauth::signing_keys`), and all other statements.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    config::{Config, OauthSettings},
    database::{self, Database, oauth::Schedule},
    declare::{AuthMode, Catalog},
};

/// What is due when.
pub(super) struct Upkeep {
    /// The retention of audit records; zero keeps them for ever.
    audit_retention: Duration,
    /// The time of the next removal of old audit records.
    prune_at: Instant,
    /// Lifetimes and rotation of signing keys.
    oauth: OauthSettings,
    /// The time of the next removal of expired rows.
    sweep_at: Instant,
    /// The time of the next removal of rows that belong to nothing any more.
    orphans_at: Instant,
    /// The time of the next check of the age of signing keys.
    rotate_at: Instant,
    /// The time for which records are removed in a round.
    pruning: Duration,
    /// Since when it waits for a connection to the database.
    waiting_since: Option<Instant>,
}

impl Upkeep {
    /// Upkeep by these settings; all of it is due, but for the trail, which may be long: a start does not wait for it.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            audit_retention: config.storage.audit,
            prune_at: Instant::now() + SWEEP_INTERVAL,
            oauth: config.oauth.clone(),
            sweep_at: Instant::now(),
            orphans_at: Instant::now(),
            rotate_at: Instant::now(),
            pruning: PRUNING,
            waiting_since: None,
        }
    }

    /// Does what is due. What finds no connection waits for the next round: requests may have them all for a while, and
    /// a database that cannot be reached is told by the poll. But where no new connection can be made, the poll goes on by
    /// an old one, and all else fails.
    ///
    /// # Errors
    ///
    /// No connection for [`FLOOD`], and other ones of the database. What failed is due after another interval: each round
    /// would take its time.
    pub(super) async fn run(
        &mut self,
        database: &Database,
        catalog: &Catalog,
    ) -> Result<(), database::Error> {
        match self.work(database, catalog).await {
            Err(failure) if failure.lacks_connection() => {
                if self.waiting_since.is_none() {
                    tracing::warn!(%failure, "the upkeep of the database has to wait");
                }
                let since = self.waiting_since.get_or_insert_with(Instant::now);
                if since.elapsed() < FLOOD {
                    Ok(())
                } else {
                    Err(failure)
                }
            }
            done => {
                self.waiting_since = None;
                done
            }
        }
    }

    async fn work(
        &mut self,
        database: &Database,
        catalog: &Catalog,
    ) -> Result<(), database::Error> {
        if !self.audit_retention.is_zero() && Instant::now() >= self.prune_at {
            self.prune_at = Instant::now() + SWEEP_INTERVAL;
            let began = Instant::now();
            // A few parts in each round, as fast as records are written: what replicas follow waits for them.
            while database.audit().prune(self.audit_retention).await? {
                if began.elapsed() >= self.pruning {
                    self.prune_at = Instant::now();
                    break;
                }
            }
        }
        self.create_keys(database, catalog).await?;
        self.rotate_keys(database).await?;
        if Instant::now() >= self.sweep_at {
            self.sweep_at = Instant::now() + SWEEP_INTERVAL;
            let is_more = database.expire_clients(self.oauth.client_unused).await?;
            if is_more || database.sweep().await? {
                self.sweep_at = Instant::now();
            }
        }
        if Instant::now() >= self.orphans_at {
            self.orphans_at = Instant::now() + ORPHANS_INTERVAL;
            if database.sweep_orphans().await? {
                self.orphans_at = Instant::now();
            }
        }
        Ok(())
    }

    /// Creates missing signing keys of authorization servers, before the first token, so that every
    /// replica knows the key by then.
    async fn create_keys(
        &self,
        database: &Database,
        catalog: &Catalog,
    ) -> Result<(), database::Error> {
        for (name, tenant) in &catalog.tenants {
            let is_builtin = matches!(tenant.auth, AuthMode::Builtin(_));
            if is_builtin && !catalog.issued.keys.contains_key(name) {
                match database.signing_keys().current(name).await {
                    // `NotFound`: the tenant was just removed.
                    Ok(_) | Err(database::Error::NotFound) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(())
    }

    /// Rotates signing keys that are old.
    async fn rotate_keys(&mut self, database: &Database) -> Result<(), database::Error> {
        let age = self.oauth.key_age;
        if age.is_zero() || Instant::now() < self.rotate_at {
            return Ok(());
        }
        self.rotate_at = Instant::now() + (age / 10).min(ROTATION_CHECK);
        let age_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let schedule = Schedule::of(&self.oauth);
        for tenant in database.signing_keys().rotate_old(schedule, age_ms).await? {
            tracing::info!(
                event = "signing_key.rotated",
                tenant.id = tenant,
                "another key follows"
            );
        }
        Ok(())
    }
}

/// The interval between removals of old rows: what clients have written goes soon after its end.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// The interval between removals of rows that belong to nothing any more, for which there is no index.
const ORPHANS_INTERVAL: Duration = Duration::from_hours(1);
/// The time for which old audit records are removed in a round: half of that to the next one.
const PRUNING: Duration = Duration::from_millis(200);
/// The time without a connection after which the database counts as away, and not as busy.
const FLOOD: Duration = Duration::from_mins(1);
/// The maximum interval between checks of the age of signing keys.
const ROTATION_CHECK: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use serde_json::json;

    use super::super::upkeep::*;
    use crate::{
        base::Clock,
        config::Sources,
        database::{
            Author, Expected, Filter, Opening, Record,
            oauth::{Registered, millis},
        },
        declare::{Kind, Object, ObjectName},
    };

    async fn opened() -> (tempfile::TempDir, Config, Database) {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::load(&Sources {
            set: vec![format!("data_dir={}", dir.path().display())],
            env: BTreeMap::from([("HOME".to_owned(), "/".to_owned())]),
            ..Sources::default()
        });
        let config = config.unwrap();
        let judge = Arc::new(|_: &_, _| Vec::new());
        let opening = Opening::of(&config, judge, Clock::of(|| 1_000));
        let database = Database::open(opening).await.unwrap();
        (dir, config, database)
    }

    /// A start, and what replicas follow, waited until all that is old of a trail was gone.
    #[tokio::test]
    async fn a_round_removes_a_part_of_the_old_records() {
        let (_dir, config, database) = opened().await;
        let old = Record::new(None, "login", "ada", "x", json!({}));
        let old = old.at(-millis(config.storage.audit));
        let audit = database.audit();
        audit.append(&vec![old; 1_500]).await.unwrap();
        let left = async || {
            let page = audit.page(&Filter::default(), None, 9_999).await;
            page.unwrap().entries.len()
        };
        let mut upkeep = Upkeep::new(&config);
        upkeep.run(&database, &Catalog::default()).await.unwrap();
        assert_eq!(left().await, 1_500, "at the start");
        upkeep.prune_at = Instant::now();
        upkeep.pruning = Duration::ZERO;
        for count in [500, 0] {
            upkeep.run(&database, &Catalog::default()).await.unwrap();
            assert_eq!(left().await, count);
        }
        assert!(upkeep.prune_at > Instant::now());
    }

    /// A part in each round was less than a busy gateway writes, and the trail grew for ever.
    #[tokio::test]
    async fn a_round_removes_as_many_parts_as_it_has_time_for() {
        let (_dir, config, database) = opened().await;
        let old = Record::new(None, "login", "ada", "x", json!({}));
        let old = old.at(-millis(config.storage.audit));
        let audit = database.audit();
        audit.append(&vec![old; 2_500]).await.unwrap();
        let mut upkeep = Upkeep::new(&config);
        upkeep.prune_at = Instant::now();
        upkeep.pruning = Duration::from_mins(9);
        upkeep.run(&database, &Catalog::default()).await.unwrap();
        let page = audit.page(&Filter::default(), None, 9_999).await;
        assert!(page.unwrap().entries.is_empty());
        assert!(upkeep.prune_at > Instant::now());
    }

    /// The database was told to be away, though its state was read and served.
    #[tokio::test]
    async fn upkeep_waits_while_requests_have_all_connections() {
        let (_dir, config, database) = opened().await;
        let boss = database.for_administrator(false);
        let pool = boss.objects().pool;
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(pool.snapshot().await.unwrap());
        }
        let mut upkeep = Upkeep::new(&config);
        upkeep.run(&database, &Catalog::default()).await.unwrap();
        assert!(upkeep.waiting_since.is_some());
        // New connections are refused, and nobody was told.
        upkeep.waiting_since = Instant::now().checked_sub(FLOOD);
        let failed = upkeep.run(&database, &Catalog::default()).await;
        assert!(failed.is_err_and(|failure| failure.lacks_connection()));
        drop(held);
        upkeep.rotate_at = Instant::now();
        upkeep.run(&database, &Catalog::default()).await.unwrap();
        assert!(upkeep.waiting_since.is_none());
    }

    /// It was tried in each round, whose reads of what others had changed waited for it.
    #[tokio::test]
    async fn a_sweep_that_fails_is_due_after_another_interval() {
        let (_dir, config, database) = opened().await;
        let mut transaction = database.objects().pool.begin().await.unwrap();
        let spoil = "DROP TABLE refresh_tokens";
        transaction.run(spoil, Vec::new()).await.unwrap();
        transaction.commit().await.unwrap();
        let mut upkeep = Upkeep::new(&config);
        let mut failed = 0;
        for _ in 0..3 {
            let done = upkeep.run(&database, &Catalog::default()).await;
            failed += u8::from(done.is_err());
        }
        assert!((1..=2).contains(&failed), "{failed}");
        assert!(upkeep.sweep_at > Instant::now() && upkeep.orphans_at > Instant::now());
    }

    /// Rows that clients have written would fill the disk within an hour.
    #[tokio::test]
    async fn expired_rows_go_each_minute() {
        let (_dir, config, database) = opened().await;
        let spec = serde_json::Map::from_iter([("auth".to_owned(), json!({"mode": "keys"}))]);
        let (name, tenant) = (ObjectName::tenant("a"), Object::new(Kind::Tenant, spec));
        let (objects, author) = (database.objects(), Author::named("x"));
        let put = objects.put(&name, tenant, Expected::Any, &author).await;
        put.unwrap();
        let logins = database.logins();
        assert!(logins.use_once("a", &[1; 32], 999).await.unwrap());
        let client = Registered {
            client_id: "c_x".to_owned(),
            metadata: "{}".to_owned(),
            secret_hash: None,
            access_hash: [0; 32],
            created_ms: 999 - millis(config.oauth.client_unused),
            expires_ms: 999,
        };
        assert!(database.clients().add("a", &client, 9).await.unwrap());
        let mut upkeep = Upkeep::new(&config);
        upkeep.run(&database, &Catalog::default()).await.unwrap();
        let newest = database.audit().page(&Filter::default(), None, 1).await;
        let newest = newest.unwrap().entries.remove(0).record;
        assert_eq!(
            (&*newest.kind, &newest.detail["count"]),
            ("client.expired", &json!(1))
        );
        let is_gone = database.logins().use_once("a", &[1; 32], 999);
        assert!(is_gone.await.unwrap());
        let minute = Instant::now() + Duration::from_mins(1);
        assert!(upkeep.sweep_at <= minute && upkeep.prune_at <= minute);
        // The row that was written since goes in a minute.
        upkeep.run(&database, &Catalog::default()).await.unwrap();
        assert!(
            !database
                .logins()
                .use_once("a", &[1; 32], 999)
                .await
                .unwrap()
        );
    }
}
