//! The data or work directory on a mounted volume that belongs to root.
//!
//! Kubernetes mounts volumes so that a group (`fsGroup`) or everybody may write, and a gateway that is
//! not root can change neither owner nor mode. Its files go into a directory of its own below the mount, and a store
//! stays there when it becomes root. Not here: the check of that directory (`cli/serve/private_dir`, `cli/serve/work`).

use std::{
    fs::{self, Metadata},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::process::Uid;

/// The directory to use for the data directory `path`: one below it, if it is such a volume.
pub(super) fn own_directory(path: PathBuf) -> PathBuf {
    below_mount(path, |_| false)
}

/// The directory to use for the work directory `path`, in the same way. A killed gateway that was root may have left
/// its own right below the mount.
pub(super) fn own_work_directory(path: PathBuf) -> PathBuf {
    below_mount(path, is_work_name)
}

/// Whether a file name may be that of a gateway's directory in the one of `work_dir`.
pub(crate) fn is_work_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let letters = name.strip_prefix(WORK_PREFIX);
    letters.is_some_and(|rest| rest.len() == WORK_LETTERS && rest.bytes().all(is_letter))
}

fn below_mount(path: PathBuf, is_left: fn(&str) -> bool) -> PathBuf {
    let user = rustix::process::geteuid();
    let table = || fs::read("/proc/self/mountinfo");
    if is_roots_volume(&path, user, is_left, table).unwrap_or(false) {
        path.join(OWN_DIRECTORY)
    } else {
        path
    }
}

/// Reports whether a path is a mounted volume of root's with nothing of others in it, or with a store of an earlier
/// start, which no file that came later may hide. Names that `is_left` knows are the gateway's.
///
/// A directory that others share, such as /srv or /tmp, is none, so that it is still refused.
fn is_roots_volume(
    path: &Path,
    user: Uid,
    is_left: fn(&str) -> bool,
    table: impl FnOnce() -> io::Result<Vec<u8>>,
) -> io::Result<bool> {
    let found = fs::metadata(path)?;
    if !is_roots(&found, user, || has_store(&path.join(OWN_DIRECTORY))) {
        return Ok(false);
    }
    if !is_mount_point(&table()?, &path.canonicalize()?) {
        return Ok(false);
    }
    // Where everybody makes files, as in /tmp, it may be a stranger's.
    if found.mode() & STICKY == 0 && has_store(&path.join(OWN_DIRECTORY)) {
        return Ok(true);
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let is_own = name == OWN_DIRECTORY || name.to_str().is_some_and(is_left);
        if !is_own && name != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reports whether a directory is root's, for a gateway of this user. One that is root has it for itself, unless it was
/// another user before: it must not begin anew beside that store.
fn is_roots(found: &Metadata, user: Uid, has_store: impl FnOnce() -> bool) -> bool {
    found.is_dir() && found.uid() == 0 && (!user.is_root() || has_store())
}

fn has_store(dir: &Path) -> bool {
    let mut files = STORE.iter().map(|name| dir.join(name));
    files.any(|file| file.try_exists().unwrap_or(true))
}

/// Finds `path` in a table of mounts (proc(5), "/proc/pid/mountinfo": the fifth field).
fn is_mount_point(table: &[u8], path: &Path) -> bool {
    let lines = table.split(|&byte| byte == b'\n');
    let mut points = lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    points.any(|point| unescaped(point) == path.as_os_str().as_bytes())
}

/// Reads `\040` and the like, which stand for bytes that would break the table.
fn unescaped(point: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), point);
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &behind[3..];
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    bytes
}

/// The directory below the mount.
pub(crate) const OWN_DIRECTORY: &str = "lockgate";
/// The begin of the name of a gateway's directory in the one of `work_dir`.
pub(crate) const WORK_PREFIX: &str = "lg.";
/// The random letters behind that: nobody else makes files there, so it need not be unguessable.
pub(crate) const WORK_LETTERS: usize = 5;

