//! What every child of one gateway has in common, and what a child is given of it.
//!
//! Not here: starting it (`stdio`).

use std::{
    ffi::OsString,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, chown},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    orders::{Cage, Orders, Store},
    sandbox::Sandbox,
    stores::SCRATCH,
    uids::Lease,
};
use crate::control::{Home, Launch, Limits};

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

    /// What the guard is told; makes the private directory and the cgroup, and takes a uid.
    pub(super) fn orders(
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
