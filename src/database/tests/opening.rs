//! Opening a database: its file, its schema, and a database that does not answer.

use std::{task::Poll, time::Duration};

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};

use super::fixture::{
    Place, ada, on_both, patient, put, record, server, tenant, token, until_waiting,
};
use crate::base::Secret;
use crate::database::pool::{SqlError, Transaction};
use crate::database::{Database, Error, Expected, Location, Opening, Pool};

on_both! {
    a_migration_finds_the_people_of_any_groups
    two_handles_see_each_others_changes
    a_newer_schema_is_still_used
    handles_opened_at_once_migrate_in_turn
    another_schema_is_left_as_it_is
    a_lock_held_forever_is_given_up
}

#[tokio::test]
async fn the_file_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::sqlite();
    let mode = |name: &str| {
        let file = place.dir.path().join(name).metadata().unwrap();
        file.permissions().mode() & 0o777
    };
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    for name in ["lockgate.db", "lockgate.db-wal", "lockgate.db-shm"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    store.close().await;
    // The file of an earlier version, readable by all users.
    let file = place.dir.path().join("lockgate.db");
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    place.open().await.close().await;
    assert_eq!(mode("lockgate.db"), 0o600);
}

/// Reads for ever, and finds nothing.
async fn scan(pool: &Pool, is_in_transaction: bool) {
    let endless = "
        WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
        SELECT x FROM n WHERE x < 0";
    if is_in_transaction {
        if let Ok(mut transaction) = pool.snapshot().await {
            drop(transaction.run(endless, Vec::new()).await);
        }
    } else {
        drop(pool.read(endless, Vec::new()).await);
    }
}

/// One tenant's administrator took all connections from everybody, by pages of the audit trail on which no record is.
#[tokio::test]
async fn a_scan_that_was_given_up_keeps_no_connection() {
    let place = Place::sqlite();
    let pool = &place.pool().await;
    for is_in_transaction in [false, true] {
        let scans = join_all((0..8).map(|_| scan(pool, is_in_transaction)));
        let others = async { while pool.read("SELECT 1", Vec::new()).await.is_ok() {} };
        tokio::select! {
            _ = scans => {}
            () = others => {}
        }
        let mut held = Vec::new();
        for _ in 0..8 {
            let begun = patient(|| async move { pool.snapshot().await.map_err(Error::from) });
            held.push(begun.await);
        }
    }
    pool.close().await;
}

/// It kept the size that a long read had given it.
#[tokio::test]
async fn the_log_of_a_file_is_cut_once_it_is_copied() {
    let place = Place::sqlite();
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let asked = transaction.run("PRAGMA journal_size_limit", Vec::new());
    let limit: i64 = asked.await.unwrap()[0].get("journal_size_limit").unwrap();
    assert_eq!(limit, 64 << 20);
}

async fn two_handles_see_each_others_changes(place: Place) {
    let (one, other) = (place.open().await, place.open().await);
    put(&one, tenant("acme")).await;
    assert_eq!(other.objects().version().await.unwrap(), 1);
    put(&other, server("acme", "a", "")).await;
    assert!(token(&one, "acme", "a").await.is_some());
}

async fn a_newer_schema_is_still_used(place: Place) {
    let store = place.open().await;
    let pool = place.pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let newer = "
        INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (9999, 'of a newer build', TRUE, $1, 0)";
    transaction
        .run(newer, vec![Some(vec![0_u8]).into()])
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    store.close().await;
    put(&place.open().await, tenant("acme")).await;
}

async fn handles_opened_at_once_migrate_in_turn(place: Place) {
    let opened = join_all((0..4).map(|_| place.open())).await;
    put(&opened[0], tenant("acme")).await;
    for (number, store) in opened.iter().enumerate() {
        let name = number.to_string();
        put(store, server("acme", &name, "")).await;
        assert!(token(&opened[3], "acme", &name).await.is_some());
    }
}

