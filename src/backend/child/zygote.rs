//! The gateway's end of the zygote, and the guards that it forks.
//!
//! Not here: the zygote itself (`guard::zygote`).

use std::{
    fs::{self, OpenOptions},
    io::{self, IoSlice, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{self, Command, ExitStatus, Stdio},
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recv, sendmsg, socketpair,
        sockopt::{Timeout, set_socket_timeout},
    },
    process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, waitid},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
    task::spawn_blocking,
    time::sleep,
};

use crate::backend::{
    guard::{GUARD_ARGUMENT, STREAMS, ZYGOTE},
    linux::removal,
};

/// The zygote of a gateway, started at its first use and again when it has ended.
#[derive(Debug)]
pub(crate) struct Zygote {
    /// The binary: this one, except in tests.
    program: PathBuf,
    running: RwLock<Option<Running>>,
}

impl Zygote {
    /// The zygote of a binary.
    pub(crate) fn new(program: PathBuf) -> Self {
        let running = RwLock::default();
        Self { program, running }
    }

    /// Starts the zygote ahead of its first use, which reports errors.
    pub(crate) fn start(&self) {
        let mut running = self.running.write().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            *running = Running::start(&self.program).ok();
        }
    }

    /// Forks a guard with these streams: stdin, stdout and stderr. The zygote answers in less than a
    /// millisecond, unless it is stopped: then the wait for it must not keep a thread of the runtime. The fork
    /// goes on when its caller does not, and the guard ends with its streams.
    ///
    /// # Errors
    ///
    /// The zygote cannot be started, does not answer, or cannot fork.
    pub(super) async fn fork(self: Arc<Self>, streams: [OwnedFd; STREAMS]) -> io::Result<Guard> {
        let forked = spawn_blocking(move || self.fork_now(streams.each_ref().map(AsFd::as_fd)));
        forked.await.map_err(io::Error::other)?
    }

    fn fork_now(&self, streams: [BorrowedFd<'_>; STREAMS]) -> io::Result<Guard> {
        let mut running = self.running.write().unwrap_or_else(PoisonError::into_inner);
        // The second time with a new one: somebody may have killed the zygote since it was last used.
        let again = running.is_some();
        let forked = self.fork_by(&mut running, streams);
        let pid = match forked {
            Err(_) if again && running.is_none() => self.fork_by(&mut running, streams)?,
            forked => forked?,
        };
        drop(running);
        Guard::new(pid)
    }

    /// Forks a guard; a zygote that does not answer is ended.
    fn fork_by(
        &self,
        running: &mut Option<Running>,
        streams: [BorrowedFd<'_>; STREAMS],
    ) -> io::Result<Pid> {
        let mut zygote = match running.take() {
            Some(zygote) => zygote,
            None => Running::start(&self.program)?,
        };
        let answer = match zygote.ask(streams) {
            Ok(answer) => {
                *running = Some(zygote);
                answer
            }
            // Of a guard that it came to fork after all, nobody else would know.
            Err(error) => zygote.end().ok_or(error)?,
        };
        match Pid::from_raw(answer) {
            Some(pid) if answer > 0 => Ok(pid),
            _ => Err(io::Error::from_raw_os_error(-answer)),
        }
    }
}

/// A running zygote, ended by being dropped.
#[derive(Debug)]
struct Running {
    process: process::Child,
    socket: OwnedFd,
    /// The number of its last order.
    order: u32,
}

impl Running {
    fn start(program: &PathBuf) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (socket, far) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWERS))?;
        let process = Command::new(program)
            .arg0("lockgate")
            .args([GUARD_ARGUMENT, ZYGOTE, &process::id().to_string()])
            .env_clear()
            // Its allocator would begin with an arena of huge pages.
            .env("MIMALLOC_DISALLOW_ARENA_ALLOC", "1")
            .stdin(far)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self {
            process,
            socket,
            order: 0,
        })
    }

    /// Sends the streams of a guard; returns its process id, or a negative error number.
    fn ask(&mut self, streams: [BorrowedFd<'_>; STREAMS]) -> io::Result<i32> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&streams));
        self.order = self.order.wrapping_add(1);
        let order = self.order.to_ne_bytes();
        let order = &[IoSlice::new(&order)];
        sendmsg(&self.socket, order, &mut control, SendFlags::NOSIGNAL)?;
        match self.answer() {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Errno::AGAIN) => {
                let what = format!("the zygote does not answer within {ANSWERS:?}");
                Err(io::Error::new(io::ErrorKind::TimedOut, what))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the answer to the last order; none if both who give it are gone, the zygote and the guard.
    fn answer(&self) -> rustix::io::Result<Option<i32>> {
        let mut answer = [[0; 4]; 2];
        loop {
            match recv(&self.socket, answer.as_flattened_mut(), RecvFlags::empty()) {
                Ok((_, ANSWER)) if answer[0] == self.order.to_ne_bytes() => {
                    return Ok(Some(i32::from_ne_bytes(answer[1])));
                }
                // The second one to an order before.
                Ok((_, ANSWER)) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Running {
    /// Ends it; returns an answer that nobody has read, or that a guard gives which it forked before.
    fn end(mut self) -> Option<i32> {
        self.kill();
        let answer = match self.answer() {
            // That it has not read its last order is told first.
            Err(Errno::CONNRESET) => self.answer(),
            answer => answer,
        };
        answer.ok().flatten()
    }

    fn kill(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A guard, which is a child process of the gateway. One that is dropped is reaped at its end.
#[derive(Debug)]
pub(super) struct Guard {
    pid: Pid,
    /// None once it is reaped.
    process: Option<AsyncFd<OwnedFd>>,
    /// The cgroup of its tree.
    group: Option<PathBuf>,
}

impl Guard {
    /// A guard that was just forked; without descriptors it is ended.
    fn new(pid: Pid) -> io::Result<Self> {
        Self::watch(pid).inspect_err(|_| {
            _ = rustix::process::kill_process(pid, Signal::KILL);
            _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        })
    }

    fn watch(pid: Pid) -> io::Result<Self> {
        // Nobody else reaps it, so that the id is still its own.
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        #[expect(
            deprecated,
            reason = "unsound for types that may close their descriptor, which an OwnedFd does not"
        )]
        let process = AsyncFd::with_interest(process, Interest::READABLE)?;
        Ok(Self {
            pid,
            process: Some(process),
            group: None,
        })
    }

    /// Sets the cgroup that is removed at its end, if it leaves it: it was killed, or never knew it.
    pub(super) fn removes(&mut self, group: Option<PathBuf>) {
        self.group = group;
    }

    /// Process id, until it is reaped.
    pub(super) fn id(&self) -> Option<Pid> {
        self.process.is_some().then_some(self.pid)
    }

    /// Waits for its end and reaps it; [`Guard::clear`] follows.
    ///
    /// # Panics
    ///
    /// After it was ready.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<ExitStatus> {
        let process = self.process.as_ref().expect("a guard ends once");
        let status = loop {
            let Ok(mut ready) = ready!(process.poll_read_ready(cx)) else {
                break ExitStatus::from_raw(Signal::KILL.as_raw());
            };
            match reap(process) {
                Some(status) => break status,
                None => ready.clear_ready(),
            }
        };
        self.process = None;
        Poll::Ready(status)
    }

    /// Removes its cgroup, and then the private directory that it `left`: what it left in the group may write there.
    pub(super) fn clear(&mut self, left: Option<PathBuf>) {
        remove(self.group.take(), left);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(process) = self.process.take()
            && let Ok(runtime) = Handle::try_current()
        {
            let group = self.group.take();
            runtime.spawn(async move {
                while let Ok(mut ready) = process.readable().await {
                    if reap(&process).is_some() {
                        remove(group, None);
                        break;
                    }
                    ready.clear_ready();
                }
            });
        }
    }
}

/// Removes a cgroup, unless it is gone, and then a private directory that a guard `left`.
fn remove(group: Option<PathBuf>, left: Option<PathBuf>) {
    let group = group.filter(|group| fs::remove_dir(group).is_err() && group.exists());
    if group.is_none() && left.is_none() {
        return;
    }
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    runtime.spawn(async move {
        if let Some(group) = group {
            empty(&group).await;
        }
        if let Some(dir) = left {
            _ = spawn_blocking(move || discard(&dir)).await;
        }
    });
}

/// Kills what a guard that was killed has left in its cgroup, and removes that; one that still has processes after five
/// seconds is removed by the next start of the gateway.
async fn empty(group: &Path) {
    let kill = OpenOptions::new()
        .write(true)
        .open(group.join("cgroup.kill"));
    _ = kill.and_then(|mut kill| kill.write_all(b"1"));
    for _ in 0..250 {
        sleep(Duration::from_millis(20)).await;
        if fs::remove_dir(group).is_ok() || !group.exists() {
            break;
        }
    }
}

/// Removes a private directory in place of its guard. One that remains is removed as other leftovers are.
fn discard(dir: &Path) {
    if let Err(error) = removal::remove(dir) {
        tracing::warn!(
            dir = %dir.display(),
            %error,
            "cannot remove the private directory of a killed guard"
        );
    }
}

/// Reaps a process that has ended.
fn reap(process: &AsyncFd<OwnedFd>) -> Option<ExitStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    match waitid(WaitId::PidFd(process.as_fd()), options) {
        Ok(None) | Err(Errno::INTR) => None,
        Ok(Some(status)) => {
            let code = status.exit_status().map(|code| code << 8);
            let signal = status.terminating_signal();
            Some(ExitStatus::from_raw(code.or(signal).unwrap_or_default()))
        }
        Err(_) => Some(ExitStatus::from_raw(Signal::KILL.as_raw())),
    }
}

/// Bytes of an answer: the number of the order, and what it led to.
const ANSWER: usize = 2 * size_of::<i32>();

/// Time for the zygote to answer, also on a machine that is very busy.
const ANSWERS: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use rustix::{
        pipe::{PipeFlags, pipe_with},
        process::{Resource, Rlimit, getrlimit, kill_process, prlimit},
    };
    use tokio::time::timeout;

    use super::super::tests::built;
    use super::*;

    impl Zygote {
        /// Leaves its guards no descriptor to start a server by, as on a machine that has none left.
        pub(crate) fn starve(&self) {
            // Their streams, their signals, the gateway, and the directory or their own process.
            self.starve_to(6);
        }

        /// Leaves its guards so many descriptors.
        pub(crate) fn starve_to(&self, descriptors: u64) {
            self.start();
            let running = self.running.read().unwrap();
            let pid = Pid::from_child(&running.as_ref().unwrap().process);
            let (current, maximum) = (Some(descriptors), getrlimit(Resource::Nofile).maximum);
            prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum }).unwrap();
        }
    }

    /// The guard of a zygote that answered too late was a zombie until the end of the gateway, and so was that of
    /// one that was killed before it answered.
    #[test]
    fn an_answer_that_comes_too_late_is_read() {
        for late in [Some(4321_i32), None] {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let (socket, far) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
            let process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let zygote = PathBuf::from(format!("/proc/{}", process.id()));
            let guard = std::thread::spawn(move || {
                while zygote.exists() {
                    std::thread::yield_now();
                }
                let before = std::iter::once((1_u32, 1234));
                for (order, pid) in before.chain(late.map(|pid| (2, pid))) {
                    let answer = [order.to_ne_bytes(), pid.to_ne_bytes()];
                    _ = rustix::net::send(&far, answer.as_flattened(), SendFlags::NOSIGNAL);
                }
            });
            let order = 2;
            let running = Running {
                process,
                socket,
                order,
            };
            assert_eq!(running.end(), late);
            guard.join().unwrap();
        }
    }

    /// The processes of a guard that is killed end after it: the group was busy, and stayed.
    #[tokio::test]
    async fn a_cgroup_goes_once_its_processes_have_ended() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("group");
        let [process, kill] = ["process", "cgroup.kill"].map(|name| group.join(name));
        fs::create_dir(&group).unwrap();
        for file in [&process, &kill] {
            fs::write(file, "").unwrap();
        }
        remove(Some(group.clone()), None);
        let gone = async {
            while fs::read_to_string(&kill).unwrap() != "1" {
                sleep(Duration::from_millis(1)).await;
            }
            fs::remove_file(&process).unwrap();
            fs::remove_file(&kill).unwrap();
            while group.exists() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), gone).await.unwrap();
    }

    #[test]
    fn a_guard_answers_as_its_zygote_does() {
        let mut zygote = Running::start(&built("lockgate")).unwrap();
        for _ in 0..2 {
            let [stdin, stdout, stderr] =
                [(); STREAMS].map(|()| pipe_with(PipeFlags::CLOEXEC).unwrap());
            let streams = [stdin.0.as_fd(), stdout.1.as_fd(), stderr.1.as_fd()];
            let guard = zygote.ask(streams).unwrap();
            assert_eq!(zygote.answer(), Ok(Some(guard)));
            drop((stdin, stdout, stderr));
            let guard = Pid::from_raw(guard).unwrap();
            rustix::process::waitpid(Some(guard), WaitOptions::empty()).unwrap();
        }
    }

    /// Each start kept a thread of the runtime for ten seconds.
    #[tokio::test]
    async fn a_zygote_that_is_stopped_keeps_no_thread_of_the_runtime() {
        let zygote = Arc::new(Zygote::new(built("lockgate")));
        zygote.start();
        let pid = {
            let running = zygote.running.read().unwrap();
            Pid::from_child(&running.as_ref().unwrap().process)
        };
        kill_process(pid, Signal::STOP).unwrap();
        let [stdin, stdout, stderr] =
            [(); STREAMS].map(|()| pipe_with(PipeFlags::CLOEXEC).unwrap());
        let forked = Arc::clone(&zygote).fork([stdin.0, stdout.1, stderr.1]);
        let mut forked = std::pin::pin!(forked);
        let first = timeout(Duration::from_millis(100), &mut forked).await;
        assert!(first.is_err(), "it was forked: {first:?}");
        kill_process(pid, Signal::KILL).unwrap();
        // By the next zygote.
        let forked = timeout(Duration::from_secs(5), forked).await;
        assert!(forked.unwrap().unwrap().id().is_some());
    }
}
