//! The directory for private files of children: in the data directory or in that of `work_dir`, or a temporary one.
//!
//! One outside of the data directory is removed with its gateway. What a killed gateway leaves is removed by the next
//! one that has its own there: a gateway holds the lock of its own for as long as it runs.

use std::{
    ffi::OsStr,
    fs::{self, File, Metadata, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    process::Uid,
};

use super::private_dir;
use crate::{
    backend::{child::Launcher, linux::removal},
    base::{RANDOM_NAME, is_random_name, random_name},
    config::{
        Config, Mistake, OWN_DIRECTORY, Separation, WORK_LETTERS, WORK_PREFIX, Wrong, is_work_name,
    },
    declare::{Catalog, Offer, Profile},
};

/// The directory for private files of children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// In the data directory.
    Kept(PathBuf),
    /// In the directory for temporary files; removed with the gateway.
    Temporary(PathBuf),
    /// In the directory that `work_dir` names; removed with the gateway.
    Named(PathBuf),
}

/// The lock of a directory that is removed with the gateway; none for one that is kept.
pub(super) struct WorkLock(#[expect(dead_code, reason = "held until dropped")] Option<File>);

impl Work {
    /// In the directory of `work_dir`, or without one in the data directory, unless there is none (`run`), or it is
    /// closed to a child with a uid of its own, or so long that programs cannot make a socket in a private directory.
    ///
    /// # Errors
    ///
    /// The mistake of a `work_dir` that is that long.
    pub(super) fn of(config: &Config, offer: &Offer) -> Result<Self, Mistake> {
        if let Some(dir) = &config.work_dir {
            return Self::below(dir)
                .map_err(|wrong| wrong.at(config.place("work_dir"), "work_dir"));
        }
        let kept = config.data_dir.join(KEPT);
        let is_closed = config.is_run || offer.separation == Separation::Uid;
        Ok(if is_closed || kept.as_os_str().len() > LONGEST_WORK {
            Self::Temporary(std::env::temp_dir().join(format!("{PREFIX}{}", random_name())))
        } else {
            Self::Kept(kept)
        })
    }

    /// A new directory in that of `work_dir`.
    fn below(dir: &Path) -> Result<Self, Wrong> {
        let length = dir.as_os_str().len();
        if length > LONGEST_DIR {
            let what = format!(
                "{} has {length} bytes: programs could make no socket in a directory of theirs below it",
                dir.display()
            );
            let remedy = format!("name a directory of at most {LONGEST_DIR} bytes, such as /work");
            return Err(Wrong::new(what, remedy));
        }
        let mut name = random_name();
        name.truncate(WORK_LETTERS);
        Ok(Self::Named(dir.join(format!("{WORK_PREFIX}{name}"))))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Kept(path) | Self::Temporary(path) | Self::Named(path) => path,
        }
    }

    /// Makes the directory, and locks one that is removed with the gateway.
    ///
    /// # Errors
    ///
    /// The file system's, with the path.
    pub(super) fn make(&self, offer: &Offer) -> anyhow::Result<WorkLock> {
        let path = self.path();
        let lock = match self {
            Self::Kept(_) => {
                private_dir::private(path)?;
                None
            }
            Self::Temporary(_) | Self::Named(_) => Some(locked(path)?),
        };
        if offer.separation == Separation::Uid {
            // Children must be able to reach their own directories below it.
            fs::set_permissions(path, Permissions::from_mode(0o711))?;
        }
        Ok(WorkLock(lock))
    }

    /// Removes the directories of killed gateways beside this one, if it is removed with its gateway.
    pub(super) fn remove_leftovers(&self) {
        let (own, user) = (self.path(), rustix::process::geteuid());
        let Some(dir) = own.parent() else { return };
        match self {
            Self::Kept(_) => {}
            Self::Temporary(_) => remove_beside(own, dir, is_temporary_name, Some(user.as_raw())),
            Self::Named(_) => {
                // The directory is the gateway's alone, which may have been another user before it was root.
                let owner = (!user.is_root()).then_some(user.as_raw());
                remove_beside(own, dir, is_work_name, owner);
                if user.is_root() {
                    remove_former(own, &dir.join(OWN_DIRECTORY));
                }
            }
        }
    }

    /// Removes what children of a killed gateway left in the data directory, if their files are elsewhere by now. The
    /// launcher looks after the present directory alone, and nobody makes directories in this one: what has no lock is
    /// left over, whatever its age.
    pub(super) fn remove_kept(&self, data_dir: &Path) {
        if matches!(self, Self::Kept(_)) {
            return;
        }
        let kept = data_dir.join(KEPT);
        // Behind a link may be what is not the gateway's: a child that could write here may have made it.
        if removal::open_closed(&kept).is_err() {
            return;
        }
        let removed = Launcher::tidy_dir(&kept, Duration::ZERO);
        if removed > 0 {
            tracing::info!(removed, "removed private directories of an earlier start");
        }
    }

    /// Removes the directory at the end, unless it is kept.
    pub(super) fn remove(&self) {
        if let Self::Temporary(path) | Self::Named(path) = self {
            // Private directories are removed with their children, so it should be empty.
            let _ = removal::remove(path);
        }
    }
}

