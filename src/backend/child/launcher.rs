//! Launcher: the environment that children of a gateway share, and the launch request to the guard
//! of each child.
//!
//! Not here: the process itself (`stdio`).

use std::{
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, chown, fchown},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{fs::FlockOperation, io::Errno};
use tokio::task::spawn_blocking;

use super::zygote::Zygote;
use crate::backend::{
    guard::LaunchRequest,
    linux::removal,
    sandbox::{Restrictions, Sandbox, Store, UidLease},
};
use crate::{
    base::{budget::Descriptors, is_random_name, private_file, random_name},
    declare::{Home, Launch, Limits},
};

/// Directory of a store for temporary files, which exists while the store is filled.
pub(crate) const SCRATCH: &str = ".tmp";

/// Age beyond which a directory without a lock is a leftover: its guard would hold it by then.
const GUARDED: Duration = Duration::from_hours(1);

/// Parts of the gateway's own environment that children may get, read once at the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ambient {
    /// PATH, for every child.
    pub(crate) path: Option<OsString>,
    /// HOME, for `Home::Caller` only.
    pub(crate) home: Option<OsString>,
    /// LANG, for `Home::Caller` only.
    pub(crate) lang: Option<OsString>,
    /// TMPDIR, for `Home::Caller` only.
    pub(crate) tmpdir: Option<OsString>,
    /// Variables of every child.
    pub(crate) shared: Vec<(OsString, OsString)>,
    /// The working directory, for `Home::Caller` only.
    pub(crate) cwd: PathBuf,
}

/// The environment in which all children of a gateway start.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    /// Forks the guards.
    pub(crate) zygote: Arc<Zygote>,
    /// Parts of the gateway's environment that children may get.
    pub(crate) ambient: Ambient,
    /// Directory of the private directories.
    pub(crate) work: PathBuf,
    /// Sandbox of the children.
    pub(crate) sandbox: Arc<Sandbox>,
    /// Directory of the prepared stores.
    pub(crate) prepared: PathBuf,
    /// Open files of the gateway.
    pub(crate) descriptors: Descriptors,
}

impl Launcher {
    /// A launcher whose guards are this binary.
    pub(crate) fn new(
        ambient: Ambient,
        work: PathBuf,
        prepared: PathBuf,
        sandbox: Sandbox,
        descriptors: Descriptors,
    ) -> Self {
        Self {
            zygote: Arc::new(Zygote::new(PathBuf::from("/proc/self/exe"))),
            ambient,
            work,
            sandbox: Arc::new(sandbox),
            prepared,
            descriptors,
        }
    }

    /// Removes private directories that a killed guard left behind, and returns their number.
    pub(crate) fn tidy(&self) -> usize {
        Self::tidy_dir(&self.work, GUARDED)
    }

