//! Measurements of a running gateway: memory, processor time, descriptors, counters.

use std::{net::SocketAddr, time::Duration};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;
use tokio::time::Instant;

use crate::support::harness::{Gateway, Session, body, client, until, within};

/// `SCALE` percent of `full`, 1 percent by default, but at least `least`; prints the count.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no configuration to read it from"
)]
pub(crate) fn scaled(what: &str, full: usize, least: usize) -> usize {
    let scale = std::env::var("SCALE").map_or(1, |scale| scale.parse().unwrap());
    let count = (full / 100 * scale).max(least);
    println!("{what}: {count} (of {full})");
    count
}

/// The name of the process from which guards are forked.
pub(crate) const ZYGOTE: &str = "lockgate-zygote";

fn is_zygote(pid: u32) -> bool {
    name_of(pid).is_some_and(|name| name == ZYGOTE)
}

/// The name of a process; none if there is none.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// The process of a gateway, seen through `/proc`.
pub(crate) struct Gauge(u32);

impl Gauge {
    /// The gauge of a running gateway.
    pub(crate) fn of(gateway: &Gateway) -> Self {
        Self::at(gateway.process.id().unwrap())
    }

    /// The gauge of a process.
    pub(crate) const fn at(pid: u32) -> Self {
        Self(pid)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.0)).unwrap()
    }

    /// Resident memory in KiB.
    pub(crate) fn memory(&self) -> i64 {
        let status = self.read("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    }

    /// Processor time so far; the kernel counts hundredths of a second.
    pub(crate) fn processor(&self) -> Duration {
        let stat = self.read("stat");
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split(' ').collect();
        let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
        Duration::from_millis((ticks(12) + ticks(13)) * 10)
    }

    /// The share of one core that it uses during `span`.
    pub(crate) async fn load(&self, span: Duration) -> f64 {
        let (began, before) = (Instant::now(), self.processor());
        tokio::time::sleep(span).await;
        self.processor().saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64()
    }

    /// The bytes that it read so far, from any source.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.counted("rchar: ")
    }

    /// Its system calls so far that read from files and pipes, and those that wrote to anything. Those
    /// that receive from sockets are not among them.
    pub(crate) fn reads_and_writes(&self) -> (u64, u64) {
        (self.counted("syscr: "), self.counted("syscw: "))
    }

    fn counted(&self, name: &str) -> u64 {
        let io = self.read("io");
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse().unwrap()
    }

    /// Open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.0));
        folder.unwrap().count()
    }

    /// Threads.
    pub(crate) fn threads(&self) -> usize {
        let folder = std::fs::read_dir(format!("/proc/{}/task", self.0));
        folder.unwrap().count()
    }

    /// Guards, zombies included.
    pub(crate) fn children(&self) -> usize {
        let all = self.processes();
        all.into_iter().filter(|pid| !is_zygote(*pid)).count()
    }

    /// The process from which the guards are forked.
    pub(crate) fn zygote(&self) -> Option<u32> {
        self.processes().into_iter().find(|pid| is_zygote(*pid))
    }

    /// Bounds the descriptors of the guards that a gateway starts from now on: with six of them none can start a server,
    /// as on a machine that has none left.
    pub(crate) async fn bound_guards(&self, descriptors: u64) {
        until("the zygote", || async { self.zygote().is_some() }).await;
        let zygote = Pid::from_raw(self.zygote().unwrap().cast_signed());
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = Some(descriptors);
        prlimit(zygote, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    }

    fn processes(&self) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0)).unwrap();
        let of = |task: std::fs::DirEntry| {
            let children =
                std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
            pids.collect::<Vec<_>>()
        };
        tasks.flatten().flat_map(of).collect()
    }

    /// The address of the operations listener, which `lockgate run` does not print: the one
    /// socket that listens beside the public one.
    fn operations(&self, public: u16) -> SocketAddr {
        let mut ports = self.sockets().into_iter().filter_map(|fields| {
            let port = u16::from_str_radix(fields[1].split_once(':')?.1, 16).ok()?;
            (fields[3] == "0A" && port != public).then_some(port)
        });
        let port = ports.next_back().expect("ops.listen is set");
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// The bytes in the connections of this process that it has not read.
    pub(crate) fn unread(&self) -> u64 {
        let connected = self
            .sockets()
            .into_iter()
            .filter(|fields| fields[3] == "01");
        let queued = connected.map(|fields| {
            let (_, unread) = fields[4].split_once(':').unwrap();
            u64::from_str_radix(unread, 16).unwrap()
        });
        queued.sum()
    }

    /// The lines of `/proc/net/tcp` about sockets of this process, each by its fields.
    fn sockets(&self) -> Vec<Vec<String>> {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.0)).unwrap();
        let own: Vec<String> = folder
            .flatten()
            .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.display().to_string()))
            .collect();
        let table = self.read("net/tcp");
        let lines = table.lines().skip(1).map(|line| {
            let fields = line.split_whitespace().map(str::to_owned);
            fields.collect::<Vec<String>>()
        });
        let is_own = |fields: &Vec<String>| own.contains(&format!("socket:[{}]", fields[9]));
        lines.filter(is_own).collect()
    }
}