/// Checks the directory of `work_dir`, makes none, and returns warnings.
///
/// # Errors
///
/// The mistake in its path.
pub(crate) fn check(
    config: &Config,
    offer: &Offer,
    catalog: Option<&Catalog>,
) -> Result<Vec<String>, Mistake> {
    let work = Work::of(config, offer)?;
    let unmade = match &config.work_dir {
        Some(dir) => private_dir::check_dir(config, "work_dir", dir)?,
        None => None,
    };
    let exposed = catalog.and_then(|catalog| exposure(config, work.path(), offer, catalog));
    let exposed = exposed.map(|what| format!("warning: {what}"));
    Ok(unmade.into_iter().chain(exposed).collect())
}

/// Makes the directory of `work_dir`, or closes an existing one to others, who would leave files there that programs of
/// children find.
///
/// # Errors
///
/// File system errors.
pub(super) fn claim(config: &Config, offer: &Offer) -> anyhow::Result<Result<(), Mistake>> {
    let Some(dir) = &config.work_dir else {
        return Ok(Ok(()));
    };
    let claimed = claimed(dir, offer.separation == Separation::Uid).context("work_dir")?;
    Ok(claimed.map_err(|wrong| wrong.at(config.place("work_dir"), "work_dir")))
}

/// Makes or closes a directory; children with uids of their own may pass through it.
fn claimed(dir: &Path, has_uids: bool) -> anyhow::Result<Result<(), Wrong>> {
    let cannot = || format!("cannot use the directory {}", dir.display());
    make(dir).with_context(cannot)?;
    let found = fs::metadata(dir).with_context(cannot)?;
    let own = rustix::process::geteuid();
    let foreign = foreign_reason(dir, &found, own);
    if let Some(what) = foreign.with_context(cannot)? {
        let what = format!("{} {what}", dir.display());
        return Ok(Err(Wrong::new(what, private_dir::REMEDY)));
    }
    if let Some(closed) = closed_above(dir).filter(|_| has_uids) {
        let what = format!(
            "{} keeps children with uids of their own out",
            closed.display()
        );
        return Ok(Err(Wrong::new(
            what,
            "name a directory that all users reach",
        )));
    }
    if found.uid() != own.as_raw() {
        // Root takes over what it used as another user, who could open it again.
        chown(dir, Some(own.as_raw()), None).with_context(cannot)?;
    }
    let mode = if has_uids { 0o711 } else { 0o700 };
    if found.mode() & 0o777 != mode {
        fs::set_permissions(dir, Permissions::from_mode(mode)).with_context(cannot)?;
    }
    Ok(Ok(()))
}