/// To change the master key updated the schema below the gateways of an older release.
async fn another_schema_is_left_as_it_is(place: Place) {
    place.open().await.close().await;
    let pool = place.pool().await;
    let open = async || Database::open_as_it_is(place.opening()).await;
    let change = async |statement: &'static str| {
        let mut transaction = pool.begin().await.unwrap();
        transaction.run(statement, Vec::new()).await.unwrap();
        transaction.commit().await.unwrap();
    };
    open().await.unwrap().close().await;
    for (statement, why) in [
        (
            "UPDATE _sqlx_migrations SET version = 9999 WHERE version = 1",
            "of a newer lockgate; use the release that serves it",
        ),
        (
            "DELETE FROM _sqlx_migrations WHERE version > 5",
            "of an older lockgate; use the release that serves it, or update it by lockgate migrate",
        ),
        (
            "DELETE FROM _sqlx_migrations",
            "is no store of lockgate; name",
        ),
        (
            "DROP TABLE _sqlx_migrations",
            "is no store of lockgate; name",
        ),
    ] {
        change(statement).await;
        for _ in 0..2 {
            let refused = open().await.unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
}

async fn a_lock_held_forever_is_given_up(place: Place) {
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    let holding = place.pool().await.begin().await.unwrap();
    let ((name, object), author) = (tenant("b"), ada());
    let written = store.objects().put(&name, object, Expected::Any, &author);
    let written = timeout(Duration::from_secs(10), written).await;
    let failed = written.expect("gives up").map(drop);
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    assert_eq!(store.objects().version().await.unwrap(), 1, "readers go on");
    drop(holding);
    put(&store, tenant("b")).await;
}

/// A database that accepts a connection and never responds blocks no caller forever.
#[tokio::test]
async fn a_silent_database_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "postgres://u@{}/x?sslmode=disable",
        listener.local_addr().unwrap()
    );
    let place = Place::sqlite();
    let location = Location::Url(Secret::of(url).unwrap());
    let opened = Database::open(Opening {
        location,
        ..place.opening()
    });
    let opened = timeout(Duration::from_secs(10), opened).await;
    let failed = opened.expect("gives up");
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
}

#[tokio::test]
async fn an_unreachable_database_is_an_error_of_its_own() {
    let mut place = Place::postgres();
    let store = place.open().await;
    put(&store, tenant("acme")).await;
    place.postgres.as_mut().unwrap().pause();
    let failed = [
        store.objects().version().await.map(drop),
        store.objects().load().await.map(drop),
        store.audit().append(&[record(None, "login", "ada")]).await,
        store
            .objects()
            .put(&tenant("b").0, tenant("b").1, Expected::Any, &ada())
            .await
            .map(drop),
        Database::open(place.opening()).await.map(drop),
    ];
    for failed in failed {
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    }
    place.postgres.as_mut().unwrap().resume();
    put(&store, tenant("b")).await;
}

/// A server that hangs kept each connection that returned to the pool, although other servers answered.
#[tokio::test]
async fn a_connection_that_hangs_leaves_its_place_to_others() {
    let place = Place::postgres();
    let pool = place.pool().await.reserved();
    let pid = "SELECT pg_backend_pid() AS pid";
    let (mut hung, mut begun) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut transaction = pool.begin_unserialized().await.unwrap();
        let rows = transaction.run(pid, Vec::new()).await.unwrap();
        let process = Pid::from_raw(rows[0].get("pid").unwrap()).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        hung.push(process);
        begun.push(transaction);
    }
    // One is dropped in a statement, the other one between two.
    let cut = begun[0].run(pid, Vec::new());
    let cut = timeout(Duration::from_millis(100), cut).await.map(drop);
    drop(begun);
    let read = async { while pool.read(pid, Vec::new()).await.is_err() {} };
    let read = timeout(Duration::from_secs(20), read).await;
    for process in hung {
        _ = kill_process(process, Signal::CONT);
    }
    assert!(cut.is_err());
    read.expect("there is a connection again");
}

/// The next user of the connection would be in the transaction, of which nobody knew.
#[tokio::test]
async fn a_transaction_that_is_given_up_as_it_begins_is_of_nobody() {
    let place = Place::postgres();
    let pool = place.pool().await.reserved();
    let isolation = "SELECT current_setting('transaction_isolation') AS level";
    for most in 1..100 {
        let mut beginning = std::pin::pin!(pool.snapshot());
        let mut polls = 0;
        let begun = std::future::poll_fn(|cx| {
            polls += 1;
            match beginning.as_mut().poll(cx) {
                Poll::Pending if polls == most => Poll::Ready(None),
                polled => polled.map(Some),
            }
        });
        let is_begun = begun.await.is_some();
        for _ in 0..4 {
            let rows = pool.read(isolation, Vec::new()).await.unwrap();
            let level: String = rows[0].get("level").unwrap();
            assert_eq!(level, "read committed", "given up after {most} polls");
        }
        if is_begun {
            return;
        }
    }
    panic!("it never began");
}

