//! System V objects and POSIX message queues that a child has left behind: no end of a process removes them.
//!
//! Not here: namespaces of a child, with which its own end (`sandbox::restrictions`).

use std::{fs, os::unix::fs::MetadataExt};

use super::syscalls::{Ipc, remove_ipc};

/// Removes those that the user of this process owns or has made, in the IPC namespace of this process. The kernel
/// refuses others.
pub(crate) fn remove_own() {
    let uid = rustix::process::geteuid().as_raw();
    for (kind, table) in TABLES {
        // A kernel without such objects has no table.
        let table = fs::read_to_string(table).unwrap_or_default();
        for id in ids(&table, uid) {
            _ = remove_ipc(kind, id);
        }
    }
    for queue in fs::read_dir(QUEUES).into_iter().flatten().flatten() {
        if queue.metadata().is_ok_and(|found| found.uid() == uid) {
            _ = fs::remove_file(queue.path());
        }
    }
}

/// The ids of the objects in a table of `proc_sysvipc(5)` whose owner or maker this user is.
fn ids(table: &str, uid: u32) -> Vec<i32> {
    let mut lines = table.lines().map(str::split_ascii_whitespace);
    let names = lines.next().into_iter().flatten();
    let is_user: Vec<bool> = names.map(|name| matches!(name, "uid" | "cuid")).collect();
    let own = lines.filter_map(|line| {
        let fields: Vec<&str> = line.collect();
        let mut users = fields.iter().zip(&is_user).filter(|(_, is_user)| **is_user);
        let is_own = users.any(|(field, _)| field.parse::<u32>() == Ok(uid));
        // Behind its key.
        let id = fields.get(1).filter(|_| is_own)?;
        id.parse::<i32>().ok()
    });
    own.collect()
}

/// All System V objects of this process's namespace, by their kind.
const TABLES: [(Ipc, &str); 3] = [
    (Ipc::Memory, "/proc/sysvipc/shm"),
    (Ipc::Semaphores, "/proc/sysvipc/sem"),
    (Ipc::Messages, "/proc/sysvipc/msg"),
];

/// POSIX message queues, where they are mounted (`mq_overview(7)`).
const QUEUES: &str = "/dev/mqueue";

#[cfg(test)]
mod tests {
    use super::super::ipc::*;

    #[test]
    fn objects_of_a_user_are_found_by_their_owner_and_their_maker() {
        let memory = "
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime
         0          3   600                  4096   700   700      0   700     0     0     0          0
       700          4   600                   700   700   700      0     0   700     0   700          0
         0          5   600                  4096     1     1      0     0     0   700     0          0
";
        assert_eq!(ids(memory.trim_start_matches('\n'), 700), [3, 5]);
        let semaphores =
            "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime
         0          0   644          1   700   700   700   700          0          1
";
        assert_eq!(ids(semaphores, 700), [0]);
        assert!(ids(semaphores, 1).is_empty());
        assert!(ids("", 700).is_empty());
    }
}