    /// Removes those of at least this age in this directory. Other files in it are not touched.
    pub(crate) fn tidy_dir(work: &Path, least: Duration) -> usize {
        let entries = fs::read_dir(work).into_iter().flatten().flatten();
        let is_left = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let is_private = name.to_str().is_some_and(is_random_name);
            let changed = entry.metadata().and_then(|found| found.modified());
            // A time far ahead is one that its child has set.
            let age = changed.map(|at| at.elapsed().unwrap_or_else(|ahead| ahead.duration()));
            is_private && age.is_ok_and(|age| age >= least)
        };
        let mut removed = 0;
        for entry in entries.filter(is_left) {
            let path = entry.path();
            let opened = match removal::open_closed(&path) {
                Ok(dir) => Some(dir),
                // A link or a file, which no guard has.
                Err(Errno::NOTDIR | Errno::LOOP) => None,
                Err(_) => continue,
            };
            // A guard holds the lock until its child is gone.
            let is_held = opened.as_ref().is_some_and(|dir| {
                rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive).is_err()
            });
            if !is_held {
                let outcome = removal::remove_patiently(&path);
                removed += usize::from(Self::is_removed(&path, &outcome));
            }
        }
        removed
    }

    /// Removes a private directory in place of its guard; false if it remains.
    pub(crate) fn discard(dir: &Path) -> bool {
        Self::is_removed(dir, &removal::remove(dir))
    }

    /// Logs a removal that failed; false then.
    fn is_removed(dir: &Path, outcome: &io::Result<()>) -> bool {
        if let Err(error) = outcome {
            tracing::warn!(dir = %dir.display(), %error, "cannot remove a private directory");
        }
        outcome.is_ok()
    }

    /// Logs a private directory that a guard could not remove.
    pub(super) fn log_leftover(private: Option<&Path>) {
        if let Some(dir) = private.filter(|dir| dir.exists()) {
            tracing::warn!(dir = %dir.display(), "a private directory could not be removed");
        }
    }

    /// Refuses a tenant's child if another server could replace its program, or a path that it names.
    ///
    /// # Errors
    ///
    /// It could; the error names the path.
    pub(crate) async fn check_paths(&self, tenant: &str, launch: &Launch) -> io::Result<()> {
        let path = self.path(launch);
        self.sandbox.check_paths(tenant, launch, path).await
    }

    /// Decides the restrictions of a child, and the directories of everybody that it reaches.
    ///
    /// # Errors
    ///
    /// Those of [`Sandbox::decide`].
    pub(super) async fn restrictions(
        &self,
        launch: &Launch,
        limits: &Limits,
    ) -> io::Result<(Restrictions, Vec<&'static Path>)> {
        let path = self.path(launch).unwrap_or_default();
        let home = self.ambient.home.as_deref().map(Path::new);
        let of_child = (path, home, &*self.ambient.cwd);
        self.sandbox.decide(launch, limits, of_child).await
    }

    /// PATH of a child.
    fn path<'l>(&'l self, launch: &'l Launch) -> Option<&'l OsStr> {
        let declared = launch.env.get("PATH").map(OsStr::new);
        declared.or(self.ambient.path.as_deref())
    }

    /// Builds the launch request to the guard of a child with these restrictions, and its uid if it has one;
    /// creates its private directory and cgroup. The directories are removed if nobody waits for the request any more.
    ///
    /// Off the runtime's workers: other children may keep the file system busy.
    pub(super) async fn requested(
        &self,
        launch: &Launch,
        limits: &Limits,
        lease: Option<UidLease>,
        restrictions: Restrictions,
    ) -> io::Result<(Made, LaunchRequest, Option<UidLease>)> {
        let (launcher, launch, limits) = (self.clone(), launch.clone(), *limits);
        let make = move || {
            let request = launcher.request(&launch, &limits, lease.as_ref(), restrictions)?;
            let made = Made {
                private: request.private.clone(),
                group: request.restrictions.group.clone(),
            };
            Ok::<_, io::Error>((made, request, lease))
        };
        spawn_blocking(make).await.map_err(io::Error::other)?
    }

    fn request(
        &self,
        launch: &Launch,
        limits: &Limits,
        lease: Option<&UidLease>,
        restrictions: Restrictions,
    ) -> io::Result<LaunchRequest> {
        let mut env: Vec<(OsString, OsString)> = Vec::with_capacity(launch.env.len() + 4);
        let mut set = |name: &str, value: Option<OsString>| {
            env.extend(value.map(|value| (name.into(), value)));
        };
        let ambient = &self.ambient;
        set("PATH", ambient.path.clone());
        let (private, cwd) = match launch.home {
            Home::Private => {
                // Every process may read the name of its cgroup: this one does not follow from that.
                let dir = self.work.join(random_name());
                DirBuilder::new().mode(0o700).create(&dir)?;
                let uid = lease.map(|lease| lease.uid);
                for (name, content) in &launch.files {
                    let file = dir.join(name);
                    if let Err(error) = write_private(&file, content, uid) {
                        Self::discard(&dir);
                        return Err(error);
                    }
                    set(name, Some(file.into()));
                }
                set("LANG", Some("C.UTF-8".into()));
                set("HOME", Some(dir.clone().into()));
                set("TMPDIR", Some(dir.clone().into()));
                (Some(dir.clone()), dir)
            }
            Home::Caller => {
                set("LANG", ambient.lang.clone());
                set("HOME", ambient.home.clone());
                set("TMPDIR", ambient.tmpdir.clone());
                (None, ambient.cwd.clone())
            }
        };
        env.extend(ambient.shared.iter().cloned());
        // Last, so that the specification takes precedence.
        env.extend(
            launch
                .env
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        let mut request = LaunchRequest {
            command: launch.command.clone().into(),
            args: launch.args.iter().map(OsString::from).collect(),
            env,
            cwd: launch.cwd.clone().unwrap_or(cwd),
            private,
            files: limits.files,
            file_size: limits.file_size,
            restrictions,
        };
        let uid = lease.map(|lease| lease.uid);
        match self.add_owner(&mut request, uid, launch, limits) {
            Ok(()) => Ok(request),
            Err(error) => {
                request.private.map(|dir| Self::discard(&dir));
                Err(error)
            }
        }
    }

    /// Adds the uid and the cgroup to the restrictions of `request`.
    fn add_owner(
        &self,
        request: &mut LaunchRequest,
        uid: Option<u32>,
        launch: &Launch,
        limits: &Limits,
    ) -> io::Result<()> {
        let restrictions = &mut request.restrictions;
        restrictions.uid = uid;
        if let (Some(uid), Some(private)) = (restrictions.uid, &request.private) {
            chown(private, Some(uid), Some(uid))?;
        }
        if let (Some(uid), Some(Store::Fill(store))) = (restrictions.uid, &restrictions.store) {
            chown(store, Some(uid), Some(uid))?;
            chown(store.join(SCRATCH), Some(uid), Some(uid))?;
        }
        restrictions.group = self.sandbox.group(launch, limits)?;
        Ok(())
    }
}

