//! Usage of a child: memory and processor time of all its processes.

use std::{fs, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

/// Memory and processor time of a tree of processes.
#[derive(Default)]
pub(super) struct Usage {
    pub(super) memory: u64,
    pub(super) cpu: Duration,
    /// Whether one of them runs, or waits for a processor or a disk.
    is_busy: bool,
}

impl Usage {
    /// Usage of all processes below a guard.
    pub(super) fn of(guard: u32) -> Self {
        Self::sum(&below(guard))
    }

    /// Usage of these processes.
    fn sum(processes: &[u32]) -> Self {
        let mut usage = Self::default();
        for pid in processes {
            // `pid (name) state ppid …`: utime and stime are fields 14 and 15, rss is 24.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let field = |number: usize| -> u64 {
                let text = rest.split_ascii_whitespace().nth(number - 3);
                text.and_then(|text| text.parse().ok()).unwrap_or(0)
            };
            let tick = Duration::from_secs(1) / 100;
            let ticks = u32::try_from(field(14) + field(15)).unwrap_or(u32::MAX);
            usage.cpu += tick.saturating_mul(ticks);
            usage.memory += field(24) * rustix::param::page_size() as u64;
            usage.is_busy |= rest.trim_start().starts_with(['R', 'D']);
        }
        usage
    }
}

/// Waits until a guard and all processes below it wait for others: none is busy, and they have used no processor time
/// since the last look. A child that starts does so when it is up, and tells nobody.
pub(crate) async fn calm(guard: u32) {
    let (mut last, mut pause) = (None, CALM);
    loop {
        sleep(pause).await;
        let began = Instant::now();
        let look = spawn_blocking(move || {
            let mut processes = below(guard);
            // Before it has started the server it has work to do.
            processes.push(guard);
            Usage::sum(&processes)
        });
        let Ok(usage) = look.await else {
            return;
        };
        if !usage.is_busy && last == Some(usage.cpu) {
            return;
        }
        last = Some(usage.cpu);
        // Of a large tree at most a twentieth of a core, as for quotas.
        pause = CALM.max(began.elapsed() * 20);
    }
}

/// The time between two looks at a child that starts.
const CALM: Duration = Duration::from_millis(100);

/// Processes below `pid`, parents first.
pub(super) fn below(pid: u32) -> Vec<u32> {
    walk(pid, MAX_THREADS)
}

/// The same, by the lists of so many threads at most.
fn walk(pid: u32, mut threads_left: usize) -> Vec<u32> {
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        // Each thread has a list of its own: of what it has started itself.
        let threads = fs::read_dir(format!("/proc/{parent}/task"));
        let threads = threads.into_iter().flatten().flatten();
        // That of the first thread counts in any case: it has started most of what there is.
        for thread in threads.take(threads_left.max(1)) {
            threads_left = threads_left.saturating_sub(1);
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_ascii_whitespace();
            for child in children.filter_map(|text| text.parse().ok()) {
                found.push(child);
                parents.push(child);
            }
        }
        if found.len() > MAX_PROCESSES {
            break;
        }
    }
    found
}

/// The most processes that are measured in one tree.
const MAX_PROCESSES: usize = 4096;

/// The most threads whose lists are read for one tree: a tenth of a second. All tenants wait for a measurement, and a
/// server may have as many threads as the machine.
const MAX_THREADS: usize = 8192;

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
        thread,
    };

    use super::super::usage::*;

    /// What the first thread had not started itself counted for no quota, and was listed nowhere.
    #[test]
    fn what_any_thread_has_started_is_found() {
        let own = std::process::id();
        let started = thread::spawn(move || {
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            // While this thread lives: another one would take over what it has started.
            let (found, of_first) = (below(own), walk(own, 1));
            child.kill().unwrap();
            child.wait().unwrap();
            (child.id(), found, of_first)
        });
        let (child, found, of_first) = started.join().unwrap();
        assert!(found.contains(&child), "{child} is not in {found:?}");
        assert!(!of_first.contains(&child), "more threads were asked");
    }

    #[tokio::test]
    async fn a_child_is_calm_when_it_uses_no_processor() {
        for (command, is_busy) in [("while :; do :; done", true), ("read line", false)] {
            // The shell that is given the command is the guard of the one that runs it.
            let shell = format!("sh -c '{command}'; :");
            let mut guard = Command::new("sh")
                .args(["-c", &shell])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            while below(guard.id()).is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(20), "it is not there");
                tokio::task::yield_now().await;
            }
            let patience = if is_busy { CALM * 10 } else { CALM * 200 };
            let calm = tokio::time::timeout(patience, calm(guard.id())).await;
            // The other shell ends with the one that it waits for.
            for process in below(guard.id()) {
                let process = rustix::process::Pid::from_raw(process.cast_signed()).unwrap();
                rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
            }
            guard.wait().unwrap();
            assert_eq!(calm.is_err(), is_busy, "{command}");
        }
    }

    /// What was started by processes beside one with many threads was not measured.
    #[test]
    fn the_first_thread_of_each_process_is_asked() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let started: u32 = line.trim().parse().unwrap();
        let threads = fs::read_dir("/proc/self/task").unwrap().count();
        let found = walk(std::process::id(), threads);
        for process in [started, shell.id()] {
            let process = rustix::process::Pid::from_raw(process.cast_signed()).unwrap();
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
        assert!(found.contains(&started), "{started} is not in {found:?}");
    }
}