/// A counter of a gateway that was started with `OPS`: the sum of the lines that begin with `name`.
pub(crate) async fn metric(gateway: &Gateway, name: &str) -> i64 {
    let public = gateway.base().rsplit_once(':').unwrap().1;
    let address = Gauge::of(gateway).operations(public.parse().unwrap());
    metric_of(&format!("http://{address}"), name).await
}

/// The same counter, from the URL of an operations listener.
pub(crate) async fn metric_of(ops: &str, name: &str) -> i64 {
    let request = client().get(format!("{ops}/metrics")).send();
    let text = body(within("metrics", request).await.unwrap()).await;
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values = lines.map(|line| line.rsplit_once(' ').unwrap().1);
    values.map(|value| value.parse::<i64>().unwrap()).sum()
}

/// The setting that `metric` needs.
pub(crate) const OPS: &str = "ops.listen=127.0.0.1:0";

/// The time of slow calls of `session`: the third slowest of twenty, one after the other.
pub(crate) async fn slow_call(session: &Session) -> Duration {
    slow_of_twenty(async || {
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    })
    .await
}

/// The third slowest of twenty: other tests on this machine may delay one or two.
pub(crate) async fn slow_of_twenty(act: impl AsyncFn()) -> Duration {
    let mut all = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        act().await;
        all.push(began.elapsed());
    }
    all.sort();
    all[17]
}

/// The median of three measurements: a busy machine may spoil one.
pub(crate) async fn median<F: Future<Output = Duration>>(measure: impl Fn() -> F) -> Duration {
    let mut all = [measure().await, measure().await, measure().await];
    all.sort();
    all[1]
}

/// Asserts that the median of three of `measure` is at most five times `before`.
/// Other load of the machine may spoil two of three medians.
pub(crate) async fn stays_quick<F: Future<Output = Duration>>(
    what: &str,
    before: Duration,
    measure: impl Fn() -> F,
) {
    let bound = before.max(NOISE) * 5;
    let mut all = Vec::new();
    while all.last().is_none_or(|last| *last > bound) {
        all.push(median(&measure).await);
        assert!(all.len() < 4, "{what}: {all:?}, before {before:?}");
    }
    println!("{what}: {before:?} before, {all:?} during");
}

/// Repeats `disturb` while calls of `session` have to stay quick. The calls have their own thread,
/// so that the cost of the disturbance on this side does not count.
pub(crate) async fn calls_stay_quick<T>(session: &Session, disturb: impl AsyncFn() -> T) -> Vec<T> {
    let before = median(|| slow_call(session)).await;
    let twin = session.again();
    let measuring = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            stays_quick("another session", before, || slow_call(&twin)).await;
        });
    });
    let mut all = vec![disturb().await];
    while !measuring.is_finished() {
        all.push(disturb().await);
    }
    measuring.await.unwrap();
    all
}

/// The time that calls of a debug build may take next to other tests.
const NOISE: Duration = Duration::from_millis(15);