/// Makes a directory with those on the way, unless it exists. Other users pass through them whatever the umask is,
/// as children with uids of their own must.
fn make(dir: &Path) -> io::Result<()> {
    let is_missing =
        |dir: &&Path| fs::metadata(dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let missing: Vec<&Path> = dir.ancestors().take_while(is_missing).collect();
    for dir in missing.into_iter().rev() {
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => fs::set_permissions(dir, Permissions::from_mode(0o711))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The reason why a directory is not for a gateway of the user `own` alone, if any.
fn foreign_reason(dir: &Path, found: &Metadata, own: Uid) -> io::Result<Option<&'static str>> {
    if found.uid() != own.as_raw() && !own.is_root() {
        return Ok(Some("belongs to another user"));
    }
    if found.mode() & STICKY != 0 {
        return Ok(Some("is one that all users share"));
    }
    // In a volume of root's it was below the mount before it became root.
    let is_former = |name: &OsStr| own.is_root() && name == OWN_DIRECTORY;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let is_own = is_of_work(&name) || (is_former(&name) && holds_work_alone(&dir.join(&name)));
        if !is_own {
            return Ok(Some("holds what is not the gateway's"));
        }
    }
    Ok(None)
}

/// Whether a name in a work directory is the gateway's. The root of a new file system contains `lost+found`.
fn is_of_work(name: &OsStr) -> bool {
    name == "lost+found" || name.to_str().is_some_and(is_work_name)
}

/// Whether this is a directory, and no link to one, with nothing but directories of gateways in it: no store.
fn holds_work_alone(dir: &Path) -> bool {
    let is_own =
        |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| is_of_work(&entry.file_name()));
    open(dir).is_ok() && fs::read_dir(dir).is_ok_and(|mut entries| entries.all(is_own))
}

/// The nearest directory above this one that other users may not pass.
fn closed_above(dir: &Path) -> Option<&Path> {
    let is_closed =
        |dir: &&Path| fs::metadata(dir).is_ok_and(|found| found.mode() & OTHERS_PASS == 0);
    dir.ancestors().skip(1).find(is_closed)
}

/// Warns of a directory above the files of children in which a server may leave files. Many programs look for code and
/// settings in all directories above their own (`node_modules`, `.env`), and would find another tenant's.
///
/// Files of other children are in the data directory, unless its path is long.
pub(super) fn exposure(
    config: &Config,
    work: &Path,
    offer: &Offer,
    catalog: &Catalog,
) -> Option<String> {
    if offer.separation != Separation::Uid {
        return None;
    }
    // That of `work_dir` is closed at the start.
    let above = config.work_dir.as_deref().unwrap_or(work).parent()?;
    let real = above.canonicalize().ok();
    let is_open =
        |dir: &&Path| fs::metadata(dir).is_ok_and(|found| found.mode() & OTHERS_WRITE != 0);
    let above = [Some(above), real.as_deref()].into_iter().flatten();
    let open: Vec<&Path> = above.flat_map(Path::ancestors).filter(is_open).collect();
    let (server, dir) = catalog.servers().find_map(|server| {
        let walls = &server.launch.confinement;
        let is_walled = walls.profile == Profile::Standard && offer.landlock > 0;
        let may_write =
            |dir: &&&Path| !is_walled || walls.write.iter().any(|path| dir.starts_with(path));
        open.iter().find(may_write).map(|dir| (server, dir))
    })?;
    Some(format!(
        "work_dir: {} lies above the files of children, which look there for code and settings, and server {}/{} may \
         write there: name a directory that only the gateway writes, below none that others write",
        dir.display(),
        server.tenant,
        server.name
    ))
}

