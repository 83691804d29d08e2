//! Control groups (v2) of children and their limits, if a cgroup is delegated to the gateway.
//!
//! Not here: starting and ending processes in one (`guard`).

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};

use crate::declare::Limits;

/// Cgroup of this process, if cgroup v2 is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delegation {
    /// Its directory.
    pub(crate) path: PathBuf,
    /// This process may create groups below it.
    pub(crate) is_delegated: bool,
    /// Controllers available to groups below it.
    pub(crate) controllers: Vec<String>,
    /// The most processes and threads that it, the groups around it and the kernel allow.
    pub(crate) processes: u64,
}

impl Delegation {
    /// Reads `/proc` and `/sys` below `root`.
    pub(crate) fn probe(root: &Path) -> Option<Self> {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let mount = mount_points(&read("proc/self/mountinfo"), &["cgroup2"]).next()?;
        let own = read("proc/self/cgroup");
        let own = own.lines().find_map(|line| line.strip_prefix("0::"));
        let mount = root.join(mount.trim_start_matches('/'));
        let path = mount.join(own.unwrap_or("/").trim_start_matches('/'));
        let is_writable = |path: &Path| access(path, Access::WRITE_OK).is_ok();
        let controllers = fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
        Some(Self {
            is_delegated: is_writable(&path) && is_writable(&path.join("cgroup.procs")),
            controllers: words(&controllers),
            processes: processes(root, &mount, &path),
            path,
        })
    }

    /// Whether limits of `controller` can be set.
    pub(crate) fn bounds(&self, controller: &str) -> bool {
        self.is_delegated && self.controllers.iter().any(|known| known == controller)
    }
}

/// Group of a gateway, with the groups of its children below it.
#[derive(Debug)]
pub(crate) struct Groups {
    base: PathBuf,
    /// Tells other gateways that the group is in use.
    lock: File,
    /// Whether it has an inner group in which addresses are refused.
    is_filtered: bool,
    /// Controllers of the groups of children.
    controllers: Vec<String>,
}

impl Groups {
    /// Creates it, with the controllers that limits need; `filter` is attached to its inner group. All
    /// children together weigh as much as one process of niceness `nice`, and leave the gateway a reserve of
    /// processes.
    pub(crate) fn create(
        delegation: &Delegation,
        nice: u8,
        filter: Option<impl FnOnce(&Path) -> io::Result<()>>,
    ) -> io::Result<Self> {
        let own = &delegation.path;
        sweep(own);
        let wanted: Vec<&str> = CONTROLLERS
            .into_iter()
            .filter(|name| delegation.bounds(name))
            .collect();
        if enable(own, &wanted).is_err() {
            // A group with controllers for groups below it must have no process of its own.
            let (gateway, _lock) = claim(own, GATEWAY_PREFIX)?;
            fs::write(gateway.join("cgroup.procs"), "0")?;
            enable(own, &wanted)?;
        }
        let (base, lock) = claim(own, PREFIX)?;
        if wanted.contains(&"cpu") {
            // However many there are: niceness alone weighs each against the gateway.
            fs::write(base.join("cpu.weight.nice"), nice.to_string())?;
        }
        if wanted.contains(&"pids") {
            // A child without a limit of its own could take the last one: no guard starts then, nor a thread.
            let most = of_children(delegation.processes);
            fs::write(base.join("pids.max"), most.to_string())?;
        }
        enable(&base, &wanted)?;
        let is_filtered = filter.is_some();
        if let Some(filter) = filter {
            let filtered = base.join(FILTERED);
            fs::create_dir(&filtered)?;
            enable(&filtered, &wanted)?;
            filter(&filtered)?;
        }
        Ok(Self {
            base,
            lock,
            is_filtered,
            controllers: wanted.into_iter().map(str::to_owned).collect(),
        })
    }

