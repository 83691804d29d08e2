//! Choice of the restrictions of each child: files, TCP, processes, uid and cgroup.
//!
//! Made of its declaration and what the machine offers. Not here: the application of the
//! restrictions (`domain`, `namespace`, `seccomp`).

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustix::io::Errno;
use tokio::{task::spawn_blocking, time::timeout};

use super::{
    cgroup::Groups,
    files,
    looks::{Look, Looks, Written, no_answer},
    machine::Kernel,
    network::{self, Filter, Unreachable},
    restrictions::{Files, Namespaces, Restrictions, Scheduling, Sockets, Store, Tcp},
    uids::{self, Pool, UidLease},
};
use crate::{
    backend::linux::syscalls,
    base::{HiddenPaths, budget::Turns},
    config::{Separation, Uids},
    declare::{self, Home, Launch, Limits, Offer, Profile, SCOPES_ABI},
};

/// The sandbox of the children of one gateway.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The restrictions that can be enforced.
    offer: Offer,
    /// The part of the processors that children get.
    scheduling: Scheduling,
    /// Uids of children.
    uids: Option<Arc<Pool>>,
    /// Cgroups of children.
    groups: Option<Groups>,
    /// Addresses refused to children, until its owner takes it to renew them.
    filter: Option<Filter>,
    /// Files of the gateway hidden from children; none for `run`, whose server may use all files of
    /// its user.
    hide: Option<HiddenPaths>,
    /// Parts of the system that every child may read.
    system: Vec<PathBuf>,
    /// Directories that servers may write, once they are known.
    written: OnceLock<Arc<Written>>,
    /// Looks at the paths of servers.
    looks: Arc<Looks>,
    /// Turns to look for paths that another server may replace.
    checks: Turns,
}

impl Sandbox {
    /// A sandbox with the capabilities of `kernel`.
    pub(crate) fn new(
        kernel: &Kernel,
        offer: Offer,
        (uids, nice, is_batch): (Option<Uids>, u8, bool),
        hide: Option<HiddenPaths>,
        unreachable: Unreachable,
        certificates: Vec<PathBuf>,
    ) -> io::Result<Self> {
        let uids = uids.filter(|_| offer.separation == Separation::Uid);
        let delegated = kernel.cgroup.as_ref().filter(|group| group.is_delegated);
        let mut attached = None;
        let filter = offer.refuses_addresses.then_some(|group: &Path| {
            attached = Some(Filter::attach(unreachable, group)?);
            Ok(())
        });
        let groups = delegated.map(|delegation| Groups::create(delegation, nice, filter));
        let groups = groups.transpose();
        let needs_groups = offer.bounds_memory || offer.bounds_cpu || offer.refuses_addresses;
        Ok(Self {
            offer,
            scheduling: Scheduling { nice, is_batch },
            uids: uids.map(|uids| Arc::new(Pool::new(uids))),
            groups: match groups {
                Err(error) if needs_groups => return Err(error),
                groups => groups.unwrap_or_default(),
            },
            filter: attached,
            hide,
            system: files::system().into_iter().chain(certificates).collect(),
            written: OnceLock::new(),
            looks: Arc::new(Looks::new()),
            checks: Turns::new(CHECKS),
        })
    }

    /// Takes the refused addresses, if there are any; they stay refused.
    pub(crate) fn take_filter(&mut self) -> Option<Filter> {
        self.filter.take()
    }

    /// The restrictions that can be enforced here.
    pub(crate) fn offer(&self) -> &Offer {
        &self.offer
    }