/// Makes and locks a directory that is removed with the gateway. Another gateway that looks for leftovers may remove it
/// before it is locked; then it is made anew, and nobody else can have made it.
fn locked(path: &Path) -> anyhow::Result<File> {
    if let Some(parent) = path.parent() {
        private_dir::made(parent)?;
    }
    loop {
        let made = fs::DirBuilder::new().mode(0o700).create(path);
        made.with_context(|| format!("cannot make the directory {}", path.display()))?;
        let cannot = || format!("cannot lock the directory {}", path.display());
        let Ok(dir) = open(path) else { continue };
        flock(&dir, FlockOperation::LockExclusive).with_context(cannot)?;
        let held = dir.metadata().with_context(cannot)?;
        if fs::symlink_metadata(path).is_ok_and(|found| found.ino() == held.ino()) {
            return Ok(dir);
        }
    }
}

/// Removes the directories of killed gateways in `dir` but this one's `own`: those of the user `owner`, or of all.
fn remove_beside(own: &Path, dir: &Path, is_left: fn(&str) -> bool, owner: Option<u32>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path != own && name.to_str().is_some_and(is_left) {
            let removed = remove_leftover(&path, owner);
            if let Err(error) = removed {
                tracing::warn!(dir = %path.display(), %error, "cannot remove what a gateway left");
            }
        }
    }
}

/// Removes the work directory of before the gateway became root, with all that killed ones left there.
fn remove_former(own: &Path, dir: &Path) {
    if open(dir).is_err() {
        // There is none, or a link.
        return;
    }
    remove_beside(own, dir, is_work_name, None);
    // It remains as long as something in it is alive, or another's.
    let _ = fs::remove_dir(dir);
}

/// Removes the directory of a gateway of this user, unless the gateway or one of its children is alive.
fn remove_leftover(path: &Path, owner: Option<u32>) -> io::Result<()> {
    let Ok(dir) = removal::open_closed(path) else {
        return Ok(());
    };
    remove_opened(&dir, path, owner)
}

/// Removes a directory that was opened at this path, unless there is another one by now: between the opening
/// and the lock, one gateway may have removed it, and its owner made it anew.
fn remove_opened(dir: &File, path: &Path, owner: Option<u32>) -> io::Result<()> {
    let opened = dir.metadata()?;
    if owner.is_some_and(|owner| opened.uid() != owner) || !is_free(dir) {
        return Ok(());
    }
    let is_there = fs::symlink_metadata(path).is_ok_and(|found| found.ino() == opened.ino());
    if !is_there {
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        // The guard of a child holds the lock of its private directory.
        let private = removal::open_closed(&entry?.path());
        let is_alive = private.is_ok_and(|private| !is_free(&private));
        if is_alive {
            return Ok(());
        }
    }
    // Nobody waits for it, and installed packages may be very many files.
    removal::remove_patiently(path)
}

