//! What every child of one gateway has in common, and what a child is given of it.
//!
//! Not here: starting it (`stdio`).

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, chown},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::fs::FlockOperation;

use crate::backend::{
    guard::Orders,
    linux::removal,
    sandbox::{Cage, Lease, Sandbox, Store},
};
use crate::declare::{Home, Launch, Limits};

/// Directory of a store for temporary files, which exists while the store is filled.
pub(crate) const SCRATCH: &str = ".tmp";

/// A guard that has not held its directory by then never will.
const GUARDED: Duration = Duration::from_hours(1);

/// What of the gateway's own surroundings a child may get; read once at the start.
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
    /// The working directory, for `Home::Caller` only.
    pub(crate) cwd: PathBuf,
}

/// Starts children; the same for all of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    /// This binary; tests, which are another one, name it.
    pub(crate) program: PathBuf,
    /// What children may get of the gateway's surroundings.
    pub(crate) ambient: Ambient,
    /// Where private directories are made.
    pub(crate) work: PathBuf,
    /// The walls that children get.
    pub(crate) sandbox: Arc<Sandbox>,
    /// Where stores are (`prepare`).
    pub(crate) prepared: PathBuf,
}

impl Launcher {
    /// One that starts this very binary.
    pub(crate) fn new(
        ambient: Ambient,
        work: PathBuf,
        prepared: PathBuf,
        sandbox: Sandbox,
    ) -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            ambient,
            work,
            sandbox: Arc::new(sandbox),
            prepared,
        }
    }

    /// Removes private directories whose guard ended without doing so, like one that was killed
    /// together with its gateway; how many. Touches nothing else that may lie there.
    pub(crate) fn tidy(&self) -> usize {
        let entries = fs::read_dir(&self.work).into_iter().flatten().flatten();
        let is_left = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let is_private = name.to_str().is_some_and(is_private);
            let age = entry.metadata().and_then(|found| found.modified());
            is_private && age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= GUARDED))
        };
        let mut removed = 0;
        for entry in entries.filter(is_left) {
            let path = entry.path();
            // A guard holds it for as long as anything of its child is left.
            let Ok(dir) = File::open(&path) else { continue };
            if rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            removed += usize::from(Self::discard(&path));
        }
        removed
    }

    /// Removes a private directory in the place of its guard; whether it is gone.
    pub(crate) fn discard(dir: &Path) -> bool {
        let removed = removal::remove(dir);
        if let Err(error) = &removed {
            tracing::warn!(dir = %dir.display(), %error, "cannot remove a private directory");
        }
        removed.is_ok()
    }

    /// Says what a guard, which is gone, could not remove.
    pub(super) fn look_for(private: Option<&Path>) {
        if let Some(dir) = private.filter(|dir| dir.exists()) {
            tracing::warn!(dir = %dir.display(), "a private directory could not be removed");
        }
    }

    /// What the guard is told; makes the private directory and the cgroup, and takes a uid.
    pub(crate) fn orders(
        &self,
        label: &str,
        launch: &Launch,
        limits: &Limits,
    ) -> io::Result<(Orders, Option<Lease>)> {
        let mut env: Vec<(OsString, OsString)> = Vec::with_capacity(launch.env.len() + 4);
        let mut set = |name: &str, value: Option<OsString>| {
            env.extend(value.map(|value| (name.into(), value)));
        };
        let ambient = &self.ambient;
        let name = format!("{label}-{}", uuid::Uuid::new_v4().simple());
        set("PATH", ambient.path.clone());
        let (private, cwd) = match launch.home {
            Home::Private => {
                let dir = self.work.join(&name);
                DirBuilder::new().mode(0o700).create(&dir)?;
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
        // Last, so that the specification wins.
        env.extend(
            launch
                .env
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        let mut orders = Orders {
            command: launch.command.clone().into(),
            args: launch.args.iter().map(OsString::from).collect(),
            env,
            cwd: launch.cwd.clone().unwrap_or(cwd),
            private,
            files: limits.files,
            file_size: limits.file_size,
            cage: Cage::default(),
        };
        match self.wall_in(&mut orders, &name, launch, limits) {
            Ok(lease) => Ok((orders, lease)),
            Err(error) => {
                orders.private.map(fs::remove_dir);
                Err(error)
            }
        }
    }

    /// Puts the walls into `orders`.
    fn wall_in(
        &self,
        orders: &mut Orders,
        name: &str,
        launch: &Launch,
        limits: &Limits,
    ) -> io::Result<Option<Lease>> {
        let path = orders.env.iter().rfind(|(name, _)| name == "PATH");
        let path = path.map_or_else(OsString::new, |(_, path)| path.clone());
        let home = self.ambient.home.as_deref().map(Path::new);
        let mut cage = self
            .sandbox
            .cage(launch, limits, &path, home, &self.ambient.cwd);
        let lease = self.sandbox.lease()?;
        cage.uid = lease.as_ref().map(|lease| lease.uid);
        if let (Some(uid), Some(private)) = (cage.uid, &orders.private) {
            chown(private, Some(uid), Some(uid))?;
        }
        if let (Some(uid), Some(Store::Fill(store))) = (cage.uid, &cage.store) {
            chown(store, Some(uid), Some(uid))?;
            chown(store.join(SCRATCH), Some(uid), Some(uid))?;
        }
        cage.group = self.sandbox.group(name, launch, limits)?;
        orders.cage = cage;
        Ok(lease)
    }
}

/// Whether a directory has a name as [`Launcher::orders`] gives it.
fn is_private(name: &str) -> bool {
    let random = name.rsplit_once('-').map(|(_, random)| random.as_bytes());
    random.is_some_and(|random| random.len() == 32 && random.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
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
        );
        let random = "0123456789abcdef".repeat(2);
        let made = |name: &str, age: Duration| {
            let path = work.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("f"), "x").unwrap();
            let dir = File::open(&path).unwrap();
            let now = dir.metadata().unwrap().modified().unwrap();
            dir.set_modified(now - age).unwrap();
            dir
        };
        drop(made(&format!("a-left-{random}"), GUARDED * 2));
        drop(made(&format!("a-young-{random}"), GUARDED / 2));
        for foreign in ["prepared", "a-b-0123", &random, &format!("{random}-x")] {
            drop(made(foreign, GUARDED * 2));
        }
        let held = made(&format!("a-held-{random}"), GUARDED * 2);
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockShared).unwrap();
        assert_eq!(launcher.tidy(), 1);
        assert!(!work.path().join(format!("a-left-{random}")).exists());
        drop(held);
        assert_eq!(launcher.tidy(), 1);
        assert_eq!(fs::read_dir(work.path()).unwrap().count(), 5);
    }
}