    /// A sandbox without restrictions, for other tests.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self {
            offer: Offer::none(),
            scheduling: Scheduling::default(),
            uids: None,
            groups: None,
            filter: None,
            hide: None,
            system: Vec::new(),
            written: OnceLock::new(),
            looks: Arc::new(Looks::new()),
            checks: Turns::new(CHECKS),
        }
    }

    /// A sandbox that separates by uids alone, with Landlock of this version, for other tests; none if it cannot.
    #[cfg(test)]
    pub(crate) fn separated(landlock: u32) -> Option<Self> {
        use std::sync::atomic::{AtomicU32, Ordering};
        /// Each has uids of its own: all processes with that of a child are killed at its end.
        static SANDBOXES: AtomicU32 = AtomicU32::new(0);

        let kernel = Kernel {
            landlock,
            has_seccomp: false,
            has_namespaces: false,
            has_mounts: false,
            has_users: true,
            is_root: true,
            has_filters: false,
            open_files: u64::MAX,
            cgroup: None,
        };
        let (own, count) = (SANDBOXES.fetch_add(1, Ordering::Relaxed), 100);
        let first = 4_010_000_000 + std::process::id() % 50_000 * 4_000 + own % 40 * count;
        let uids = Some(Uids { first, count });
        let offer = kernel.offer(Some(Separation::Uid), uids).ok()?;
        Self::new(
            &kernel,
            offer,
            (uids, 0, false),
            None,
            Unreachable::default(),
            Vec::new(),
        )
        .ok()
    }

    /// Names the source of the directories that the servers of all tenants may write: the same set until it changes.
    pub(crate) fn know_written(
        &self,
        declared: impl Fn() -> Arc<BTreeSet<PathBuf>> + Send + Sync + 'static,
    ) {
        let written = Written::new(declared, Arc::clone(&self.looks));
        // Only the hub names it.
        _ = self.written.set(Arc::new(written));
    }

    /// Refuses a tenant's child with a program that another server could replace, or a path that it could replace
    /// by a link. `path` is the PATH of the child.
    ///
    /// Off the runtime's workers, which wait for no file system of another tenant, and few at a time. A directory of
    /// another server that does not answer delays it for a moment at most.
    ///
    /// # Errors
    ///
    /// There is such a program or path, which the error names. `TimedOut` if its own paths do not answer, and a
    /// shortage if others take too long to look at.
    pub(crate) async fn check_paths(
        &self,
        tenant: &str,
        launch: &Launch,
        path: Option<&OsStr>,
    ) -> io::Result<()> {
        let Some(written) = self.written.get() else {
            return Ok(());
        };
        let dirs = written.dirs();
        let own = &launch.confinement.write;
        // So it is on most gateways: no other server names any.
        if dirs.iter().all(|dir| own.contains(dir)) {
            return Ok(());
        }
        let start = Start::of(launch, path, self.offer.separation == Separation::Uid);
        written.look(&dirs).await;
        let turn = timeout(LONGEST_LINE, self.checks.take(tenant)).await;
        let turn = turn.map_err(|_| io::Error::from(Errno::AGAIN))?;
        let (looks, written) = (Arc::clone(&self.looks), Arc::clone(written));
        let checked = spawn_blocking(move || {
            // Held to the end, also if nobody waits for it any more.
            let _turn = turn;
            let others = written.others(&dirs, &start.own, start.has_uid)?;
            looks.run((PATIENCE, LONGEST_CHECK), move |look| {
                start.check(&others, look)
            })?
        });
        checked.await.map_err(io::Error::other)?
    }

    /// Leases a uid for a child of a tenant, which reaches these directories of everybody, if each has its own.
    ///
    /// # Errors
    ///
    /// Those of [`Pool::lease`].
    pub(crate) async fn lease(
        &self,
        tenant: &str,
        places: Vec<&'static Path>,
    ) -> io::Result<Option<UidLease>> {
        match &self.uids {
            Some(uids) => uids.lease(tenant, places).await.map(Some),
            None => Ok(None),
        }
    }

    /// Directories of everybody that a child reaches: of what is there, it owns what its uid owns.
    fn shared_places(&self, launch: &Launch) -> Vec<&'static Path> {
        let wanted = &launch.confinement;
        let is_confined = wanted.profile == Profile::Standard && self.offer.landlock > 0;
        let named = wanted.write.iter().chain(&wanted.read).chain(&launch.cwd);
        let named: Vec<PathBuf> = named.filter_map(|dir| dir.canonicalize().ok()).collect();
        let is_named = |place: &Path| {
            let place = place.canonicalize();
            place.is_ok_and(|place| named.iter().any(|dir| place.starts_with(dir)))
        };
        let places = uids::OF_EVERYBODY.map(Path::new).into_iter();
        places
            .filter(|place| !is_confined || is_named(place))
            .collect()
    }

    /// Creates a cgroup for a child, if cgroups are delegated, with its limits and the ports that it may
    /// listen at.
    pub(crate) fn group(&self, launch: &Launch, limits: &Limits) -> io::Result<Option<PathBuf>> {
        let is_standard = launch.confinement.profile == Profile::Standard;
        let leaf = |groups: &Groups| groups.leaf(limits, is_standard);
        let Some(leaf) = self.groups.as_ref().map(leaf).transpose()? else {
            return Ok(None);
        };
        if let declare::Tcp::Ports(ports) = &launch.confinement.tcp
            && self.offer.refuses_addresses
        {
            let accepting = network::accept_on(ports, &leaf);
            accepting.inspect_err(|_| _ = fs::remove_dir(&leaf))?;
        }
        Ok(Some(leaf))
    }

    /// Decides the restrictions of a child with this PATH, HOME and working directory; and which directories of
    /// everybody it reaches, if it has a uid of its own. Off the runtime's workers, which wait for no file system
    /// of a server.
    ///
    /// # Errors
    ///
    /// `TimedOut` if its own paths do not answer, and a shortage if its program cannot be read because of a lease.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        launch: &Launch,
        limits: &Limits,
        (path, home, cwd): (&OsStr, Option<&Path>, &Path),
    ) -> io::Result<(Restrictions, Vec<&'static Path>)> {
        let start = Start::of(launch, Some(path), self.uids.is_some());
        let (sandbox, launch, limits) = (Arc::clone(self), without_secrets(launch), *limits);
        let (home, cwd) = (home.map(Path::to_owned), cwd.to_owned());
        let decide = move |look: &Look| {
            if launch.confinement.profile == Profile::Standard || start.has_uid {
                start.ask(look)?;
            }
            let (path, home) = (&start.path, home.as_deref());
            let restrictions = sandbox.restrictions(&launch, &limits, path, home, &cwd)?;
            let places = start.has_uid.then(|| sandbox.shared_places(&launch));
            Ok::<_, io::Error>((restrictions, places.unwrap_or_default()))
        };
        let times = (PATIENCE, LONGEST_CHECK);
        self.looks.watch(times, decide).await?
    }

    fn restrictions(
        &self,
        launch: &Launch,
        limits: &Limits,
        path: &OsStr,
        home: Option<&Path>,
        cwd: &Path,
    ) -> io::Result<Restrictions> {
        let (offer, wanted) = (&self.offer, &launch.confinement);
        let is_standard = wanted.profile == Profile::Standard;
        let is_confined = is_standard && offer.landlock > 0;
        let files = is_confined.then(|| self.files(launch, path, home, cwd));
        Ok(Restrictions {
            uid: None,
            scheduling: self.scheduling,
            namespaces: match offer.separation {
                Separation::Namespace => Namespaces::All,
                Separation::Uid if offer.has_mounts => Namespaces::Mounts,
                _ => Namespaces::None,
            },
            is_scoped: offer.landlock >= SCOPES_ABI
                && (is_standard || offer.separation == Separation::Landlock),
            is_hardened: is_standard && offer.has_seccomp,
            // A user namespace has keyrings and processes of its own.
            is_filtered: offer.has_seccomp
                && matches!(offer.separation, Separation::Uid | Separation::Landlock),
            landlock: offer.landlock,
            files: files.transpose()?,
            hide: self.hidden(),
            sockets: self.sockets(launch),
            tcp: match &wanted.tcp {
                declare::Tcp::Off if offer.has_seccomp => Tcp::Off,
                declare::Tcp::Ports(ports) if offer.has_seccomp => Tcp::Ports(ports.clone()),
                _ => Tcp::Any,
            },
            // The kernel counts all processes of the uid, which under another separation is the gateway's.
            processes: limits
                .pids
                .filter(|_| offer.separation == Separation::Uid)
                .map(u64::from),
            group: None,
            store: launch.prepared.clone().map(if launch.is_preparing {
                Store::Fill
            } else {
                Store::Read
            }),
        })
    }

    fn sockets(&self, launch: &Launch) -> Sockets {
        let (offer, wanted) = (&self.offer, &launch.confinement);
        match &wanted.sockets {
            declare::Sockets::Only(_) if wanted.profile == Profile::Open => Sockets::Any,
            declare::Sockets::Only(named) if offer.confines_sockets() => {
                Sockets::Root(files::beyond(named, &foreign(launch)).collect())
            }
            declare::Sockets::Off | declare::Sockets::Only(_) if offer.has_seccomp => Sockets::Off,
            _ => Sockets::Any,
        }
    }

    fn hidden(&self) -> Vec<PathBuf> {
        let found = self.hide.iter().flat_map(|hide| {
            let found = hide.existing().into_iter();
            found.chain(root_secrets(self.offer.separation))
        });
        found.collect()
    }

    fn files(
        &self,
        launch: &Launch,
        path: &OsStr,
        home: Option<&Path>,
        cwd: &Path,
    ) -> io::Result<Files> {
        let read = readable(&self.system, launch, path, home)?;
        let mut write = files::outer(&launch.confinement.write);
        if launch.home == Home::Caller {
            write.push(cwd.to_owned());
        }
        Ok(Files { read, write })
    }
}