/// Takes the lock of a directory, until it is closed; false if another process has it.
fn is_free(dir: &File) -> bool {
    flock(dir, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Opens a directory; follows no link.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    Ok(File::from(dir))
}

/// Whether a file name may be that of a temporary directory.
fn is_temporary_name(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(is_random_name)
}

/// What the name of a temporary directory begins with.
const PREFIX: &str = "lockgate-";
/// The directory in the data directory.
const KEPT: &str = "work";

/// The longest path of the directory of private directories, so that a private directory has a path of at
/// most 60 bytes. The address of a UNIX socket has 107 (unix(7)), of which Chromium takes 46 below TMPDIR:
/// `/.org.chromium.Chromium.XXXXXX/SingletonSocket`.
const LONGEST_WORK: usize = 60 - 1 - RANDOM_NAME;
/// The longest path of `work_dir`, for the same reason.
const LONGEST_DIR: usize = LONGEST_WORK - 1 - WORK_PREFIX.len() - WORK_LETTERS;

/// The bit of a directory in which users keep their files from each other.
const STICKY: u32 = 0o1000;
/// The bit by which other users pass through a directory.
const OTHERS_PASS: u32 = 0o001;
/// The bit by which they make files in it.
const OTHERS_WRITE: u32 = 0o002;

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::atomic::{AtomicBool, Ordering},
    };

    use super::super::work::*;
    use crate::{
        config::{Format, Sources},
        manifest::reader,
    };

    fn config(set: &[String]) -> Config {
        let mut all = vec!["data_dir=/d".to_owned()];
        all.extend_from_slice(set);
        let sources = Sources {
            set: all,
            ..Sources::default()
        };
        Config::load(&sources).unwrap()
    }

    fn work_dir(dir: &Path) -> Config {
        config(&[format!("work_dir={}", dir.display())])
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn private_directories_leave_room_for_the_socket_of_a_browser() {
        let work = |data_dir: &str, separation| {
            let offer = Offer {
                separation,
                ..Offer::none()
            };
            Work::of(&config(&[format!("data_dir={data_dir}")]), &offer).unwrap()
        };
        for (data_dir, separation, is_kept) in [
            ("/var/lib/lockgate", Separation::Landlock, true),
            (
                "/home/ada/.local/state/lockgate",
                Separation::Namespace,
                true,
            ),
            (
                "/home/ada.lovelace/.local/state/lockgate",
                Separation::Namespace,
                false,
            ),
            ("/var/lib/lockgate", Separation::Uid, false),
        ] {
            let work = work(data_dir, separation);
            assert_eq!(matches!(work, Work::Kept(_)), is_kept, "{data_dir}");
            let private = work.path().join(random_name());
            let socket = ".org.chromium.Chromium.XXXXXX/SingletonSocket";
            assert!(private.as_os_str().len() <= 60, "{}", private.display());
            assert!(private.join(socket).as_os_str().len() <= 107);
        }
    }

    #[test]
    fn a_work_dir_leaves_room_for_the_same() {
        for separation in [Separation::Uid, Separation::Namespace] {
            let offer = Offer {
                separation,
                ..Offer::none()
            };
            let longest = format!("/{}", "w".repeat(27));
            let work = Work::of(&work_dir(Path::new(&longest)), &offer).unwrap();
            assert_eq!(work.path().parent(), Some(Path::new(&longest)));
            let private = work.path().join(random_name());
            assert_eq!(private.as_os_str().len(), 60, "{}", private.display());
            let longer = format!("{longest}w");
            let mistake = Work::of(&work_dir(Path::new(&longer)), &offer).unwrap_err();
            let wanted = format!(
                "--set: work_dir: {longer} has 29 bytes: programs could make no socket in a directory of theirs below \
                 it; name a directory of at most 28 bytes, such as /work"
            );
            assert_eq!(mistake.to_string(), wanted);
            let checked = check(&work_dir(Path::new(&longer)), &offer, None);
            assert_eq!(checked.unwrap_err(), mistake);
        }
    }

    #[test]
    fn a_work_dir_is_the_gateways_alone() {
        let tmp = tempfile::tempdir().unwrap();
        let new = tmp.path().join("a/b");
        claim(&work_dir(&new), &Offer::none()).unwrap().unwrap();
        assert_eq!(mode(&new), 0o700);
        // With a umask of 0077 it kept children with uids of their own out, at the next start.
        assert_eq!(mode(new.parent().unwrap()), 0o711);
        // As the kubelet makes one.
        set_mode(&new, 0o777);
        fs::create_dir(new.join("lost+found")).unwrap();
        fs::create_dir(new.join("lg.a-_0Z")).unwrap();
        claim(&work_dir(&new), &Offer::none()).unwrap().unwrap();
        assert_eq!(mode(&new), 0o700);
        if rustix::process::geteuid().is_root() {
            // Only root can change owners.
            chown(&new, Some(65_534), None).unwrap();
            claim(&work_dir(&new), &Offer::none()).unwrap().unwrap();
            assert_eq!(fs::metadata(&new).unwrap().uid(), 0);
        }
        for (name, what) in [
            ("website", "holds what is not the gateway's"),
            ("lg.monitor", "holds what is not the gateway's"),
            ("lockgate.db", "holds what is not the gateway's"),
        ] {
            set_mode(&new, 0o755);
            fs::create_dir(new.join(name)).unwrap();
            let mistake = claim(&work_dir(&new), &Offer::none()).unwrap().unwrap_err();
            assert_eq!((&*mistake.place, &*mistake.key), ("--set", "work_dir"));
            assert_eq!(mistake.what, format!("{} {what}", new.display()));
            assert_eq!(mode(&new), 0o755, "it is changed");
            fs::remove_dir(new.join(name)).unwrap();
        }
        set_mode(&new, 0o1777);
        let mistake = claim(&work_dir(&new), &Offer::none()).unwrap().unwrap_err();
        assert!(
            mistake.what.ends_with("is one that all users share"),
            "{mistake}"
        );
        let (root, stranger) = (fs::metadata("/").unwrap(), Uid::from_raw(12_345));
        let reason = foreign_reason(Path::new("/"), &root, stranger).unwrap();
        assert_eq!(reason, Some("belongs to another user"));
    }

    #[test]
    fn children_with_uids_can_reach_a_work_dir() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("w");
        set_mode(tmp.path(), 0o700);
        assert_eq!(closed_above(&dir), Some(tmp.path()));
        let wrong = claimed(&dir, true).unwrap().unwrap_err();
        let what = format!(
            "{} keeps children with uids of their own out",
            tmp.path().display()
        );
        assert_eq!(wrong.what, what);
        claimed(&dir, false).unwrap().unwrap();
        set_mode(tmp.path(), 0o711);
        assert_ne!(closed_above(&dir), Some(tmp.path()));
        // Where temporary directories are in a home there is another one above.
        if closed_above(&dir).is_none() {
            claimed(&dir, true).unwrap().unwrap();
            assert_eq!(mode(&dir), 0o711);
        }
    }

    #[test]
    fn a_directory_above_that_a_server_writes_is_warned_of() {
        let tmp = tempfile::tempdir().unwrap();
        let shared = tmp.path().join("shared");
        fs::create_dir(&shared).unwrap();
        set_mode(&shared, 0o1777);
        let own = shared.join("own");
        fs::create_dir(&own).unwrap();
        set_mode(&own, 0o777);
        let said = |config: &Config, work: &Path, separation, sandbox: &str| {
            let offer = Offer {
                separation,
                landlock: 6,
                ..Offer::none()
            };
            let server = format!("x: {{command: sh, sandbox: {{{sandbox}}}}}");
            let text = format!("tenants: {{a: {{auth: {{mode: none}}, servers: {{{server}}}}}}}");
            let read = reader::parse("F", &text, Format::Yaml, &BTreeMap::new()).unwrap();
            exposure(config, work, &offer, &read.catalog)
        };
        let (none, named) = (config(&[]), work_dir(&own));
        let temporary = shared.join("lockgate-x");
        let writes = |dir: &Path| format!("write: [{}]", dir.display());
        let wanted = format!("work_dir: {} lies above", shared.display());
        for sandbox in ["profile: open", &writes(&shared), &writes(tmp.path())] {
            let what = said(&none, &temporary, Separation::Uid, sandbox).unwrap();
            assert!(
                what.starts_with(&wanted) && what.contains("server a/x may"),
                "{what}"
            );
            assert!(said(&named, &own.join("lg.abcde"), Separation::Uid, sandbox).is_some());
            assert_eq!(said(&none, &temporary, Separation::Landlock, sandbox), None);
        }
        for sandbox in ["profile: standard", &writes(&shared.join("other"))] {
            assert_eq!(
                said(&none, &temporary, Separation::Uid, sandbox),
                None,
                "{sandbox}"
            );
        }
        // It is closed at the start.
        let own_alone = said(
            &named,
            &own.join("lg.abcde"),
            Separation::Uid,
            &writes(&own),
        );
        assert_eq!(own_alone, None);
    }

    #[test]
    fn what_a_killed_gateway_left_in_a_work_dir_is_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let new = || {
            Work::Named(
                tmp.path()
                    .join(format!("{WORK_PREFIX}{}", &random_name()[..5])),
            )
        };
        let (own, killed, running) = (new(), new(), new());
        let _locks = [&own, &running].map(|work| work.make(&Offer::none()).unwrap());
        drop(killed.make(&Offer::none()).unwrap());
        let others = ["lg.website", "website", "lockgate-aaaaaaaaaaaaaaaaaaaaaa"];
        for name in others {
            fs::create_dir(tmp.path().join(name)).unwrap();
        }
        own.remove_leftovers();
        assert!(!killed.path().exists());
        assert!(own.path().is_dir() && running.path().is_dir());
        assert!(others.iter().all(|name| tmp.path().join(name).is_dir()));
        own.remove();
        assert!(!own.path().exists());
    }

    /// After `sandbox.uids` had made the gateway root it did not start, and what it had left as another user stayed.
    #[test]
    fn root_takes_over_what_the_gateway_left_as_another_user() {
        let tmp = tempfile::tempdir().unwrap();
        let former = tmp.path().join(OWN_DIRECTORY);
        let [left, beside] = [former.join("lg.a-_0Z"), tmp.path().join("lg.b-_0Z")];
        for dir in [&left, &beside] {
            fs::create_dir_all(dir.join(random_name())).unwrap();
        }
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            // Only root can change owners.
            for dir in [tmp.path(), &former, &left, &beside] {
                chown(dir, Some(65_534), None).unwrap();
            }
        }
        let found = fs::metadata(tmp.path()).unwrap();
        let reason = |user| foreign_reason(tmp.path(), &found, user).unwrap();
        assert_eq!(reason(Uid::ROOT), None);
        let foreign = Some("holds what is not the gateway's");
        assert_eq!(reason(Uid::from_raw(found.uid())), foreign);
        fs::write(former.join("lockgate.db"), "").unwrap();
        assert!(reason(Uid::ROOT).is_some(), "it is a data directory");
        fs::remove_file(former.join("lockgate.db")).unwrap();
        let own = Work::Named(tmp.path().join("lg.c-_0Z"));
        let _lock = own.make(&Offer::none()).unwrap();
        if is_root {
            own.remove_leftovers();
        } else {
            remove_former(own.path(), &former);
            remove_leftover(&beside, None).unwrap();
        }
        assert!(!former.exists() && !beside.exists());
        let link = tmp.path().join("link");
        fs::create_dir_all(&left).unwrap();
        std::os::unix::fs::symlink(&former, &link).unwrap();
        assert!(!holds_work_alone(&link));
        remove_former(own.path(), &link);
        assert!(left.is_dir() && own.path().is_dir());
    }

    /// They took the room of the database for ever, since the launcher looks into the new directory alone.
    #[test]
    fn what_children_left_in_the_data_directory_is_removed_once_they_are_elsewhere() {
        let tmp = tempfile::tempdir().unwrap();
        let kept = tmp.path().join(KEPT);
        let [left, of_guard] = [(); 2].map(|()| kept.join(random_name()));
        for dir in [&left, &of_guard, &kept.join("notes")] {
            fs::create_dir_all(dir).unwrap();
        }
        let guard = open(&of_guard).unwrap();
        assert!(is_free(&guard));
        Work::Kept(kept.clone()).remove_kept(tmp.path());
        assert!(left.exists());
        let elsewhere = Work::Named(tmp.path().join("w/lg.a-_0Z"));
        // As a child of the gateway's user can have made it, before the gateway was root.
        let moved = tmp.path().join("moved");
        fs::rename(&kept, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &kept).unwrap();
        elsewhere.remove_kept(tmp.path());
        assert!(left.exists(), "it is behind a link");
        fs::remove_file(&kept).unwrap();
        fs::rename(&moved, &kept).unwrap();
        elsewhere.remove_kept(tmp.path());
        assert!(!left.exists() && kept.join("notes").exists());
        assert!(of_guard.exists(), "its child is alive");
    }

    /// A gateway that is not root left it for ever, once a child had closed it.
    #[test]
    fn what_a_killed_gateway_left_is_removed_though_it_is_closed() {
        let tmp = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let as_nobody = scope.spawn(|| {
                if rustix::process::geteuid().is_root() {
                    let nobody = Uid::from_raw(65_534);
                    chown(tmp.path(), Some(nobody.as_raw()), None).unwrap();
                    rustix::thread::set_thread_uid(nobody).unwrap();
                }
                let [own, left] = ["lg.a-_0Z", "lg.b-_0Z"].map(|name| tmp.path().join(name));
                let private = left.join(random_name());
                fs::create_dir_all(&private).unwrap();
                let guard = open(&private).unwrap();
                assert!(is_free(&guard));
                set_mode(&private, 0);
                Work::Named(own.clone()).remove_leftovers();
                assert!(private.exists(), "its child is alive");
                drop(guard);
                set_mode(&private, 0);
                set_mode(&left, 0);
                Work::Named(own).remove_leftovers();
                assert!(!left.exists());
            });
            as_nobody.join().unwrap();
        });
    }

    #[test]
    fn gateways_that_start_at_once_are_not_in_each_others_way() {
        let tmp = tempfile::tempdir().unwrap();
        let new = || Work::Temporary(tmp.path().join(format!("{PREFIX}{}", random_name())));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        new().remove_leftovers();
                    }
                });
            }
            for _ in 0..1000 {
                let work = new();
                let made = work.make(&Offer::none());
                let is_there = work.path().is_dir();
                if made.is_err() || !is_there {
                    is_over.store(true, Ordering::Relaxed);
                }
                assert!(is_there, "{:#}", made.err().unwrap());
                made.unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn what_a_killed_gateway_left_is_removed_and_nothing_else() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        let new = || {
            let work = Work::Temporary(at(&format!("{PREFIX}{}", random_name())));
            let lock = work.make(&Offer::none()).unwrap();
            (work, lock)
        };
        let (own, _own) = new();
        let (running, _running) = new();
        let (with_child, killed) = new();
        let private = with_child.path().join(random_name());
        fs::create_dir(&private).unwrap();
        let guard = open(&private).unwrap();
        assert!(is_free(&guard));
        drop(killed);
        let (left, killed) = new();
        fs::create_dir(left.path().join(random_name())).unwrap();
        fs::write(left.path().join("notes"), "").unwrap();
        drop(killed);
        let link = at(&format!("{PREFIX}{}", random_name()));
        std::os::unix::fs::symlink(tmp.path(), &link).unwrap();
        fs::create_dir(at("lockgate-demo")).unwrap();
        own.remove_leftovers();
        assert!(!left.path().exists());
        for path in [own.path(), running.path(), &private, &at("lockgate-demo")] {
            assert!(path.is_dir(), "{}", path.display());
        }
        assert!(link.is_symlink());
        drop(guard);
        remove_leftover(with_child.path(), Some(u32::MAX)).unwrap();
        assert!(with_child.path().exists(), "it is another user's");
        own.remove_leftovers();
        assert!(!with_child.path().exists());
        own.remove();
        assert!(!own.path().exists());
    }

    #[test]
    fn a_directory_that_was_made_anew_is_not_taken_for_the_one_that_was_opened() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join(format!("{PREFIX}{}", random_name()));
        let work = Work::Temporary(path.clone());
        drop(work.make(&Offer::none()).unwrap());
        let (opened, own_uid) = (open(&path).unwrap(), rustix::process::geteuid().as_raw());
        // Another gateway removes it, and its owner makes it anew.
        fs::remove_dir(&path).unwrap();
        let _lock = work.make(&Offer::none()).unwrap();
        remove_opened(&opened, &path, Some(own_uid)).unwrap();
        assert!(path.is_dir());
    }
}
