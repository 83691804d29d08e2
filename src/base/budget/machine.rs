//! What the machine gives to this process.

use std::{fs, path::Path};

/// The bytes of memory that this process may have: those of the machine, or of the smallest cgroup
/// around it (v2, `memory.max`); 0 if nothing can be read.
pub(crate) fn machine_memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let total = total(&machine).unwrap_or(0);
    let bounds = groups(&own).filter_map(|group| {
        let bound = fs::read_to_string(Path::new(CGROUPS).join(group).join("memory.max"));
        bound.ok()?.trim().parse().ok()
    });
    bounds.fold(total, u64::min)
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
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let group = group.map(Path::new).into_iter();
    group.flat_map(Path::ancestors)
}

const CGROUPS: &str = "/sys/fs/cgroup";

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
    }
}