/// What a start of a child executes and names.
struct Start {
    command: OsString,
    path: OsString,
    cwd: Option<PathBuf>,
    named: Vec<PathBuf>,
    /// Directories that it may write itself.
    own: Vec<PathBuf>,
    /// Whether its uid is its own.
    has_uid: bool,
}

impl Start {
    fn of(launch: &Launch, path: Option<&OsStr>, has_uid: bool) -> Self {
        Self {
            command: launch.command.clone().into(),
            path: path
                .unwrap_or(OsStr::new(syscalls::DEFAULT_PATH))
                .to_owned(),
            cwd: launch.cwd.clone(),
            named: named(launch).cloned().collect(),
            own: launch.confinement.write.clone(),
            has_uid,
        }
    }

    /// Refuses the start if a path of its own does not answer.
    fn ask(&self, look: &Look) -> io::Result<()> {
        let on_path: Vec<PathBuf> = std::env::split_paths(&self.path).collect();
        let command = PathBuf::from(&self.command);
        let paths = self.named.iter().chain(&self.own).chain(&self.cwd);
        let paths: BTreeSet<&PathBuf> = paths.chain(&on_path).chain([&command]).collect();
        for path in paths.into_iter().filter(|path| path.is_absolute()) {
            _ = look.ask(path, Path::symlink_metadata);
        }
        // A script leads on to its interpreters.
        self.executed(look)?;
        look.unanswered()
            .map_or(Ok(()), |path| Err(no_answer(&path)))
    }