/// A name led to the server that was the primary, and is back as a standby: a pool kept what was opened then.
#[tokio::test]
async fn no_connection_to_a_standby_is_used() {
    let mut place = Place::postgres();
    let pool = place.pool().await;
    let server = place.postgres.as_mut().unwrap();
    server.pause();
    std::fs::write(server.data().join("standby.signal"), "").unwrap();
    server.resume();
    let read = async || pool.read("SELECT version FROM changes", Vec::new()).await;
    let refused = read().await.err().unwrap().to_string();
    assert!(refused.contains("is a standby"), "{refused}");
    let mut promote = server.command("pg_ctl");
    let done = promote.args(["promote", "-D"]).arg(server.data()).output();
    assert!(done.is_ok_and(|done| done.status.success()));
    assert_eq!(read().await.unwrap().len(), 1);
    pool.close().await;
}

/// It stayed in the pool, and each write that it was lent to failed.
#[tokio::test]
async fn a_connection_that_takes_no_writes_is_closed() {
    let place = Place::postgres();
    let pool = place.pool().await;
    let mut transaction = pool.begin_unserialized().await.unwrap();
    let only_read = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY";
    transaction.run(only_read, Vec::new()).await.unwrap();
    transaction.commit().await.unwrap();
    let is_written = async || {
        let written = pool.write("UPDATE changes SET version = version", Vec::new());
        written.await.is_ok()
    };
    let mut written = 0;
    // Connections take turns, and one returns a moment after its use.
    while is_written().await {
        written += 1;
        assert!(written < 1_000, "it has not returned");
    }
    for _ in 0..50 {
        assert!(is_written().await);
    }
    pool.close().await;
}

/// A migration that changed a column failed the reads of running replicas until their connections were half an hour old: they
/// followed no change, and told it as a bug.
#[tokio::test]
async fn a_connection_with_a_statement_of_an_older_schema_is_closed() {
    let place = Place::postgres();
    let newer = place.pool().await;
    let pool = &newer.reserved();
    let both = async || {
        let mut begun = Vec::new();
        for _ in 0..2 {
            let one = patient(|| async move { pool.snapshot().await.map_err(Error::from) });
            begun.push(one.await);
        }
        let mut read = Vec::new();
        for mut one in begun {
            let rows = one.run("SELECT name FROM upstreams", Vec::new()).await;
            read.push(rows.map(drop));
        }
        read
    };
    assert!(both().await.iter().all(Result::is_ok));
    let changed = "ALTER TABLE upstreams ALTER COLUMN name TYPE TEXT COLLATE \"C\"";
    newer.write(changed, Vec::new()).await.unwrap();
    for failed in both().await {
        assert!(
            matches!(failed, Err(SqlError::Unavailable(_))),
            "{failed:?}"
        );
    }
    assert!(both().await.iter().all(Result::is_ok), "they were kept");
    newer.close().await;
}

/// A migration waited in line for a table that `pg_dump` reads, and everybody else behind it, also after its gateway had
/// given up; each further start left another connection that waited for that one.
#[tokio::test]
async fn a_migration_that_was_given_up_waits_for_nothing() {
    let place = Place::postgres();
    let (pool, mut dump) = dumped(&place).await;
    let starts = join_all((0..3).map(|_| place.pool()));
    tokio::select! {
        _ = starts => panic!("the table is in use"),
        () = until_locks(&pool, &mut dump, |waiting| waiting == 3) => {}
    }
    until_locks(&pool, &mut dump, |waiting| waiting == 0).await;
    drop(dump);
    place.pool().await.close().await;
    let changed = pool.read("SELECT unanswered FROM identities", Vec::new());
    changed.await.unwrap();
    pool.close().await;
}