/// The directories of a child that has no guard yet, which would remove them.
pub(super) struct Made {
    private: Option<PathBuf>,
    group: Option<PathBuf>,
}

impl Made {
    /// A guard has them.
    pub(super) fn keep(mut self) {
        (self.private, self.group) = (None, None);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(dir) = &self.private {
            Launcher::discard(dir);
        }
        if let Some(group) = &self.group {
            _ = fs::remove_dir(group);
        }
    }
}

/// Writes a file that only the child may read.
pub(super) fn write_private(file: &Path, content: &str, uid: Option<u32>) -> io::Result<()> {
    let mut written = private_file::create_new(file)?;
    written.write_all(content.as_bytes())?;
    uid.map_or(Ok(()), |uid| fchown(&written, Some(uid), Some(uid)))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{File, Permissions},
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::super::launcher::*;

    #[test]
    fn only_private_directories_that_nobody_holds_are_removed() {
        let work = tempfile::tempdir().unwrap();
        let none = PathBuf::new;
        let launcher = Launcher::new(
            Ambient::default(),
            work.path().into(),
            none(),
            Sandbox::none(),
            Descriptors::new(1000),
        );
        let [left, of_later, young, of_guard] = [(); 4].map(|()| random_name());
        let made = |name: &str, age: Duration| {
            let path = work.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("f"), "x").unwrap();
            let dir = File::open(&path).unwrap();
            let now = dir.metadata().unwrap().modified().unwrap();
            dir.set_modified(now - age).unwrap();
            dir
        };
        drop(made(&left, GUARDED * 2));
        drop(made(&young, GUARDED / 2));
        let later = made(&of_later, Duration::ZERO);
        let now = later.metadata().unwrap().modified().unwrap();
        later.set_modified(now + GUARDED * 2).unwrap();
        for foreign in ["prepared", "a-b-0123", &left[1..], &format!("{left}x")] {
            drop(made(foreign, GUARDED * 2));
        }
        let held = made(&of_guard, GUARDED * 2);
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockShared).unwrap();
        assert_eq!(launcher.tidy(), 2);
        for gone in [left, of_later] {
            assert!(!work.path().join(gone).exists());
        }
        drop(held);
        assert_eq!(launcher.tidy(), 1);
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 5);
    }

    /// A gateway that is not root left them for ever.
    #[test]
    fn directories_that_children_closed_are_removed() {
        let tmp = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let as_nobody = scope.spawn(|| {
                if rustix::process::geteuid().is_root() {
                    let nobody = rustix::fs::Uid::from_raw(65_534);
                    rustix::fs::chown(tmp.path(), Some(nobody), None).unwrap();
                    rustix::thread::set_thread_uid(nobody).unwrap();
                }
                closed_ones_are_removed(tmp.path());
            });
            as_nobody.join().unwrap();
        });
    }

    fn closed_ones_are_removed(dir: &Path) {
        let [work, outside] = ["work", "outside"].map(|name| dir.join(name));
        let [closed, file, link] = [(); 3].map(|()| work.join(random_name()));
        for made in [&closed, &outside] {
            fs::create_dir_all(made).unwrap();
            fs::write(made.join("f"), "x").unwrap();
        }
        fs::write(file, "x").unwrap();
        symlink(&outside, link).unwrap();
        // Its lock is nothing of the link's.
        let held = File::open(&outside).unwrap();
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o0)).unwrap();
        assert_eq!(Launcher::tidy_dir(&work, GUARDED), 0);
        assert_eq!(Launcher::tidy_dir(&work, Duration::ZERO), 3);
        assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
        assert!(outside.join("f").exists());
    }
}
