//! Commands on the database: `migrate`, `backup`, `restore` and `key rotate`.
//!
//! Not here: the database of a serving gateway (`serve/database`).

use std::{
    fmt::Write,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use clap::Args;

use super::{
    progress::shown,
    runtime::{configuration, said, wait},
};
use crate::{
    auth::api_key,
    base::{Clock, private_file, terminal::escaped},
    cli::serve::{database::lock_file, private_dir},
    config::{Config, Mistake, Wrong},
    database::{
        self, Database, Judge, Location, Opening,
        pool::{
            HeldKey, SqlError,
            file::{self, api_keys, has_log, inspect, remove_unfinished, settle, unfinished},
        },
        vault::KeySource,
    },
    snapshot::CurrentSnapshot,
};

/// The database that a command works on.
#[derive(Args)]
pub(crate) struct DatabaseArgs {
    /// Configuration file
    #[arg(long, value_name = "F")]
    config: Option<PathBuf>,
    /// Any key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// `lockgate backup` and `restore`
#[derive(Args)]
pub(crate) struct CopyArgs {
    /// The copy of the database
    #[arg(value_name = "F")]
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// `lockgate restore`
#[derive(Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    copy: CopyArgs,
    /// Keep the grants, log-ins and consents of the copy, also those that were revoked after it was made
    #[arg(long)]
    keep_grants: bool,
}

/// `lockgate migrate`
pub(crate) fn migrate(args: DatabaseArgs) -> ExitCode {
    run(args, async |config: &Config| {
        if let Location::File(file) = Location::of(config) {
            check_exists(&file)?;
        }
        let (doing, done) = ("updating the schema", "updated the schema");
        let database = Box::pin(shown(doing, done, Database::open(opening(config)))).await?;
        let version = database.objects().version().await?;
        database.close().await;
        Ok(format!(
            "the schema is up to date; changes so far: {version}"
        ))
    })
}

/// `lockgate key rotate`
pub(crate) fn rotate(args: DatabaseArgs) -> ExitCode {
    run(args, async |config: &Config| rotated(config).await)
}

/// Changes the master key, and says which one is in use.
async fn rotated(config: &Config) -> Result<String, database::Error> {
    if let Location::File(file) = Location::of(config) {
        check_exists(&file)?;
    }
    let opening = opening(config);
    if let (KeySource::File(file), Some(_)) = (&opening.keys, &config.redis) {
        // No replica would get in beside one that runs: they agree by a key in common, and a file has the new one alone.
        let what =
            "is a file, and gateways with redis.url sign with its key until they start again";
        let remedy =
            "put its key into LOCKGATE_MASTER_KEY, and change that by the steps in docs/store.md";
        let wrong = Wrong::new(what, remedy).at(&file.display().to_string(), "master_key");
        return Err(database::Error::from_mistake(wrong));
    }
    // Before the store is opened: a restore puts another file in its place.
    let _lock = opening.keys.lock().map_err(database::Error::from_key)?;
    let database = Database::open_as_it_is(opening).await?;
    let id = database.rotate().await?;
    database.close().await;
    Ok(format!(
        "everything is sealed under the master key {id}, and no other is needed"
    ))
}

/// `lockgate backup F`
pub(crate) fn backup(args: CopyArgs) -> ExitCode {
    let target = args.file;
    run(args.database, async |config: &Config| {
        copied(&target, config).await
    })
}

/// Copies the database, and says what is not in the copy.
async fn copied(target: &Path, config: &Config) -> Result<String, database::Error> {
    let store = sqlite_file(config)?;
    check_exists(&store)?;
    File::open(&store).map_err(|error| {
        let what = format!("cannot be opened: {error}");
        wrong(&store, what, &private_file::remedy(&error))
    })?;
    let at = |error: &io::Error| wrong(target, format!("cannot be made: {error}"), NEW_FILE);
    // SQLite fills the empty file, which only its owner can read.
    private_file::create_new(target).map_err(|error| at(&error))?;
    let copied = file::copy(&store, target).await;
    if copied.is_err() {
        let _ = fs::remove_file(target);
    }
    copied.map_err(|error| match error {
        SqlError::Unavailable(what) => {
            let what = format!("cannot be made: {what}");
            wrong(target, what, "make room, or name a file on another disk")
        }
        SqlError::Unusable(what) => wrong(&store, what, "name the data directory of a gateway"),
        error => error.into(),
    })?;
    let synced = File::open(target).and_then(|file| file.sync_all());
    synced.map_err(|error| at(&error))?;
    let key = if config.storage.master_key.is_some() {
        "the master key"
    } else {
        "master.key"
    };
    let other = if admin_key(config).exists() {
        " and admin.key"
    } else {
        ""
    };
    Ok(format!(
        "{} is a copy of the database; keep {key}{other} elsewhere",
        named(target)
    ))
}

/// `lockgate restore F`
pub(crate) fn restore(args: RestoreArgs) -> ExitCode {
    let RestoreArgs { copy, keep_grants } = args;
    let (copy, database) = (copy.file, copy.database);
    run(database, async |config: &Config| {
        replaced(&copy, config, keep_grants).await
    })
}

/// Replaces the database by a copy, and says what that means.
async fn replaced(
    copy: &Path,
    config: &Config,
    keep_grants: bool,
) -> Result<String, database::Error> {
    let file = sqlite_file(config)?;
    let _locks = locked(config)?;
    // To open a pipe takes until somebody writes to it.
    if fs::metadata(copy).is_ok_and(|found| !found.is_file()) {
        let what = "is no file".to_owned();
        return Err(wrong(copy, what, "name a file that backup made"));
    }
    if has_log(copy) {
        let what = "has changes in a log beside it (-wal), which is no part of a copy".to_owned();
        let remedy =
            "make a copy with both: lockgate backup, with the folder of the two as data_dir";
        return Err(wrong(copy, what, remedy));
    }
    inspect(copy)
        .await
        .map_err(|error| wrong(copy, error.to_string(), "name a file that backup made"))?;
    let unwritable = |error| wrong(&file, format!("cannot be written: {error}"), "make room");
    // A log that is left there would be read with the new file.
    remove_unfinished(&file).map_err(unwritable)?;
    let made = make_beside(copy, &file, config, keep_grants).await;
    let ended = made.inspect_err(|_| _ = remove_unfinished(&file))?;
    let settled = settle_kept(&file).await;
    settled.inspect_err(|_| _ = remove_unfinished(&file))?;
    let known = api_keys(&file).await;
    let before = replace_file(&unfinished(&file), &file).map_err(unwritable)?;
    _ = remove_unfinished(&file);
    let mut done = format!("{} is as {} was", named(&file), named(copy));
    if let Some(before) = before {
        let before = named(&before);
        _ = write!(done, "; the way back is lockgate restore {before}");
    }
    _ = match ended {
        Some(ended) => write!(
            done,
            "\ngrants of the copy that ended: {ended}; people log in again"
        ),
        None => write!(
            done,
            "\nits grants go on, also those that were revoked since"
        ),
    };
    let held = api_keys(&file).await.unwrap_or_default();
    Ok(done + &returned(&held, known.ok().as_deref()) + &way_in(&held, config))
}

/// Puts what the log of the database has into its file, which the way back reads without it. A database that is too
/// broken for that is kept as it is.
async fn settle_kept(file: &Path) -> Result<(), database::Error> {
    match settle(file).await {
        Err(SqlError::Unavailable(what)) if file.exists() && has_log(file) => {
            let what = format!("has changes in its log that cannot be put into it: {what}");
            let remedy = format!(
                "make room, and wait for lockgate backup if it runs; where it cannot be read any more, move it and {}-wal \
                 elsewhere",
                named(file)
            );
            Err(wrong(file, what, &remedy))
        }
        _ => Ok(()),
    }
}

/// Locks the data directory for a restore: against gateways, and against a change of the master key, which would drop the
/// key that sealed the copy.
fn locked(config: &Config) -> Result<(File, Option<File>), database::Error> {
    private_dir::made(&config.data_dir)
        .map_err(|error| wrong(&config.data_dir, format!("{error:#}"), "make it writable"))?;
    let lock = lock_file(&config.data_dir).map_err(database::Error::from_mistake)?;
    if lock.try_lock().is_err() {
        let what = "is in use by a running gateway".to_owned();
        return Err(wrong(&config.data_dir, what, "stop it first"));
    }
    let keys = opening(config).keys.lock();
    Ok((lock, keys.map_err(database::Error::from_key)?))
}

/// Says how an operator gets in if the key that commands use is none of the copy's, which has digests alone. A copy
/// without a key of an operator gets one at the start.
fn way_in(held: &[HeldKey], config: &Config) -> String {
    let mut operators = held.iter().filter(|key| key.tenant.is_none()).peekable();
    let file = admin_key(config);
    let own = fs::read_to_string(&file).map(|key| api_key::fingerprint(key.trim()));
    let is_own = |key: &HeldKey| own.as_ref().is_ok_and(|own| *own == key.hash);
    if config.storage.admin_key.is_some() || operators.peek().is_none() || operators.any(is_own) {
        return String::new();
    }
    format!(
        "\nno operator key of the copy is in {}; use one that you have, or start once with LOCKGATE_ADMIN_KEY \
         (lockgate key new prints one)",
        named(&file)
    )
}

/// The key of an operator that a gateway made at its first start.
fn admin_key(config: &Config) -> PathBuf {
    config.data_dir.join("admin.key")
}

/// Makes the database of a copy beside `file`, before anything is replaced: it may be sealed under another master key, or
/// not be served at all.
async fn make_beside(
    copy: &Path,
    file: &Path,
    config: &Config,
    keep_grants: bool,
) -> Result<Option<usize>, database::Error> {
    let new = unfinished(file);
    copy_beside(copy, &new)
        .map_err(|error| wrong(file, format!("cannot be written: {error}"), "make room"))?;
    let read = read_as_served(&new, config, keep_grants).await;
    read.map_err(|error| of_copy(copy, (file, config), error))
}

/// Opens the database that a restore has made of a copy, and reads it as a gateway does at its start. Returns the number
/// of grants that ended, if they were to.
async fn read_as_served(
    new: &Path,
    config: &Config,
    keep_grants: bool,
) -> Result<Option<usize>, database::Error> {
    let opening = Opening {
        location: Location::File(new.to_owned()),
        ..opening(config)
    };
    let database = Database::open(opening).await?;
    let ended = if keep_grants {
        Ok(None)
    } else {
        database.end_issued().await.map(Some)
    };
    let snapshot = CurrentSnapshot::empty();
    snapshot.set_database(database.clone());
    let read = snapshot.refresh().await;
    // The file replaces another one without its log, and a failure of that at the close would be told nobody.
    let settled = settle(new).await;
    database.close().await;
    settled?;
    read.and(ended)
}

/// The reason why a copy cannot replace the database in `file`.
fn of_copy(
    copy: &Path,
    (file, config): (&Path, &Config),
    error: database::Error,
) -> database::Error {
    match error {
        database::Error::Invalid(mistakes) => {
            let place = copy.display().to_string();
            let key_file = match opening(config).keys {
                KeySource::File(path) => path.display().to_string(),
                KeySource::Given(_) => String::new(),
            };
            // The key is a file of its own, which may not be there.
            let of_copy = |mistake: Mistake| {
                if mistake.place == key_file {
                    return mistake;
                }
                Mistake {
                    place: place.clone(),
                    ..mistake
                }
            };
            database::Error::Invalid(mistakes.into_iter().map(of_copy).collect())
        }
        database::Error::Unavailable(what) => {
            wrong(file, format!("cannot be written: {what}"), "make room")
        }
        database::Error::File(Wrong { what, .. }) => wrong(copy, what, "name another copy"),
        database::Error::Bug(what) => {
            let what = format!("cannot be served: {what}");
            wrong(copy, what, "name another copy")
        }
        error => wrong(copy, error.to_string(), "name another copy"),
    }
}

/// Says which API keys came back: those that the database before did not have any more.
fn returned(held: &[HeldKey], known: Option<&[HeldKey]>) -> String {
    let what = match known {
        Some(_) => "API keys that came back; delete those that must not be used",
        None => "API keys of the copy; the database before cannot tell which of them are deleted",
    };
    let known = known.unwrap_or_default();
    let is_known = |key: &HeldKey| {
        let mut known = known.iter();
        known.any(|known| (&known.tenant, &known.hash) == (&key.tenant, &key.hash))
    };
    let mut lines = String::new();
    for key in held.iter().filter(|key| !is_known(key)) {
        _ = match &key.tenant {
            Some(tenant) => write!(lines, "\n  key {} of tenant {tenant}", escaped(&key.name)),
            None => write!(lines, "\n  operator key {}", escaped(&key.name)),
        };
    }
    if lines.is_empty() {
        return lines;
    }
    format!("\n{what}:{lines}")
}

/// Copies a database into the directory of the one that it will replace.
fn copy_beside(copy: &Path, new: &Path) -> io::Result<()> {
    let mut target = private_file::create_beside(new)?;
    io::copy(&mut File::open(copy)?, &mut target)?;
    target.sync_all()
}

/// Replaces the database file by a new one, atomically. Returns the place of the old one, which is kept
/// until the next restore.
fn replace_file(new: &Path, file: &Path) -> io::Result<Option<PathBuf>> {
    let beside = |path: &Path, end: &str| PathBuf::from(format!("{}{end}", path.display()));
    let before = file.with_extension("db.before");
    // What was restored may be the one of before, which stays until the new file is in its place.
    let kept = beside(&before, ".new");
    remove(&kept)?;
    let is_kept = match fs::hard_link(file, &kept) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        linked => linked.is_ok(),
    };
    // Companion files of the old database must never be read with the new one.
    let log = beside(&kept, "-wal");
    remove(&log)?;
    rename(&beside(file, "-wal"), &log)?;
    remove(&beside(file, "-shm"))?;
    fs::rename(new, file)?;
    let log_before = beside(&before, "-wal");
    remove(&log_before)?;
    if !is_kept {
        remove(&before)?;
    }
    rename(&kept, &before)?;
    rename(&log, &log_before)?;
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok(is_kept.then_some(before))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Renames a file, if it is there.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Options to open the database without checks of declared objects: these commands change none.
fn opening(config: &Config) -> Opening {
    let judge: Judge = Arc::new(|_, _| Vec::new());
    Opening::of(config, judge, Clock::system())
}

fn sqlite_file(config: &Config) -> Result<PathBuf, database::Error> {
    match Location::of(config) {
        Location::File(file) => Ok(file),
        Location::Url(_) => {
            let what = "names PostgreSQL, which its own tools copy and put back (pg_dump)";
            let wrong = Wrong::new(what, "use those");
            Err(database::Error::Invalid(vec![
                wrong.at("configuration", "sql.url"),
            ]))
        }
    }
}

/// Refuses a database that is not there: opening it would make an empty one.
fn check_exists(file: &Path) -> Result<(), database::Error> {
    if file.exists() {
        return Ok(());
    }
    let remedy = "name the data directory of the gateway: --config F, or LOCKGATE_DATA_DIR";
    Err(wrong(file, "does not exist".to_owned(), remedy))
}

fn wrong(path: &Path, what: String, remedy: &str) -> database::Error {
    let place = path.display().to_string();
    database::Error::Invalid(vec![Wrong::new(what, remedy).at(&place, "store")])
}

/// A path in a line for a terminal.
fn named(path: &Path) -> String {
    escaped(&path.display().to_string()).into_owned()
}

/// Runs a command on the database that the configuration names, and prints its result.
fn run(
    args: DatabaseArgs,
    act: impl AsyncFnOnce(&Config) -> Result<String, database::Error>,
) -> ExitCode {
    let config = match configuration(args.config, args.set) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let result = match wait(act(&config)) {
        Ok(result) => result,
        Err(code) => return code,
    };
    match result.map_err(|error| Location::of(&config).named_in(error)) {
        Ok(message) => said(message + "\n"),
        Err(error @ database::Error::Invalid(_)) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
        Err(error) => {
            let remedy = match &error {
                database::Error::Unavailable(_) => AGAIN,
                _ => "",
            };
            let place = match Location::of(&config) {
                Location::File(file) => named(&file),
                Location::Url(_) => "sql.url".to_owned(),
            };
            eprintln!("lockgate: {place}: {}{remedy}", escaped(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

const AGAIN: &str = "; see that its disk has room or its server runs, and try again";
const NEW_FILE: &str = "name a new file in a folder that is there";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::super::database::*;
    use crate::{
        config::{Format, Sources},
        database::{
            Author, Expected,
            pool::file::{edit, reader},
        },
        declare::{Document, Kind, Object, ObjectName, Prune},
        manifest::objects,
    };

    /// The gateway could not open the database that root had restored.
    #[test]
    fn a_restored_file_belongs_to_the_user_of_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (copy, new) = (dir.path().join("copy"), dir.path().join("new"));
        fs::write(&copy, "x").unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(12_345), Some(12_346)).unwrap();
        }
        copy_beside(&copy, &new).unwrap();
        let lock = dir.path().join("lockgate.lock");
        drop(lock_file(dir.path()).unwrap());
        for made in [&new, &lock] {
            let [owner, of_new] = [dir.path(), made].map(|path| fs::metadata(path).unwrap());
            assert_eq!((of_new.uid(), of_new.gid()), (owner.uid(), owner.gid()));
            assert_eq!(of_new.mode() & 0o777, 0o600);
        }
        // What is there already keeps its owner: it may be a link to a file of somebody else.
        let link = dir.path().join("there");
        fs::create_dir(&link).unwrap();
        fs::write(dir.path().join("foreign"), "").unwrap();
        std::os::unix::fs::symlink("../foreign", link.join("lockgate.lock")).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&link, Some(12_345), Some(12_346)).unwrap();
        }
        drop(lock_file(&link).unwrap());
        let foreign = fs::metadata(dir.path().join("foreign")).unwrap();
        assert_eq!(foreign.uid(), rustix::process::geteuid().as_raw());
    }

    #[test]
    fn a_lock_that_cannot_be_opened_is_named_with_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("lockgate.lock");
        fs::create_dir(&lock).unwrap();
        let said = lock_file(dir.path()).unwrap_err().to_string();
        let wanted = format!("{}: data_dir: cannot be opened: ", lock.display());
        assert!(said.starts_with(&wanted), "{said}");
        assert!(said.contains("; make its directory writable"), "{said}");
        if rustix::process::geteuid().is_root() {
            // Root may open every file.
            return;
        }
        fs::remove_dir(&lock).unwrap();
        let made = File::create(&lock).unwrap();
        made.set_permissions(fs::Permissions::from_mode(0o000))
            .unwrap();
        let said = lock_file(dir.path()).unwrap_err().to_string();
        assert!(said.contains("; give it to user "), "{said}");
    }

    /// A data directory with a store, and a copy of it.
    async fn stored() -> (tempfile::TempDir, Config, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources {
            set: vec![format!("data_dir={}", dir.path().display())],
            ..Sources::default()
        };
        let config = Config::load(&sources).unwrap();
        let database = Database::open(opening(&config)).await.unwrap();
        let text =
            "tenants: {a: {auth: {mode: none}, servers: {x: {command: x, env: {A: s3cret}}}}}";
        let read = objects::parse("F", text, Format::Yaml, &std::collections::BTreeMap::new());
        let (declared, author) = (read.unwrap().declared, Author::named("manifest"));
        let applied = database.objects();
        let applied = applied.apply(&declared, Prune::Keep, &author).await;
        applied.unwrap();
        let copy = dir.path().join("copy.db");
        copied(&copy, &config).await.unwrap();
        database.close().await;
        (dir, config, copy)
    }

    /// A copy made by a newer release, before an upgrade, was of no use to the older one, and its store had changed.
    #[tokio::test]
    async fn a_copy_leaves_the_store_as_it_is() {
        let (dir, config, _) = stored().await;
        let store = config.data_dir.join("lockgate.db");
        edit(
            &store,
            "DELETE FROM _sqlx_migrations WHERE version = (SELECT MAX(version) FROM _sqlx_migrations)",
        )
        .await;
        // Nor does a copy need the key.
        fs::remove_file(config.data_dir.join("master.key")).unwrap();
        let (before, target) = (fs::read(&store).unwrap(), dir.path().join("older.db"));
        let said = copied(&target, &config).await.unwrap();
        assert!(said.ends_with("; keep master.key elsewhere"), "{said}");
        assert!(fs::read(&store).unwrap() == before, "it was changed");
        assert!(!config.data_dir.join("master.key").exists());
        assert!(fs::metadata(&target).unwrap().len() > 0);
        fs::remove_file(&target).unwrap();
        fs::write(&store, "").unwrap();
        let said = copied(&target, &config).await.unwrap_err().to_string();
        assert!(said.contains("is no store of lockgate"), "{said}");
        assert!(!target.exists());
    }

    /// On a new machine the copy was named, and not the place of its key.
    #[tokio::test]
    async fn a_restore_without_the_key_says_where_it_belongs() {
        let (_dir, config, copy) = stored().await;
        let key = config.data_dir.join("master.key");
        fs::remove_file(&key).unwrap();
        let refused = replaced(&copy, &config, false).await.unwrap_err();
        let said = refused.to_string();
        let wanted = format!("{}: master_key: is not there", key.display());
        assert!(said.starts_with(&wanted), "{said}");
        assert!(said.contains("; put the master.key of"), "{said}");
        assert_eq!(left(&config), [""; 0]);
    }

    /// After a restore on a new machine nobody had an operator's key.
    #[tokio::test]
    async fn a_restore_says_how_an_operator_gets_in() {
        let (dir, config, copy) = stored().await;
        let (key, note) = (
            "lgk_of_the_machine_before",
            "start once with LOCKGATE_ADMIN_KEY",
        );
        let said = replaced(&copy, &config, false).await.unwrap();
        assert!(!said.contains(note), "the next start makes a key: {said}");
        let database = Database::open(opening(&config)).await.unwrap();
        let hash = ("hash".to_owned(), api_key::fingerprint(key).into());
        let object = Object::new(Kind::ApiKey, Document::from_iter([hash]));
        let (name, author) = (ObjectName::operator_key("first"), Author::named("start"));
        let objects = database.objects();
        let put = objects.put(&name, object, Expected::Absent, &author).await;
        put.unwrap();
        database.close().await;
        let copy = dir.path().join("with-a-key.db");
        copied(&copy, &config).await.unwrap();
        for (own, is_told) in [
            (None, true),
            (Some("lgk_of_another"), true),
            (Some(key), false),
        ] {
            if let Some(own) = own {
                fs::write(admin_key(&config), format!("{own}\n")).unwrap();
            }
            let said = replaced(&copy, &config, false).await.unwrap();
            assert_eq!(said.contains(note), is_told, "{said}");
        }
        let said = copied(&dir.path().join("last.db"), &config).await.unwrap();
        assert!(
            said.ends_with("; keep master.key and admin.key elsewhere"),
            "{said}"
        );
    }

    /// What a restore says when it refuses a copy, and replaces nothing.
    async fn refusal(copy: &Path, config: &Config) -> String {
        let store = config.data_dir.join("lockgate.db");
        let before = fs::read(&store).unwrap();
        let refused = replaced(copy, config, false).await.unwrap_err();
        assert!(matches!(refused, database::Error::Invalid(_)), "{refused}");
        assert!(
            fs::read(&store).unwrap() == before,
            "it was replaced: {refused}"
        );
        assert!(!config.data_dir.join("lockgate.db.before").exists());
        let said = refused.to_string();
        assert!(said.starts_with(&format!("{}: ", copy.display())), "{said}");
        assert!(said.contains("; "), "{said}");
        assert_eq!(left(config), [""; 0], "{said}");
        said
    }

    /// The files of restores that are not done.
    fn left(config: &Config) -> Vec<String> {
        let names = fs::read_dir(&config.data_dir).unwrap();
        let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
        let is_left = |name: &String| name.starts_with("lockgate.db.") && !name.contains(".before");
        names.filter(is_left).collect()
    }

    #[tokio::test]
    async fn what_a_killed_restore_left_is_removed_and_not_read() {
        let (_dir, config, copy) = stored().await;
        let leave = || {
            for end in ["new", "new-wal", "new-shm", "migrate"] {
                let path = config.data_dir.join(format!("lockgate.db.{end}"));
                fs::write(path, "left").unwrap();
            }
        };
        leave();
        replaced(&copy, &config, false).await.unwrap();
        assert_eq!(left(&config), [""; 0]);
        leave();
        drop(crate::cli::serve::database::lock(&config).unwrap());
        assert_eq!(left(&config), [""; 0]);
    }

    /// Grants that the copy was to lose were good again: their end was in the log that was removed.
    #[tokio::test]
    async fn a_restored_file_has_all_that_was_written_to_it() {
        let (dir, config, copy) = stored().await;
        let new = dir.path().join("new.db");
        copy_beside(&copy, &new).unwrap();
        edit(&new, "PRAGMA journal_mode = WAL").await;
        let reading = reader(&new).await;
        edit(&new, "ANALYZE").await;
        let read = read_as_served(&new, &config, false).await;
        assert!(
            matches!(read, Err(database::Error::Unavailable(_))),
            "{read:?}"
        );
        drop(reading);
        read_as_served(&new, &config, false).await.unwrap();
        assert!(!has_log(&new));
    }

    /// What was written since a backup began was lost on the way back, which reads no log.
    #[tokio::test]
    async fn a_store_with_changes_in_its_log_alone_is_not_replaced() {
        let (_dir, config, copy) = stored().await;
        let store = config.data_dir.join("lockgate.db");
        let reading = reader(&store).await;
        edit(&store, "ANALYZE").await;
        let refused = replaced(&copy, &config, false).await.unwrap_err();
        let said = refused.to_string();
        let expected = ["another process reads it", "-wal elsewhere"];
        assert!(expected.iter().all(|part| said.contains(part)), "{said}");
        let before = config.data_dir.join("lockgate.db.before");
        assert!(has_log(&store) && !before.exists());
        assert_eq!(left(&config), [""; 0]);
        drop(reading);
        replaced(&copy, &config, false).await.unwrap();
        assert!(!has_log(&before));
        replaced(&before, &config, true).await.unwrap();
    }

    /// Of the data directory of a gateway that was killed the last changes were missing.
    #[tokio::test]
    async fn a_copy_with_changes_in_a_log_is_refused() {
        let (_dir, config, copy) = stored().await;
        let log = PathBuf::from(format!("{}-wal", copy.display()));
        fs::write(&log, "changes").unwrap();
        let said = refusal(&copy, &config).await;
        assert!(said.contains("lockgate backup"), "{said}");
        fs::write(&log, "").unwrap();
        replaced(&copy, &config, false).await.unwrap();
    }

    /// It was removed first, and lost where a later step failed.
    #[test]
    fn the_store_of_before_stays_until_another_is_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (file, new) = (at("lockgate.db"), at("lockgate.db.new"));
        let before = at("lockgate.db.before");
        for (path, text) in [(&file, "file"), (&new, "new"), (&before, "before")] {
            fs::write(path, text).unwrap();
        }
        fs::write(at("lockgate.db-wal"), "log").unwrap();
        fs::create_dir(at("lockgate.db-shm")).unwrap();
        replace_file(&new, &file).unwrap_err();
        assert_eq!(fs::read_to_string(&before).unwrap(), "before");
        assert_eq!(fs::read_to_string(&file).unwrap(), "file");
        fs::remove_dir(at("lockgate.db-shm")).unwrap();
        fs::write(at("lockgate.db-wal"), "log").unwrap();
        let kept = replace_file(&new, &file).unwrap();
        assert_eq!(kept, Some(before.clone()));
        let log = at("lockgate.db.before-wal");
        for (path, text) in [(&file, "new"), (&before, "file"), (&log, "log")] {
            assert_eq!(fs::read_to_string(path).unwrap(), text, "{path:?}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    /// The copy was sealed under the key that the rotation dropped.
    #[tokio::test]
    async fn a_restore_and_a_change_of_the_master_key_wait_for_each_other() {
        let (_dir, config, copy) = stored().await;
        let lock = opening(&config).keys.lock().unwrap().unwrap();
        let store = config.data_dir.join("lockgate.db");
        let before = fs::read(&store).unwrap();
        for refused in [
            replaced(&copy, &config, false).await,
            rotated(&config).await,
        ] {
            let said = refused.unwrap_err().to_string();
            let wanted =
                "is in use by another lockgate key rotate or lockgate restore; wait for it";
            assert!(said.contains(wanted), "{said}");
        }
        assert!(fs::read(&store).unwrap() == before, "it was replaced");
        drop(lock);
        replaced(&copy, &config, false).await.unwrap();
        rotated(&config).await.unwrap();
    }

    /// The gateway that ran told Redis the key of before, and none with the new one alone could start.
    #[tokio::test]
    async fn a_key_file_beside_redis_is_not_changed() {
        let (_dir, config, _) = stored().await;
        let file = config.data_dir.join("master.key");
        let before = fs::read(&file).unwrap();
        let with = |more: &[String]| {
            let own = format!("data_dir={}", config.data_dir.display());
            let mut set = vec![own, "redis.url=redis://h".to_owned()];
            set.extend_from_slice(more);
            let sources = Sources {
                set,
                ..Sources::default()
            };
            Config::load(&sources).unwrap()
        };
        let said = rotated(&with(&[])).await.unwrap_err().to_string();
        assert!(said.contains("by the steps in docs/store.md"), "{said}");
        assert!(fs::read(&file).unwrap() == before, "it was changed");
        let text = String::from_utf8(before.clone()).unwrap();
        let given = format!("master_key={}", text.trim());
        rotated(&with(&[given])).await.unwrap();
        assert!(fs::read(&file).unwrap() == before, "it was changed");
        rotated(&config).await.unwrap();
        assert!(fs::read(&file).unwrap() != before, "it was not changed");
    }

    #[tokio::test]
    async fn a_copy_without_its_last_bytes_is_refused() {
        let (_dir, config, copy) = stored().await;
        let whole = fs::read(&copy).unwrap();
        for (end, more) in [(1, 0), (20, 0), (4095, 0), (0, 1)] {
            let mut bytes = whole[..whole.len() - end].to_vec();
            bytes.resize(bytes.len() + more, 0);
            fs::write(&copy, bytes).unwrap();
            let said = refusal(&copy, &config).await;
            assert!(said.contains("is no whole database"), "{said}");
        }
        fs::write(&copy, whole).unwrap();
        let said = replaced(&copy, &config, false).await.unwrap();
        let way_back = format!(
            "lockgate restore {}.before",
            config.data_dir.join("lockgate.db").display()
        );
        assert!(said.contains(&way_back), "{said}");
        fs::copy(config.data_dir.join("lockgate.db.before"), &copy).unwrap();
        replaced(&copy, &config, true).await.unwrap();
    }

    #[tokio::test]
    async fn a_copy_with_another_schema_or_seal_is_refused() {
        let (_dir, config, copy) = stored().await;
        let whole = fs::read(&copy).unwrap();
        let other = "is not as lockgate makes its store: ";
        for (statement, why) in [
            ("DROP TABLE grants", "index \"grants_by_client\""),
            ("ALTER TABLE grants ADD COLUMN x", "table \"grants\""),
            ("DROP INDEX grants_by_end", "index \"grants_by_end\""),
            ("CREATE VIEW v AS SELECT 1", "view \"v\""),
            (
                "CREATE TRIGGER t AFTER INSERT ON audit BEGIN DELETE FROM audit; END",
                "trigger \"t\"",
            ),
        ] {
            fs::write(&copy, &whole).unwrap();
            edit(&copy, statement).await;
            let said = refusal(&copy, &config).await;
            assert!(said.contains(&format!("{other}{why}")), "{said}");
        }
        for (statement, why) in [
            (
                "DELETE FROM seal_keys",
                "does not say which master key sealed it",
            ),
            (
                "UPDATE seal_keys SET id = 'other'",
                "is not the one that sealed this store",
            ),
            (
                "UPDATE seal_keys SET check_seal = x'00'",
                "the check of the master key",
            ),
        ] {
            fs::write(&copy, &whole).unwrap();
            edit(&copy, statement).await;
            let said = refusal(&copy, &config).await;
            assert!(said.contains(why), "{said}");
        }
        fs::write(&copy, &whole).unwrap();
        edit(&copy, "ANALYZE").await;
        replaced(&copy, &config, false).await.unwrap();
    }

    #[tokio::test]
    async fn a_copy_that_no_gateway_would_serve_is_refused() {
        let (_dir, config, copy) = stored().await;
        let whole = fs::read(&copy).unwrap();
        for (statement, why) in [
            (
                "UPDATE servers SET spec = substr(spec, 1, 9)",
                "the document of server a/x",
            ),
            (
                "UPDATE servers SET secret = zeroblob(60)",
                "the seal of server a/x",
            ),
            (
                "UPDATE servers SET spec = '{\"command\": 5}'",
                "tenants.a.servers.x.command",
            ),
            ("UPDATE servers SET name = 'A B'", "tenants.a.servers"),
        ] {
            fs::write(&copy, &whole).unwrap();
            edit(&copy, statement).await;
            let said = refusal(&copy, &config).await;
            assert!(said.contains(why), "{said}");
        }
    }
}