    /// Refuses the start if another server, which may write these directories, can replace a part of it, or if
    /// that cannot be seen.
    fn check(&self, others: &[PathBuf], look: &Look) -> io::Result<()> {
        let found = self.replaceable(others, look);
        if let Some(path) = look.unanswered() {
            return Err(no_answer(&path));
        }
        let Some((path, does)) = found? else {
            return Ok(());
        };
        let path = path.display();
        Err(io::Error::other(format!(
            "sandbox: {path} lies in a directory that another server may write, {does}"
        )))
    }

    /// The first path that another server can replace, and how.
    fn replaceable(
        &self,
        others: &[PathBuf],
        look: &Look,
    ) -> io::Result<Option<(PathBuf, &'static str)>> {
        // What it may write itself has no more rights than that.
        let own: Vec<PathBuf> = self.own.iter().filter_map(|dir| look.real(dir)).collect();
        let others = others.iter().filter(|dir| !own.contains(dir));
        let others: Vec<PathBuf> = others.cloned().collect();
        if others.is_empty() {
            return Ok(None);
        }
        if let Some(program) = self.replaceable_program(&others, look)? {
            let exists = look.ask(&program, Path::exists).unwrap_or_default();
            let does = if exists {
                "which could replace it; put the program elsewhere"
            } else {
                "which could put a program there; take the directory from PATH"
            };
            return Ok(Some((program, does)));
        }
        let does = "which could put a link in its place; name a path outside of it";
        let named = replaceable(&self.named, &others, look);
        Ok(named.map(|path| (path.clone(), does)))
    }

    /// The first of the files that it executes, its program and the interpreters of a script, that leads through
    /// something that others may write; or of the places on PATH where one is looked for before it is found.
    fn replaceable_program(&self, others: &[PathBuf], look: &Look) -> io::Result<Option<PathBuf>> {
        let mut executed = self.executed(look)?.into_iter();
        Ok(executed.find(|file| files::is_through(file, others, look)))
    }

    fn executed(&self, look: &Look) -> io::Result<Vec<PathBuf>> {
        let by = if self.has_uid { 0o001 } else { 0o111 };
        let command = (&*self.command, &*self.path);
        files::executed(command, self.cwd.as_deref(), by, look)
    }
}

/// What the restrictions of a child follow from.
fn without_secrets(launch: &Launch) -> Launch {
    Launch {
        command: launch.command.clone(),
        args: Vec::new(),
        env: BTreeMap::new(),
        files: BTreeMap::new(),
        cwd: launch.cwd.clone(),
        home: launch.home,
        confinement: launch.confinement.clone(),
        prepared: launch.prepared.clone(),
        is_preparing: launch.is_preparing,
    }
}

/// The paths that a server names in profile `standard`.
fn named(launch: &Launch) -> impl Iterator<Item = &PathBuf> {
    let wanted = &launch.confinement;
    let sockets = match &wanted.sockets {
        declare::Sockets::Only(paths) => paths.as_slice(),
        _ => &[],
    };
    let paths = wanted.read.iter().chain(&wanted.write);
    let paths = paths.chain(&launch.cwd).chain(sockets);
    paths.filter(|_| wanted.profile == Profile::Standard)
}

/// The first path that leads through one of the directories that others may write.
fn replaceable<'n>(named: &'n [PathBuf], others: &[PathBuf], look: &Look) -> Option<&'n PathBuf> {
    named.iter().find(|path| {
        // The directory itself cannot be replaced from within.
        let place = look.real(path);
        let around = others.iter().filter(|dir| Some(*dir) != place.as_ref());
        let around: Vec<PathBuf> = around.cloned().collect();
        files::is_through(path, &around, look)
    })
}

/// Files in system directories that children of root must not read.
fn root_secrets(separation: Separation) -> impl Iterator<Item = PathBuf> {
    let are_root = rustix::process::geteuid().is_root() && separation != Separation::Uid;
    let files = SECRETS.iter().filter(move |_| are_root);
    files.map(PathBuf::from)
}

/// Whether profile `standard` hides files on this machine.
pub(crate) fn hides_files() -> bool {
    syscalls::landlock() > 0
}

/// Arguments of a server in profile `standard` that name unreadable files.
pub(crate) fn out_of_reach<'l>(
    launch: &'l Launch,
    path: &OsStr,
    home: Option<&Path>,
) -> Vec<&'l str> {
    // A program that cannot be read at the moment does not start either.
    let Ok(roots) = readable(&files::system(), launch, path, home) else {
        return Vec::new();
    };
    let is_in_reach = |file: &Path| {
        let mut roots = roots.iter().chain(&launch.confinement.write);
        roots.any(|root| file.starts_with(root))
    };
    let args = launch.args.iter().map(String::as_str);
    args.filter(|_| launch.confinement.profile == Profile::Standard)
        .filter(|arg| Path::new(arg).is_absolute())
        .filter(|arg| fs::canonicalize(arg).is_ok_and(|file| !is_in_reach(&file)))
        .collect()
}