    /// Creates a group for one child, with its limits. Its name tells nothing of the child: every process may read it.
    pub(crate) fn leaf(&self, limits: &Limits, wants_filter: bool) -> io::Result<PathBuf> {
        let part = if wants_filter && self.is_filtered {
            FILTERED
        } else {
            ""
        };
        let name = uuid::Uuid::new_v4().simple().to_string();
        let leaf = self.base.join(part).join(name);
        fs::create_dir(&leaf)?;
        // A limit that need not be enforced has no file where its controller is missing.
        let has = |controller: &str| self.controllers.iter().any(|known| known == controller);
        let set = || -> io::Result<()> {
            if let Some(memory) = limits.memory
                && has("memory")
            {
                fs::write(leaf.join("memory.max"), memory.to_string())?;
                // Without swap accounting the file is missing, and there is no swap to limit.
                _ = fs::write(leaf.join("memory.swap.max"), "0");
            }
            if let Some(pids) = limits.pids
                && has("pids")
            {
                fs::write(leaf.join("pids.max"), pids.to_string())?;
            }
            if let Some(percents) = limits.cpu
                && has("cpu")
            {
                let quota = u64::from(percents) * PERIOD / 100;
                fs::write(leaf.join("cpu.max"), format!("{quota} {PERIOD}"))?;
            }
            Ok(())
        };
        set()
            .inspect_err(|_| _ = fs::remove_dir(&leaf))
            .map(|()| leaf.clone())
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Groups that a guard has not removed yet are removed at the next start.
        _ = fs::remove_dir(self.base.join(FILTERED));
        _ = fs::remove_dir(&self.base);
        _ = self.lock.unlock();
    }
}

/// The most processes and threads that the kernel allows in the group `own` of the hierarchy at `mount`: groups around it
/// have limits too, where they can be read. A group without a limit says `max`.
fn processes(root: &Path, mount: &Path, own: &Path) -> u64 {
    let around = own.ancestors().take_while(|group| group.starts_with(mount));
    let around = around.map(|group| group.join("pids.max"));
    let kernel = ["pid_max", "threads-max"].map(|name| root.join("proc/sys/kernel").join(name));
    let read = |file: PathBuf| -> Option<u64> {
        let text = fs::read_to_string(file).ok()?;
        text.trim().parse().ok()
    };
    let found = around.chain(kernel).filter_map(read);
    found.fold(PROCESSES, u64::min)
}

/// The part of `total` processes that all children together may have. The rest is for the gateway and the guards: an
/// eighth, and at least [`RESERVE`] if that is no more than half.
fn of_children(total: u64) -> u64 {
    total - (total / 8).max(RESERVE.min(total / 2))
}

/// Creates a group of a new name, and locks it while the file is open.
///
/// A process id alone is no name: gateways in different PID namespaces may have the same one.
fn claim(own: &Path, prefix: &str) -> io::Result<(PathBuf, File)> {
    let pid = std::process::id();
    for attempt in 0..ATTEMPTS {
        let group = match attempt {
            0 => own.join(format!("{prefix}{pid}")),
            _ => own.join(format!("{prefix}{pid}-{attempt}")),
        };
        match fs::create_dir(&group) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            // Another gateway that starts may have removed it before it was locked.
            Ok(()) => {
                if let Some(lock) = lock(&group)
                    && group.exists()
                {
                    return Ok((group, lock));
                }
            }
        }
    }
    let what = "other gateways have taken every name for a cgroup";
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

/// The lock of a group; none while another gateway has it.
fn lock(group: &Path) -> Option<File> {
    let directory = File::open(group).ok()?;
    directory.try_lock().ok()?;
    Some(directory)
}

/// Enables controllers for the groups below `group`.
fn enable(group: &Path, wanted: &[&str]) -> io::Result<()> {
    let file = group.join("cgroup.subtree_control");
    let known = words(&fs::read_to_string(&file).unwrap_or_default());
    for name in wanted {
        if !known.iter().any(|known| known == name) {
            fs::write(&file, format!("+{name}"))?;
        }
    }
    Ok(())
}

