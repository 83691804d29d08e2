//! What the machine gives to this process.

use std::{fs, path::Path};

/// The bytes of memory that this process may have: those of the machine, or of the smallest cgroup
/// around it; 0 if nothing can be read.
pub(crate) fn machine_memory() -> u64 {
    memory_below(Path::new("/"))
}

/// The same, of the files of the kernel below `root`: `memory.max` of cgroup v2, and
/// `memory.limit_in_bytes` of v1, which has the memory of containers also where a machine has both.
/// Without a bound one is `max`, and the other larger than any machine.
fn memory_below(root: &Path) -> u64 {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let own = read("proc/self/cgroup");
    let total = total(&read("proc/meminfo")).unwrap_or(0);
    let bound = |groups: &str, group: &Path, file: &str| -> Option<u64> {
        let file = root.join(groups).join(group).join(file);
        fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    let of_v2 = groups(&own).filter_map(|group| bound(CGROUPS, group, "memory.max"));
    let of_v1 = memory_groups(&own)
        .filter_map(|group| bound(MEMORY_CGROUPS, group, "memory.limit_in_bytes"));
    of_v2.chain(of_v1).fold(total, u64::min)
}

/// The bytes of `MemTotal` in `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// The group of `/proc/self/cgroup` (v2), and those around it. In a container with a cgroup namespace
/// its own group is the root.
fn groups(own: &str) -> impl Iterator<Item = &Path> {
    around(own.lines().find_map(|line| line.strip_prefix("0::/")))
}

/// The group of the controller `memory` (v1), and those around it. In a container without a cgroup namespace only the
/// root is there, and it is its own group.
fn memory_groups(own: &str) -> impl Iterator<Item = &Path> {
    around(own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(":/")?;
        let mut controllers = controllers.split(',');
        controllers.any(|one| one == "memory").then_some(group)
    }))
}

/// A group, and those around it.
fn around(group: Option<&str>) -> impl Iterator<Item = &Path> {
    let group = group.map(Path::new).into_iter();
    group.flat_map(Path::ancestors)
}

const CGROUPS: &str = "sys/fs/cgroup";
const MEMORY_CGROUPS: &str = "sys/fs/cgroup/memory";

#[cfg(test)]
mod tests {
    use crate::base::budget::machine::*;

    #[test]
    fn the_total_is_in_bytes() {
        let meminfo = "MemTotal:       24689204 kB\nMemFree:        18 kB\n";
        assert_eq!(total(meminfo), Some(24_689_204 * 1024));
        assert_eq!(total("MemFree: 18 kB\n"), None);
        assert!(machine_memory() > 64 << 20);
    }

    #[test]
    fn all_groups_around_count() {
        let of = |own: &'static str| -> Vec<_> { groups(own).map(Path::to_owned).collect() };
        let all = ["a/b", "a", ""].map(std::path::PathBuf::from);
        assert_eq!(of("1:cpu:/x\n0::/a/b\n"), all);
        assert_eq!(of("0::/\n"), [Path::new("")]);
        assert!(of("4:memory:/v1\n").is_empty());
        let of_v1 =
            |own: &'static str| -> Vec<_> { memory_groups(own).map(Path::to_owned).collect() };
        for own in [
            "12:cpu,cpuacct:/x\n4:memory:/a/b\n0::/y\n",
            "4:hugetlb,memory:/a/b\n",
        ] {
            assert_eq!(of_v1(own), all, "{own}");
        }
        assert!(of_v1("0::/a\n3:name=memory:/a\nx\n").is_empty());
    }

    /// A container of 1 GiB on a host of 64 GiB with v1 had a quarter of the host's.
    #[test]
    fn the_smallest_bound_of_either_version_counts() {
        let unbound = "9223372036854771712";
        let all: [(&[(&str, &str)], u64); 7] = [
            (&[], 64 << 30),
            (&[("memory/a/b", "1073741824")], 1 << 30),
            (&[("memory", "1073741824")], 1 << 30),
            (&[("memory/a/b", unbound), ("memory", unbound)], 64 << 30),
            (&[("memory/a/b", "2147483648"), ("memory/a", "7")], 7),
            (
                &[("a", "1073741824"), ("memory/a/b", "2147483648")],
                1 << 30,
            ),
            (&[("a", "max"), ("memory/a", "2147483648")], 2 << 30),
        ];
        for (files, wanted) in all {
            let root = tempfile::tempdir().unwrap();
            let write = |file: &str, text: &str| {
                let file = root.path().join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            };
            write("proc/meminfo", "MemTotal:       67108864 kB\n");
            write("proc/self/cgroup", "4:memory:/a/b\n0::/a\n");
            for (group, bound) in files {
                let is_v1 = group.starts_with("memory");
                let file = if is_v1 {
                    "memory.limit_in_bytes"
                } else {
                    "memory.max"
                };
                write(
                    &format!("sys/fs/cgroup/{group}/{file}"),
                    &format!("{bound}\n"),
                );
            }
            assert_eq!(memory_below(root.path()), wanted, "{files:?}");
        }
    }
}