/// Files that a child in profile `standard` may read, besides those that it may write.
fn readable(
    system: &[PathBuf],
    launch: &Launch,
    path: &OsStr,
    home: Option<&Path>,
) -> io::Result<Vec<PathBuf>> {
    let homes: Vec<PathBuf> = home.into_iter().map(Path::to_owned).collect();
    let mut read = system.to_vec();
    let foreign = foreign(launch);
    let command = OsStr::new(&launch.command);
    read.extend(files::programs(command, path, &homes, &foreign)?);
    read.extend(files::beyond(&launch.confinement.read, &foreign));
    read.extend(files::beyond(launch.cwd.as_slice(), &foreign));
    Ok(read)
}

/// Directories whose contents the server or its package wrote. The user's own project, which `run` works in,
/// is not among them.
fn foreign(launch: &Launch) -> Vec<PathBuf> {
    let foreign = launch.confinement.write.iter().chain(&launch.prepared);
    foreign.cloned().collect()
}

/// Starts whose paths are looked at, at a time.
const CHECKS: usize = 8;

/// The time that a start waits for its turn.
const LONGEST_LINE: Duration = Duration::from_secs(10);

/// The time that one path of a start has to answer: a disk may have to start, or a share to be mounted.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time that all paths of a start have; with the waits before it, less than a start has (`clocks.start`).
const LONGEST_CHECK: Duration = Duration::from_secs(15);