/// Removes leftovers of killed gateways; a group with a process cannot be removed.
fn sweep(own: &Path) {
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX));
        // A group of a living gateway may be empty for a moment, and its process may be in another
        // PID namespace.
        if is_ours && let Some(_lock) = lock(&entry.path()) {
            for part in [entry.path().join(FILTERED), entry.path()] {
                for leaf in fs::read_dir(&part).into_iter().flatten().flatten() {
                    _ = fs::remove_dir(leaf.path());
                }
                _ = fs::remove_dir(part);
            }
        }
    }
}

/// All mount points of cgroups that this process sees, of both versions.
pub(super) fn mounts() -> Vec<PathBuf> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mount_points(&mountinfo, &["cgroup2", "cgroup"])
        .map(PathBuf::from)
        .collect()
}

/// Mount points of file systems of these types (`proc_pid_mountinfo(5)`: fields, " - ", type).
fn mount_points<'m>(mountinfo: &'m str, types: &'m [&str]) -> impl Iterator<Item = String> + 'm {
    mountinfo.lines().filter_map(|line| {
        let (fields, of_type) = line.split_once(" - ")?;
        let of_type = of_type.split(' ').next()?;
        types
            .contains(&of_type)
            .then(|| fields.split(' ').nth(4).map(str::to_owned))
            .flatten()
    })
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

const PREFIX: &str = "lockgate-";

/// Prefix of the group of a gateway's own process.
const GATEWAY_PREFIX: &str = "lockgate-gateway-";

/// Names that are tried for a group.
const ATTEMPTS: u32 = 64;

/// Inner group in which addresses are refused; no child has this name.
const FILTERED: &str = "filtered";

/// Controllers that limits need.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// The most that `pids.max` takes (`PID_MAX_LIMIT`).
const PROCESSES: u64 = 1 << 22;

/// Processes that children leave to the gateway where there are few: tokio alone has up to 512 threads for files.
const RESERVE: u64 = 1024;

/// Period of processor limits, in microseconds.
const PERIOD: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::super::cgroup::*;

    const LIMITS: Limits = Limits {
        line: 1,
        stderr: 1,
        files: 1,
        file_size: 1,
        memory: Some(1 << 20),
        pids: Some(7),
        cpu: Some(50),
    };

    /// A fake file system root with a cgroup that has `controllers`.
    fn fake(controllers: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
        );
        write("proc/self/cgroup", "1:cpu:/x\n0::/user.slice\n");
        write("sys/fs/cgroup/user.slice/cgroup.procs", "");
        write("sys/fs/cgroup/user.slice/cgroup.controllers", controllers);
        root
    }

    #[test]
    fn finds_its_own_group() {
        assert_eq!(Delegation::probe(Path::new("/nonexistent")), None);
        let root = fake("cpu io memory pids\n");
        let found = Delegation::probe(root.path()).unwrap();
        assert!(found.path.ends_with("sys/fs/cgroup/user.slice"));
        assert!(found.is_delegated && found.bounds("memory") && !found.bounds("hugetlb"));
    }

    #[test]
    fn limits_are_written_before_anything_runs() {
        let root = fake("cpu memory pids\n");
        let delegation = Delegation::probe(root.path()).unwrap();
        let filter = |group: &Path| fs::write(group.join("filter"), "");
        let groups = Groups::create(&delegation, 10, Some(filter)).unwrap();
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        // A plain file keeps only the last write.
        assert_eq!(read(delegation.path.join("cgroup.subtree_control")), "+cpu");
        let leaf = groups.leaf(&LIMITS, false).unwrap();
        let filtered = groups.leaf(&LIMITS, true).unwrap();
        assert_eq!(leaf.parent(), Some(&*groups.base));
        assert!(filtered.with_file_name("filter").exists());
        assert_eq!(read(leaf.join("memory.max")), "1048576");
        assert_eq!(read(leaf.join("cpu.max")), "50000 100000");
        assert_eq!(read(groups.base.join("cpu.weight.nice")), "10");
    }

    #[test]
    fn limits_without_a_controller_are_left_out() {
        let root = fake("io pids\n");
        let delegation = Delegation::probe(root.path()).unwrap();
        let groups = Groups::create(&delegation, 0, None::<fn(&Path) -> io::Result<()>>).unwrap();
        let leaf = groups.leaf(&LIMITS, false).unwrap();
        assert!(leaf.join("pids.max").exists());
        assert!(!leaf.join("memory.max").exists() && !leaf.join("cpu.max").exists());
        assert!(!groups.base.join("cpu.weight.nice").exists());
    }

    #[test]
    fn all_children_leave_processes_to_the_gateway() {
        for (total, most) in [
            (4_194_304, 3_670_016),
            (65_536, 57_344),
            (32_768, 28_672),
            (8192, 7168),
            (4096, 3072),
            (2048, 1024),
            (2000, 1000),
            (101, 51),
            (1, 1),
            (0, 0),
        ] {
            assert_eq!(of_children(total), most, "{total}");
        }
    }

    /// One child without a limit of its own took the last process: no other server started.
    #[test]
    fn groups_of_children_leave_processes_to_the_gateway() {
        let root = fake("pids\n");
        let kernel = root.path().join("proc/sys/kernel");
        fs::create_dir_all(&kernel).unwrap();
        let own = root.path().join("sys/fs/cgroup/user.slice/pids.max");
        let around = root.path().join("sys/fs/cgroup/pids.max");
        for (file, text, most) in [
            // A cgroup alone bounds nothing below what the kernel takes.
            (&own, "max\n", "3670016"),
            (&kernel.join("pid_max"), "32768\n", "28672"),
            (&kernel.join("threads-max"), "16384\n", "14336"),
            (&around, "8192\n", "7168"),
            (&own, "4096\n", "3072"),
            (&root.path().join("sys/fs/pids.max"), "8\n", "3072"),
        ] {
            fs::write(file, text).unwrap();
            let delegation = Delegation::probe(root.path()).unwrap();
            let filter = None::<fn(&Path) -> io::Result<()>>;
            let groups = Groups::create(&delegation, 0, filter).unwrap();
            let bound = fs::read_to_string(groups.base.join("pids.max")).unwrap();
            assert_eq!(bound, most, "{} {text}", file.display());
        }
    }

    /// Each child read the names of all tenants and of their servers.
    #[test]
    fn names_of_groups_are_random_alone() {
        let root = fake("cpu memory pids\n");
        let delegation = Delegation::probe(root.path()).unwrap();
        let groups = Groups::create(&delegation, 0, None::<fn(&Path) -> io::Result<()>>).unwrap();
        let [one, other] = [(); 2].map(|()| groups.leaf(&LIMITS, false).unwrap());
        assert_ne!(one, other);
        for leaf in [one, other] {
            let name = leaf.file_name().unwrap().to_str().unwrap();
            assert!(uuid::Uuid::try_parse(name).is_ok(), "{name}");
        }
    }

    /// A gateway in another PID namespace has no process that is seen here, and may have the same
    /// process id.
    #[test]
    fn groups_of_living_gateways_stay_and_leftovers_go() {
        let root = fake("cpu memory pids\n");
        let delegation = Delegation::probe(root.path()).unwrap();
        let group = |name: &str| delegation.path.join(name);
        let own = group(&format!("lockgate-{}", std::process::id()));
        for name in ["lockgate-4194305", "lockgate-4194306"] {
            fs::create_dir_all(group(name).join("filtered/0123")).unwrap();
        }
        fs::create_dir(&own).unwrap();
        let living = [lock(&group("lockgate-4194305")), lock(&own)];
        assert!(living.iter().all(Option::is_some));
        let filter = |_: &Path| Ok(());
        let groups = Groups::create(&delegation, 10, Some(filter)).unwrap();
        assert!(group("lockgate-4194305/filtered/0123").exists());
        assert!(!group("lockgate-4194306").exists());
        assert_ne!(groups.base, own);
        let other = Groups::create(&delegation, 10, Some(filter)).unwrap();
        assert_ne!(other.base, groups.base);
        assert!(groups.base.exists());
    }
}