#[tokio::test]
async fn a_migration_lets_others_go_first_and_is_tried_again() {
    let place = Place::postgres();
    let (pool, mut dump) = dumped(&place).await;
    let others = async {
        until_locks(&pool, &mut dump, |waiting| waiting == 1).await;
        until_locks(&pool, &mut dump, |waiting| waiting == 0).await;
        drop(dump);
    };
    let (started, ()) = tokio::join!(place.pool(), others);
    started.close().await;
    let changed = pool.read("SELECT unanswered FROM identities", Vec::new());
    changed.await.unwrap();
    pool.close().await;
}

/// One that had died in a migration kept all others from their start until the server noticed.
#[tokio::test]
async fn a_start_with_nothing_to_migrate_waits_for_no_other() {
    let place = Place::postgres();
    let pool = place.pool().await;
    let mut migrating = pool.begin_unserialized().await.unwrap();
    migrating.run(LOCK_OF_SQLX, Vec::new()).await.unwrap();
    let started = timeout(Duration::from_secs(8), place.pool()).await;
    started.expect("it does not wait").close().await;
    undo(&pool).await;
    let other = async {
        until_waiting(&pool, 1, || false).await;
        drop(migrating);
    };
    let (started, ()) = tokio::join!(place.pool(), other);
    started.close().await;
    pool.close().await;
}

/// A group with a character that PostgreSQL takes for no text kept every new version from its start.
async fn a_migration_finds_the_people_of_any_groups(place: Place) {
    let pool = place.pool().await;
    for statement in [
        "DROP INDEX revocations_groups",
        "DROP INDEX revocations_of",
        "DROP INDEX consents_by_client",
        "DROP INDEX codes_unused_by_end",
        "DROP INDEX grants_unrevoked",
        "DROP INDEX grants_by_family",
        "ALTER TABLE revocations DROP COLUMN subject",
        "ALTER TABLE grants DROP COLUMN used_ms",
        "ALTER TABLE grants DROP COLUMN family",
        "DELETE FROM _sqlx_migrations WHERE version = 14",
        r#"INSERT INTO revocations (number, tenant, kind, value, at_ms)
           VALUES (1, 'a', 'groups', '["a\"d\\a",["x\u0000"]]', 1)"#,
    ] {
        pool.write(statement, Vec::new()).await.unwrap();
    }
    pool.close().await;
    let pool = place.pool().await;
    let subjects = "SELECT subject FROM revocations";
    let rows = pool.read(subjects, Vec::new()).await.unwrap();
    assert_eq!(rows[0].get::<String>("subject").unwrap(), r#"a"d\a"#);
    pool.close().await;
}

/// Takes a migration back, as if the database were of an older release.
async fn undo(pool: &Pool) {
    for statement in [
        "ALTER TABLE identities DROP COLUMN unanswered",
        "DELETE FROM _sqlx_migrations WHERE version = 13",
    ] {
        pool.write(statement, Vec::new()).await.unwrap();
    }
}

/// A database of an older release, and a transaction that reads the table which is to be changed, as `pg_dump` does.
async fn dumped(place: &Place) -> (Pool, Transaction) {
    let pool = place.pool().await;
    undo(&pool).await;
    let mut dump = pool.snapshot().await.unwrap();
    dump.run(DUMPED, Vec::new()).await.unwrap();
    (pool, dump)
}

/// Waits until so many statements wait for a lock. The dump goes on: a transaction that stands still is ended.
async fn until_locks(pool: &Pool, dump: &mut Transaction, are_enough: impl Fn(i64) -> bool) {
    let sql = "SELECT COUNT(*) AS count FROM pg_locks WHERE NOT granted";
    let waited = async {
        loop {
            dump.run(DUMPED, Vec::new()).await.unwrap();
            let rows = pool.read(sql, Vec::new()).await.unwrap();
            if are_enough(rows[0].get("count").unwrap()) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = timeout(Duration::from_secs(20), waited).await;
    waited.expect("as many as that");
}

const DUMPED: &str = "SELECT subject FROM identities";
/// The lock that sqlx takes for a migration of the database `postgres`: its number is made of the checksum of the name.
const LOCK_OF_SQLX: &str = "SELECT pg_advisory_xact_lock(368907709894077238)";