/// Files readable for uid 0 alone.
const SECRETS: [&str; 6] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/ssl/private",
];

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::PermissionsExt,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use futures_util::FutureExt;

    use super::super::choice::*;
    use crate::{
        backend::{admission::is_shortage, linux::regular_file::tests::Lease},
        declare::Confinement,
    };

    const LIMITS: Limits = Limits {
        line: 0,
        stderr: 0,
        files: 0,
        file_size: 0,
        memory: None,
        pids: None,
        cpu: None,
    };

    fn launch(command: &Path, confinement: Confinement) -> Launch {
        Launch {
            command: command.to_str().unwrap().to_owned(),
            args: Vec::new(),
            env: BTreeMap::new(),
            files: BTreeMap::new(),
            cwd: None,
            home: Home::Private,
            confinement,
            prepared: None,
            is_preparing: false,
        }
    }

    /// A link in the place of a named path gave its next child what it led to, to read or to write.
    #[test]
    fn a_link_below_what_a_server_may_write_leads_to_nothing_more() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let [own, secret, given] = ["own", "secret", "given"].map(|name| root.join(name));
        for dir in [&own, &secret, &given] {
            fs::create_dir(dir).unwrap();
        }
        let (app, link) = (own.join("app"), root.join("link"));
        std::os::unix::fs::symlink(&secret, &app).unwrap();
        std::os::unix::fs::symlink("own/app", &link).unwrap();
        let named = [&app, &app.join("x"), &link, &given, &own.join("new")];
        let confinement = Confinement {
            read: named.map(Clone::clone).to_vec(),
            write: vec![own.clone(), app.clone(), link.clone()],
            ..Confinement::default()
        };
        let mut launch = launch(Path::new("/x"), confinement);
        launch.cwd = Some(app);
        let read = readable(&[], &launch, OsStr::new(""), None).unwrap();
        assert_eq!(read, [given]);
        let write = files::outer(&launch.confinement.write);
        assert_eq!(write, [own]);
        let sandbox = Sandbox {
            offer: Offer {
                has_mounts: true,
                landlock: SCOPES_ABI,
                ..Offer::none()
            },
            ..Sandbox::none()
        };
        launch.confinement.sockets = declare::Sockets::Only(vec![link]);
        assert_eq!(sandbox.sockets(&launch), Sockets::Root(Vec::new()));
    }

    #[test]
    fn a_path_that_another_server_may_replace_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let [own, others, given] = ["own", "others", "given"].map(|name| root.join(name));
        for dir in [&own, &others, &given, &others.join("sub")] {
            fs::create_dir(dir).unwrap();
        }
        let link = root.join("link");
        std::os::unix::fs::symlink("others/sub", &link).unwrap();
        std::os::unix::fs::symlink(&given, others.join("planted")).unwrap();
        let written = [own.clone(), others.clone()];
        let found = |read: &Path, write: &[&Path]| {
            let confinement = Confinement {
                read: vec![read.to_owned()],
                write: write.iter().map(|dir| (*dir).to_owned()).collect(),
                ..Confinement::default()
            };
            refused(&written, &launch(Path::new("/x"), confinement), "")
        };
        for path in [
            &others.join("sub"),
            &others.join("planted"),
            &others.join("new"),
            &link,
        ] {
            assert!(is_named(found(path, &[]).as_deref(), path));
            assert!(is_named(found(path, &[&own]).as_deref(), path));
            assert_eq!(found(path, &[&others]), None, "its own too");
        }
        for path in [&others, &given, &own, &root] {
            assert_eq!(found(path, &[]), None);
        }
        let below = others.join("sub");
        assert!(is_named(found(&given, &[&below]).as_deref(), &below));
    }

    /// Another tenant's server wrote the program that this one was.
    #[test]
    fn a_program_that_another_server_may_replace_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let [safe, others] = ["safe", "others"].map(|name| root.join(name));
        let file = |dir: &Path, name: &str, content: &str| {
            fs::create_dir_all(dir).unwrap();
            let file = dir.join(name);
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let theirs = file(&others, "theirs", "");
        let good = file(&safe, "good", "#!/bin/sh\n");
        let script = file(&safe, "script", &format!("#!{}\n", theirs.display()));
        let by_env = file(&safe, "by_env", "#!/usr/bin/env theirs\n");
        let link = safe.join("link");
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let path = format!("{}:{}", safe.display(), others.display());
        let found = |command: &Path, more: Confinement| {
            let launch = Launch {
                cwd: Some(safe.clone()),
                ..launch(command, more)
            };
            refused(&[others.clone(), theirs.clone()], &launch, &path)
        };
        let open = || Confinement {
            profile: Profile::Open,
            ..Confinement::default()
        };
        for (command, named) in [
            (&*theirs, &theirs),
            (&link, &link),
            (&script, &theirs),
            (&by_env, &theirs),
            (Path::new("theirs"), &theirs),
            (
                Path::new("../others/theirs"),
                &safe.join("../others/theirs"),
            ),
        ] {
            for more in [Confinement::default(), open()] {
                assert!(
                    is_named(found(command, more).as_deref(), named),
                    "{command:?}"
                );
            }
        }
        for command in [
            &*good,
            Path::new("good"),
            Path::new("./good"),
            Path::new("/missing"),
        ] {
            assert_eq!(found(command, open()), None, "{command:?}");
        }
        let own = Confinement {
            write: vec![others.clone(), theirs.clone()],
            ..Confinement::default()
        };
        assert_eq!(found(&theirs, own), None, "its own too");
    }

    /// It was put there between the check and the execution.
    #[test]
    fn a_program_that_another_server_may_put_before_it_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let file = |name: &str, content: &str, mode| {
            let file = root.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        };
        file("first/data", "", 0o644);
        file("first/script", "#!/usr/bin/env absent\n", 0o755);
        file("first/both", "", 0o755);
        let by_their_env = format!("#!{}/others/env both\n", root.display());
        file("first/by_their_env", &by_their_env, 0o755);
        file("others/data", "", 0o644);
        for name in ["absent", "both", "data"] {
            file(&format!("last/{name}"), "", 0o755);
        }
        // A relative one is that of the working directory, and none is no directory.
        let path = format!("{0}/first::../others:{0}/last", root.display());
        let found = |command: &str| {
            let launch = Launch {
                cwd: Some(root.join("first")),
                ..launch(Path::new(command), Confinement::default())
            };
            refused(&[root.join("others")], &launch, &path)
        };
        let place = root.join("first/../others");
        for (command, name) in [("absent", "absent"), ("script", "absent"), ("data", "data")] {
            assert!(
                is_named(found(command).as_deref(), &place.join(name)),
                "{command}"
            );
        }
        let env = root.join("others/env");
        assert!(is_named(found("by_their_env").as_deref(), &env));
        let told = found("absent").unwrap();
        assert!(told.ends_with("take the directory from PATH"), "{told}");
        let absolute = root.join("last/absent");
        for command in ["both", absolute.to_str().unwrap()] {
            assert_eq!(found(command), None, "{command}");
        }
    }

    /// The text by which a start is refused beside servers that may write these.
    fn refused(written: &[PathBuf], launch: &Launch, path: &str) -> Option<String> {
        let start = Start::of(launch, Some(OsStr::new(path)), false);
        checked(start, written).err().map(|error| error.to_string())
    }

    fn checked(start: Start, others: &[PathBuf]) -> io::Result<()> {
        let (looks, others) = (Arc::new(Looks::new()), others.to_vec());
        let times = (PATIENCE, LONGEST_CHECK);
        looks
            .run(times, move |look| start.check(&others, look))
            .unwrap()
    }

    /// Its interpreter, which another server could replace, was not looked at.
    #[test]
    fn a_start_waits_for_the_end_of_a_lease_on_its_script() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let [safe, others] = ["safe", "others"].map(|name| root.join(name));
        for dir in [&safe, &others] {
            fs::create_dir(dir).unwrap();
        }
        let (script, theirs) = (safe.join("x"), others.join("theirs"));
        fs::write(&theirs, "").unwrap();
        fs::write(&script, format!("#!{}\n", theirs.display())).unwrap();
        for file in [&theirs, &script] {
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let launch = launch(&script, Confinement::default());
        let check = || {
            checked(
                Start::of(&launch, None, false),
                std::slice::from_ref(&others),
            )
        };
        let lease = Lease::on(&script);
        let error = check().unwrap_err();
        assert!(is_shortage(&error), "{error}");
        drop(lease);
        assert!(is_named(Some(&check().unwrap_err().to_string()), &theirs));
    }

    /// A child with a uid of its own executes what others may.
    #[test]
    fn a_program_is_found_as_its_child_finds_it() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let [first, others] = ["first", "others"].map(|name| root.join(name));
        for dir in [&first, &others] {
            fs::create_dir(dir).unwrap();
        }
        let program = first.join("x");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let path = format!("{}:{}", first.display(), others.display());
        let launch = launch(Path::new("x"), Confinement::default());
        let is_refused = |has_uid| {
            let start = Start::of(&launch, Some(OsStr::new(&path)), has_uid);
            checked(start, std::slice::from_ref(&others)).is_err()
        };
        assert_eq!([false, true].map(is_refused), [false, true]);
    }

    /// Each start looked at the directories of all tenants, in a worker of the runtime.
    #[test]
    fn paths_are_looked_at_off_the_runtime_and_only_if_others_may_write() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.max_blocking_threads(1).enable_time();
        let runtime = runtime.build().unwrap();
        runtime.block_on(async {
            let occupy = || {
                let (go, wait) = std::sync::mpsc::channel::<()>();
                spawn_blocking(move || wait.recv());
                go
            };
            let go = occupy();
            let (looks, is_away, asked) = Looks::silent_at(&["/"], Path::new("/usr"));
            is_away.store(false, Ordering::Relaxed);
            let sandbox = Sandbox {
                looks,
                ..Sandbox::none()
            };
            let own = Confinement {
                write: vec!["/usr".into()],
                ..Confinement::default()
            };
            let mut launch = launch(Path::new("/usr/bin/env"), own);
            let check = |launch| sandbox.check_paths("a", launch, None).now_or_never();
            assert!(check(&launch).is_some_and(|checked| checked.is_ok()));
            let written = Arc::new(BTreeSet::from(["/usr".into()]));
            sandbox.know_written(move || Arc::clone(&written));
            assert!(check(&launch).is_some_and(|checked| checked.is_ok()));
            launch.confinement.write.clear();
            let mut checked = std::pin::pin!(sandbox.check_paths("a", &launch, None));
            assert!((&mut checked).now_or_never().is_none());
            assert_eq!(asked.load(Ordering::Relaxed), 0);
            drop(go);
            assert!(checked.await.is_err());
            // The directories are known now.
            let go = occupy();
            let mut checked = std::pin::pin!(sandbox.check_paths("a", &launch, None));
            assert!((&mut checked).now_or_never().is_none());
            drop(go);
            assert!(checked.await.is_err());
        });
    }

    /// A path of its own that did not answer stopped a worker of the runtime.
    #[tokio::test]
    async fn restrictions_are_decided_off_the_runtime() {
        let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (own_thread, told) = (std::thread::current().id(), counts.clone());
        let looks = Looks::told(vec!["/".into()], move |path| {
            let is_elsewhere = std::thread::current().id() != own_thread;
            let count = &told[usize::from(is_elsewhere)];
            count.fetch_add(usize::from(path == Path::new("/usr")), Ordering::Relaxed);
        });
        let own = Confinement {
            read: vec!["/usr".into()],
            ..Confinement::default()
        };
        let launch = launch(Path::new("/x"), own);
        let sandbox = Arc::new(Sandbox {
            looks: Arc::new(looks),
            ..Sandbox::none()
        });
        let of_child = (OsStr::new(""), None, Path::new("/"));
        sandbox.decide(&launch, &LIMITS, of_child).await.unwrap();
        let [here, elsewhere] = counts.map(|count| count.load(Ordering::Relaxed));
        assert!(here == 0 && elsewhere > 0, "{here} {elsewhere}");
        let (looks, is_away, _) = Looks::silent_at(&["/"], Path::new("/usr"));
        let start = Start::of(&launch, None, false);
        let times = (Duration::from_secs(1), LONGEST_CHECK);
        let look = looks.watch(times, move |look| start.ask(look)).await;
        is_away.store(false, Ordering::Relaxed);
        assert_eq!(look.flatten().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// Each start left a thread behind, and no file system counted as silent.
    #[tokio::test]
    async fn an_interpreter_that_does_not_answer_is_asked_once() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("serve");
        fs::write(&script, "#!/mnt/share/python\n").unwrap();
        let share = Path::new("/mnt/share");
        let (looks, is_away, asked) = Looks::silent_at(&["/", "/mnt/share"], share);
        let launch = launch(&script, Confinement::default());
        for _ in 0..2 {
            let start = Start::of(&launch, Some(OsStr::new("")), false);
            let times = (Duration::from_secs(1), LONGEST_CHECK);
            let look = looks.watch(times, move |look| start.ask(look)).await;
            let refused = look.flatten().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
            assert!(refused.to_string().contains("/mnt/share"), "{refused}");
        }
        is_away.store(false, Ordering::Relaxed);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    /// One tenant's share that was away stopped the starts of all, and their places filled up.
    #[tokio::test]
    async fn a_start_waits_for_its_own_paths_alone() {
        let share = Path::new("/mnt/share");
        let (looks, is_away, _) = Looks::silent_at(&["/", "/mnt/share"], share);
        let sandbox = Sandbox {
            looks,
            ..Sandbox::none()
        };
        let written = Arc::new(BTreeSet::from(["/mnt/share/a".into(), "/usr/bin".into()]));
        sandbox.know_written(move || Arc::clone(&written));
        let own = launch(Path::new("/usr/bin/env"), Confinement::default());
        // Of those behind it, one is known all the same.
        let told = sandbox.check_paths("b", &own, None).await.unwrap_err();
        assert!(
            is_named(Some(&told.to_string()), Path::new("/usr/bin/env")),
            "{told}"
        );
        let other = launch(Path::new("/etc/passwd"), Confinement::default());
        sandbox.check_paths("b", &other, None).await.unwrap();
        for path in ["/mnt/share/x", "/mnt/share/a/x"] {
            let start = Start::of(
                &launch(Path::new(path), Confinement::default()),
                None,
                false,
            );
            let times = (Duration::from_secs(1), LONGEST_CHECK);
            let look = move |look: &Look| start.check(&["/mnt/share/a".into()], look);
            let checked = sandbox.looks.run(times, look).flatten();
            let error = checked.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(
                error.to_string().contains("/mnt/share does not answer"),
                "{error}"
            );
        }
        is_away.store(false, Ordering::Relaxed);
    }

    fn is_named(text: Option<&str>, path: &Path) -> bool {
        let told = format!("sandbox: {} lies", path.display());
        text.is_some_and(|text| text.starts_with(&told))
    }

    /// A server was refused its threads for those of the gateway and of other children.
    #[test]
    fn a_limit_of_processes_counts_those_of_the_child_alone() {
        let limits = Limits {
            pids: Some(7),
            ..LIMITS
        };
        let launch = launch(Path::new("/x"), Confinement::default());
        for (separation, processes) in [
            (Separation::Uid, Some(7)),
            (Separation::Namespace, None),
            (Separation::Landlock, None),
            (Separation::None, None),
        ] {
            let sandbox = Sandbox {
                offer: Offer {
                    separation,
                    ..Offer::none()
                },
                ..Sandbox::none()
            };
            let decided =
                sandbox.restrictions(&launch, &limits, OsStr::new(""), None, Path::new("/"));
            assert_eq!(decided.unwrap().processes, processes, "{separation:?}");
        }
    }

    /// A server that writes to /tmp in profile `standard` had the files of the last child with its uid.
    #[test]
    fn a_uid_is_clean_wherever_its_child_reaches() {
        let all = uids::OF_EVERYBODY.map(Path::new);
        let confined = Sandbox {
            offer: Offer {
                landlock: 1,
                ..Offer::none()
            },
            ..Sandbox::none()
        };
        let at = |dir: &str| {
            launch(
                Path::new("/x"),
                Confinement {
                    write: vec![dir.into()],
                    ..Confinement::default()
                },
            )
        };
        assert_eq!(confined.shared_places(&at("/tmp")), [Path::new("/tmp")]);
        assert_eq!(confined.shared_places(&at("/")), all);
        assert!(confined.shared_places(&at("/usr")).is_empty());
        let mut open = at("/usr");
        assert_eq!(Sandbox::none().shared_places(&open), all);
        open.confinement.profile = Profile::Open;
        assert_eq!(confined.shared_places(&open), all);
    }

    /// Of its package and of what it may write, it could choose the files that its next child may read.
    #[test]
    fn a_server_does_not_choose_what_it_may_read() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let write = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        };
        let (script, secret) = (root.join("a/x"), root.join("b/data/x"));
        write(&secret, "");
        write(&script, &format!("#!{}\n", secret.display()));
        let launch = |write: Option<PathBuf>, prepared: Option<PathBuf>| {
            let confinement = Confinement {
                write: write.into_iter().collect(),
                ..Confinement::default()
            };
            Launch {
                prepared,
                ..launch(&script, confinement)
            }
        };
        let read = |launch: Launch| readable(&[], &launch, OsStr::new(""), None).unwrap();
        let own = || Some(root.join("a"));
        let of_operator = [root.join("a"), root.join("b/data")];
        assert_eq!(read(launch(None, None)), of_operator);
        for (write, prepared) in [(own(), None), (None, own())] {
            assert_eq!(read(launch(write, prepared)), [""; 0].map(PathBuf::from));
        }
    }
}