/// Files of a store: the database, or the key of one elsewhere.
const STORE: [&str; 2] = ["lockgate.db", "master.key"];
/// The bit of a directory in which users keep their files from each other.
const STICKY: u32 = 0o1000;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::volume::*;

    #[test]
    fn mount_points_are_found_in_the_table() {
        let table = br"36 35 98:0 / / rw,noatime master:1 - ext3 /dev/root rw
41 36 0:45 /v /var/lib/lockgate rw,relatime - ext4 /dev/sdb rw
42 36 0:46 / /mnt/a\040b\134c rw - tmpfs none rw
";
        for (path, wanted) in [
            ("/", true),
            ("/var/lib/lockgate", true),
            ("/mnt/a b\\c", true),
            ("/var/lib", false),
            ("/v", false),
            ("/var/lib/lockgate/lockgate", false),
        ] {
            assert_eq!(is_mount_point(table, Path::new(path)), wanted, "{path}");
        }
    }

    /// `sandbox.uids` makes the gateway of a chart root: it began with an empty database beside its own.
    #[test]
    fn the_store_of_an_earlier_start_stays_in_use() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_store(dir.path()));
        for name in STORE {
            fs::write(dir.path().join(name), "").unwrap();
            assert!(has_store(dir.path()), "{name}");
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        let root = fs::metadata("/").unwrap();
        assert!(is_roots(&root, Uid::ROOT, || true));
        // In a directory that is no mount anybody may have put one.
        let own = dir.path().join(OWN_DIRECTORY);
        fs::create_dir(&own).unwrap();
        fs::write(own.join(STORE[0]), "").unwrap();
        assert_eq!(own_directory(dir.path().to_owned()), dir.path());
    }

    /// After a copy into the volume the gateway did not start, and commands made an empty store beside its own.
    #[test]
    fn a_file_that_came_later_hides_no_store() {
        if !rustix::process::geteuid().is_root() {
            // The volume has to be root's.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        let table = format!("41 36 0:45 / {} rw - ext4 /dev/sdb rw\n", place.display());
        let is_volume =
            |user| is_roots_volume(&place, user, |_| false, || Ok(table.clone().into_bytes()));
        let (gateway, own) = (Uid::from_raw(10_001), place.join(OWN_DIRECTORY));
        fs::create_dir(&own).unwrap();
        assert!(is_volume(gateway).unwrap(), "it is empty");
        fs::write(place.join("copy.db"), "").unwrap();
        assert!(!is_volume(gateway).unwrap(), "it is shared");
        fs::write(own.join(STORE[0]), "").unwrap();
        for user in [gateway, Uid::ROOT] {
            assert!(is_volume(user).unwrap(), "{user:?}");
        }
        fs::set_permissions(&place, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(!is_volume(Uid::ROOT).unwrap(), "anybody may have made it");
    }

    /// A gateway of another user, after one that was root and was killed, did not start, though the volume had been given
    /// back to its group, as the kubelet does.
    #[test]
    fn what_root_left_in_a_work_dir_is_nothing_of_others() {
        if !rustix::process::geteuid().is_root() {
            // The volume has to be root's.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        let table = format!("41 36 0:45 / {} rw - ext4 /dev/sdb rw\n", place.display());
        let is_volume = |user, is_left: fn(&str) -> bool| {
            is_roots_volume(&place, user, is_left, || Ok(table.clone().into_bytes())).unwrap()
        };
        let gateway = Uid::from_raw(10_001);
        fs::create_dir(place.join("lg.a-_0Z")).unwrap();
        assert!(is_volume(gateway, is_work_name));
        assert!(!is_volume(gateway, |_| false), "no data directory has one");
        fs::create_dir(place.join("lg.monitor")).unwrap();
        assert!(!is_volume(gateway, is_work_name), "it is shared");
    }

    #[test]
    fn directories_of_others_are_taken_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().to_owned();
        assert_eq!(own_directory(plain.clone()), plain);
        let absent = dir.path().join("absent");
        assert_eq!(own_directory(absent.clone()), absent);
        // Mounts of root's that hold what is not the gateway's.
        for shared in ["/", "/proc"] {
            assert_eq!(own_directory(PathBuf::from(shared)), Path::new(shared));
        }
        let root = fs::metadata("/").unwrap();
        assert!(is_roots(&root, Uid::from_raw(10_001), || false));
        assert!(!is_roots(&root, Uid::ROOT, || false));
    }
}
