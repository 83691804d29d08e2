//! Tests of real children behind the real guard.

use std::{
    collections::BTreeMap,
    fs::Permissions,
    os::{fd::AsFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use futures_util::FutureExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    launcher::{Ambient, Launcher},
    stdio::{Child, ChildEvent, Exit},
    usage::below,
    zygote::Zygote,
};
use crate::backend::{
    dialect::{Opening, Translator},
    linux::syscalls::landlock,
    sandbox::{Restrictions, Sandbox},
};
use crate::base::budget::{Budget, Descriptors, LargeWork};
use crate::declare::{Confinement, Home, Isolation, Launch, Limits, Profile};

const LIMITS: Limits = Limits {
    line: 16 << 20,
    stderr: 64 << 10,
    files: 256,
    file_size: 1 << 30,
    memory: None,
    pids: None,
    cpu: None,
};
const CLOCKS: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(300)];

pub(super) fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().parent().unwrap().join(name)
}

fn launch(command: &str) -> Launch {
    let (args, env) = (
        vec!["--flag; $(x)".into()],
        BTreeMap::from([("SECRET".into(), "s".into())]),
    );
    Launch {
        command: command.into(),
        args,
        env,
        cwd: None,
        home: Home::Private,
        confinement: Confinement::default(),
        prepared: None,
        files: BTreeMap::new(),
        is_preparing: false,
    }
}

async fn start_as(launch: &Launch) -> (Child, tempfile::TempDir) {
    let work = tempfile::tempdir().unwrap();
    let child = start_in(work.path(), launch, Sandbox::none()).await;
    (child, work)
}

async fn start_in(work: &Path, launch: &Launch, sandbox: Sandbox) -> Child {
    let launcher = launcher(work, sandbox);
    let child = Child::spawn(&launcher, ("acme", "files"), launch, &LIMITS).await;
    child.unwrap()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test finds its programs as the gateway does"
)]
fn launcher(work: &Path, sandbox: Sandbox) -> Launcher {
    let ambient = Ambient {
        path: std::env::var_os("PATH"),
        cwd: "/".into(),
        ..Ambient::default()
    };
    let zygote = Arc::new(Zygote::new(built("lockgate")));
    Launcher {
        zygote,
        ambient,
        work: work.into(),
        sandbox: Arc::new(sandbox),
        descriptors: Descriptors::new(10_000),
        prepared: work.join("prepared"),
    }
}

async fn start() -> (Child, tempfile::TempDir) {
    start_as(&launch(built("examples/child").to_str().unwrap())).await
}

#[expect(clippy::needless_pass_by_value, reason = "callers write literals")]
fn write(child: &mut Child, tool: &str, args: Value) {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": args}});
    child
        .out()
        .extend_from_slice(format!("{call}\n").as_bytes());
    child.try_flush();
}

async fn event(child: &mut Child) -> ChildEvent {
    timeout(Duration::from_secs(20), child.next())
        .await
        .expect("nothing event")
}

async fn call(child: &mut Child, tool: &str, args: Value) -> String {
    write(child, tool, args);
    loop {
        let ChildEvent::Line(line) = event(child).await else {
            panic!("no answer of {tool}")
        };
        let line: Value = serde_json::from_slice(&line).unwrap();
        if line.get("id").is_some() {
            return line["result"]["content"][0]["text"]
                .as_str()
                .unwrap()
                .to_owned();
        }
    }
}

async fn ended(child: &mut Child) -> Exit {
    loop {
        if let ChildEvent::Exited(exit) = event(child).await {
            return exit;
        }
    }
}

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The process `guard` and all its descendants.
fn descendants(guard: i32) -> Vec<i32> {
    let all: Vec<(i32, i32)> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((
                pid,
                stat.rsplit_once(')')?
                    .1
                    .split_whitespace()
                    .nth(1)?
                    .parse()
                    .ok()?,
            ))
        })
        .collect();
    let mut found = vec![guard];
    for _ in 0..20 {
        for (pid, parent) in &all {
            if found.contains(parent) && !found.contains(pid) {
                found.push(*pid);
            }
        }
    }
    found
}

#[tokio::test]
async fn a_child_answers_and_ends_with_its_stdin() {
    let (mut child, work) = start().await;
    assert_eq!(call(&mut child, "echo", json!({"text": "hi"})).await, "hi");
    let mut private = std::fs::read_dir(work.path()).unwrap();
    let dir = std::fs::File::open(private.next().unwrap().unwrap().path()).unwrap();
    assert!(private.next().is_none());
    let alone = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    assert!(rustix::fs::flock(&dir, alone).is_err(), "its guard has it");
    let begun = Instant::now();
    let exit = child.stop([Duration::from_secs(10); 2]).await;
    assert_eq!((exit.code, exit.signal), (Some(0), None));
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(
        std::fs::read_dir(work.path()).unwrap().count(),
        0,
        "private directory stays"
    );
}

#[tokio::test]
async fn how_a_child_ended_is_told() {
    for (tool, code, signal) in [
        ("exit", Some(7), None),
        ("abort", None, Some(6)),
        ("segv", None, Some(11)),
    ] {
        let (mut child, _work) = start().await;
        write(&mut child, tool, json!({"code": 7}));
        assert!(matches!(event(&mut child).await, ChildEvent::Closed));
        let exit = ended(&mut child).await;
        assert_eq!((exit.code, exit.signal), (code, signal), "{tool}");
    }
}

#[tokio::test]
async fn a_command_that_cannot_start_says_why() {
    for command in ["/no/such/file", "no-such-command", "/etc/passwd"] {
        let (mut child, _work) = start_as(&launch(command)).await;
        let exit = ended(&mut child).await;
        assert_eq!(exit.code, Some(127));
        let tail = String::from_utf8(exit.stderr_tail).unwrap();
        assert!(
            tail.starts_with(&format!("lockgate: cannot start {command}: ")),
            "{tail}"
        );
    }
}

#[tokio::test]
async fn a_child_gets_what_is_declared_and_nothing_else() {
    let (mut child, work) = start().await;
    let env: BTreeMap<String, String> =
        serde_json::from_str(&call(&mut child, "env", json!({})).await).unwrap();
    assert_eq!(
        env.keys().collect::<Vec<_>>(),
        ["HOME", "LANG", "PATH", "SECRET", "TMPDIR"]
    );
    let fds: BTreeMap<String, String> =
        serde_json::from_str(&call(&mut child, "fds", json!({})).await).unwrap();
    assert_eq!(fds.keys().collect::<Vec<_>>(), ["0", "1", "2"], "{fds:?}");
    let own: Value = serde_json::from_str(&call(&mut child, "cwd", json!({})).await).unwrap();
    assert!(
        own["cwd"]
            .as_str()
            .unwrap()
            .starts_with(work.path().to_str().unwrap())
    );
    assert_eq!(own["mode"], "700");
    assert_eq!(own["umask"], "0077");
    assert_eq!(own["no_new_privs"], "1");
    assert_eq!(own["session"], own["pid"]);
    // The child's own std ignores SIGPIPE. libc reserves signals 32 and 33, which cannot be set.
    let ignored = u64::from_str_radix(own["signals_ignored"].as_str().unwrap(), 16).unwrap();
    assert_eq!(ignored & !0x1_8000_1000, 0, "{ignored:x}");
    assert_eq!(own["signals_blocked"], "0000000000000000");
    assert!(
        own["limits"]
            .as_str()
            .unwrap()
            .contains("Max open files            256 ")
    );
    let args = call(&mut child, "args", json!({})).await;
    assert!(args.ends_with(r#","--flag; $(x)"]"#), "{args}");
    child.kill().await;
}

#[tokio::test]
async fn nothing_below_survives_the_end() {
    for tool in ["exit", "kill", "drop", "ignore_term"] {
        let (mut child, work) = start().await;
        call(&mut child, "spawn_tree", json!({})).await;
        let all = descendants(i32::try_from(child.pid().unwrap()).unwrap());
        assert!(all.len() >= 10, "{all:?}");
        match tool {
            "exit" => {
                write(&mut child, "exit", json!({"code": 3}));
                assert_eq!(ended(&mut child).await.code, Some(3));
            }
            // The child may also exit on its own, at the end of its stdin.
            "kill" => _ = child.kill().await,
            "ignore_term" => {
                call(&mut child, "ignore_term", json!({})).await;
                let begun = Instant::now();
                assert_eq!(child.stop(CLOCKS).await.signal, Some(9));
                assert!(begun.elapsed() >= CLOCKS[0] + CLOCKS[1]);
                assert!(begun.elapsed() < Duration::from_secs(3));
            }
            _ => drop(child),
        }
        let begun = Instant::now();
        while all.iter().any(|&pid| is_alive(pid)) || work.path().read_dir().unwrap().count() > 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "survivors after {tool}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn sigterm_is_tried_before_the_kill() {
    let mut spec = launch("sh");
    spec.args = vec![
        "-c".into(),
        "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done".into(),
    ];
    let (mut child, _work) = start_as(&spec).await;
    assert!(matches!(event(&mut child).await, ChildEvent::Line(_)));
    assert_eq!(
        child.stop([CLOCKS[0], Duration::from_secs(9)]).await.code,
        Some(9)
    );
}

#[tokio::test]
async fn a_fork_bomb_is_ended() {
    let mut spec = launch("sh");
    // The bomb ends by itself if the test fails: it has nine levels, and the last one sleeps.
    let bomb =
        "f() { [ $1 -gt 0 ] || exec sleep 100; f $(($1-1)) & f $(($1-1)) & wait; }; echo up; f 9";
    spec.args = vec!["-c".into(), bomb.into()];
    let (mut child, _work) = start_as(&spec).await;
    assert!(matches!(event(&mut child).await, ChildEvent::Line(_)));
    let guard = i32::try_from(child.pid().unwrap()).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let session: Vec<i32> = descendants(guard);
    assert_eq!(child.kill().await.signal, Some(9));
    assert!(!session.iter().any(|&pid| is_alive(pid)));
}

/// Each of its processes was gone when the guard had found it.
#[tokio::test]
async fn a_server_that_forks_and_ends_all_the_time_is_ended() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for landlock in [0, landlock()] {
        let Some(sandbox) = Sandbox::separated(landlock) else {
            continue;
        };
        let work = tempfile::tempdir().unwrap();
        std::fs::set_permissions(work.path(), Permissions::from_mode(0o755)).unwrap();
        let path = work.path().join("lock");
        let lock = std::fs::File::create(&path).unwrap();
        lock.set_permissions(Permissions::from_mode(0o644)).unwrap();
        // Where the program of another uid can be reached.
        let program = work.path().join("child");
        std::fs::copy(built("examples/child"), &program).unwrap();
        let mut spec = launch(program.to_str().unwrap());
        spec.confinement.profile = Profile::Open;
        let mut child = start_in(work.path(), &spec, sandbox).await;
        let args = json!({"path": path, "ms": 30_000});
        assert_eq!(call(&mut child, "outrun", args).await, "ran");
        assert!(lock.try_lock().is_err());
        let exit = child.kill().await;
        let what = format!("{landlock} {exit:?}");
        lock.try_lock().expect(&what);
    }
}

/// The workers of the runtime made the directories and files of each start.
#[test]
fn directories_are_made_off_the_runtime_and_go_with_a_start_that_is_given_up() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // One thread for files, which the test takes.
    let runtime = runtime.max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let work = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(work.path()).unwrap().count();
        let (launcher, spec) = (launcher(work.path(), Sandbox::none()), launch("cat"));
        let requested = || launcher.requested(&spec, &LIMITS, None, Restrictions::default());
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || wait.recv().is_err());
        let (mut waiting, mut given_up) = (Box::pin(requested()), Box::pin(requested()));
        assert!((&mut waiting).now_or_never().is_none());
        assert!((&mut given_up).now_or_never().is_none());
        assert_eq!(count(), 0);
        drop(given_up);
        drop(go);
        let (made, request, _) = waiting.await.unwrap();
        assert!(request.private.unwrap().exists());
        // The thread has done what was before this.
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert_eq!(count(), 1, "those that nobody waits for are gone");
        drop(made);
        assert_eq!(count(), 0);
        assert!(busy.await.unwrap());
    });
}

/// They were those of the next child with its uid, of another tenant, or nobody's.
#[tokio::test]
async fn what_a_child_shares_by_ipc_ends_with_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Some(sandbox) = Sandbox::separated(0) else {
        return;
    };
    let work = tempfile::tempdir().unwrap();
    std::fs::set_permissions(work.path(), Permissions::from_mode(0o755)).unwrap();
    let mut spec = launch("/bin/sh");
    spec.args = ["-c", "ipcmk -M 4096 -p 600 -Q -S 1 && cat"]
        .map(str::to_owned)
        .into();
    spec.confinement.profile = Profile::Open;
    let launcher = launcher(work.path(), sandbox);
    let label = ("acme", "files");
    let mut child = Child::spawn(&launcher, label, &spec, &LIMITS)
        .await
        .unwrap();
    let uid = child.private_files().unwrap().uid.unwrap().to_string();
    let left = || -> Vec<String> {
        let tables = ["shm", "sem", "msg"].map(|name| format!("/proc/sysvipc/{name}"));
        let tables = tables.map(|table| std::fs::read_to_string(table).unwrap());
        let lines = tables.iter().flat_map(|table| table.lines());
        let own = lines.filter(|line| line.split_ascii_whitespace().any(|field| field == uid));
        own.map(str::to_owned).collect()
    };
    while left().len() < 3 {
        let event = event(&mut child).await;
        assert!(matches!(event, ChildEvent::Line(_)), "{event:?}");
    }
    child.kill().await;
    assert_eq!(left(), [""; 0]);
}

/// Counts the warnings of this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// It may have left processes of the child, and so may one that gives up, and kills itself.
#[tokio::test]
async fn a_killed_guard_is_logged_and_others_are_not() {
    let warnings = Warnings::default();
    let _default = tracing::subscriber::set_default(warnings.clone());
    for (is_killed, logged) in [(false, 0), (true, 1)] {
        let (mut child, _work) = start().await;
        call(&mut child, "echo", json!({"text": "here"})).await;
        let exit = if is_killed {
            let guard = i32::try_from(child.pid().unwrap()).unwrap();
            let guard = rustix::process::Pid::from_raw(guard).unwrap();
            rustix::process::kill_process(guard, Signal::KILL).unwrap();
            ended(&mut child).await
        } else {
            child.kill().await
        };
        // One that is not killed may end with its input first.
        assert!(exit.signal == Some(9) || !is_killed, "{exit:?}");
        assert_eq!(warnings.0.load(Ordering::Relaxed), logged);
    }
}

/// Each stayed until the gateway was started anew, and a machine has a limited number of them.
#[tokio::test]
async fn a_killed_guard_leaves_no_group() {
    // In the place of a cgroup.
    let groups = tempfile::tempdir().unwrap();
    for is_dropped in [false, true] {
        let (mut child, _work) = start().await;
        let group = groups.path().join(is_dropped.to_string());
        std::fs::create_dir(&group).unwrap();
        child.guard.removes(Some(group.clone()));
        let guard = child.guard.id().unwrap();
        rustix::process::kill_process(guard, Signal::KILL).unwrap();
        if is_dropped {
            drop(child);
        } else {
            ended(&mut child).await;
        }
        let begun = Instant::now();
        while group.exists() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is left");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// It stayed, with the secrets in it, until the catalogue changed or the gateway was started anew.
#[tokio::test]
async fn a_killed_guard_leaves_no_private_directory() {
    let (mut child, work) = start().await;
    call(&mut child, "echo", json!({"text": "here"})).await;
    let left = || work.path().read_dir().unwrap().count();
    assert_eq!(left(), 1);
    let guard = child.guard.id().unwrap();
    rustix::process::kill_process(guard, Signal::KILL).unwrap();
    ended(&mut child).await;
    // As the owners of children do.
    child.kill().await;
    let begun = Instant::now();
    while left() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is left");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The guard ended without it, and the directory stayed with the secrets in it.
#[tokio::test]
async fn a_child_that_is_killed_before_its_guard_knows_it_whole_leaves_no_files() {
    let mut spec = launch("cat");
    // More than a pipe takes at once.
    spec.env.insert("LARGE".into(), "x".repeat(12 << 20));
    let (child, work) = start_as(&spec).await;
    assert_eq!(work.path().read_dir().unwrap().count(), 1);
    let begun = Instant::now();
    while rustix::io::ioctl_fionread(child.stdin.as_ref().unwrap()).unwrap() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody reads");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let exit = child.kill().await;
    assert_eq!(work.path().read_dir().unwrap().count(), 0, "{exit:?}");
}

/// One that was killed in the midst of it left the rest, and was logged as one that left processes.
#[tokio::test]
async fn a_guard_that_removes_files_is_not_killed() {
    let warnings = Warnings::default();
    let _default = tracing::subscriber::set_default(warnings.clone());
    let mut spec = launch("cat");
    spec.args.clear();
    let (child, work) = start_as(&spec).await;
    let private = work.path().read_dir().unwrap().next().unwrap().unwrap();
    for file in 0..30_000 {
        std::fs::File::create(private.path().join(file.to_string())).unwrap();
    }
    let guard = child.pid().unwrap();
    let wait_until_empty = async |is_empty: bool| {
        let begun = Instant::now();
        while below(guard).is_empty() != is_empty {
            assert!(begun.elapsed() < Duration::from_secs(20));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    wait_until_empty(false).await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(guard).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    wait_until_empty(true).await;
    // The runtime has to know that all ends of the pipe are closed.
    child.stdout.as_ref().unwrap().readable().await.unwrap();
    child.kill_within(Duration::ZERO).await;
    let begun = Instant::now();
    while work.path().read_dir().unwrap().count() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "files are left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(warnings.0.load(Ordering::Relaxed), 0);
}

#[test]
#[ignore = "a helper of the test below"]
fn helper_gateway() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut child, _work) = start().await;
        call(&mut child, "spawn_tree", json!({})).await;
        let all = descendants(i32::try_from(child.pid().unwrap()).unwrap());
        println!("\npids {}", json!(all));
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}

#[test]
fn nothing_survives_a_killed_gateway() {
    use std::io::BufRead;
    let mut gateway = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "backend::child::tests::helper_gateway",
            "--ignored",
            "--nocapture",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(gateway.stdout.take().unwrap()).lines();
    let pids = lines
        .map_while(Result::ok)
        .find_map(|line| serde_json::from_str::<Vec<i32>>(line.strip_prefix("pids ")?).ok());
    let pids = pids.unwrap();
    assert!(pids.len() >= 10);
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    let begun = Instant::now();
    while pids.iter().any(|&pid| is_alive(pid)) {
        assert!(begun.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_flood_of_stderr_blocks_nothing() {
    let (mut child, _work) = start().await;
    let bytes = 64 << 20;
    assert_eq!(
        call(&mut child, "stderr", json!({"bytes": bytes})).await,
        "written"
    );
    call(&mut child, "echo", json!({"text": "x"})).await;
    let tail = child.kill().await.stderr_tail;
    assert_eq!(tail.len(), 64 << 10);
}

#[tokio::test]
async fn lines_of_all_sizes_come_whole() {
    let (mut child, _work) = start().await;
    for bytes in [0, 1, 4000, 4096, 70_000, 1 << 20, (16 << 20) - 100] {
        let text = call(&mut child, "big", json!({"bytes": bytes})).await;
        assert_eq!(text.len(), bytes);
        let text = "x".repeat(bytes.min(1 << 20));
        assert_eq!(call(&mut child, "echo", json!({"text": text})).await, text);
    }
    write(
        &mut child,
        "garbage",
        json!({"what": "huge", "bytes": LIMITS.line + 1}),
    );
    assert!(matches!(event(&mut child).await, ChildEvent::TooLong));
    child.kill().await;
}

/// Nothing but its turn wakes a child that has said a large line.
#[tokio::test]
async fn a_large_line_is_translated_and_returned() {
    let (mut child, _work) = start().await;
    let sessions = (false, Isolation::Session);
    let translator = Translator::new("acme", Opening::Legacy, sessions, Arc::default());
    child.translate_by(translator);
    let begun = Instant::now();
    for _ in 0..2 {
        let text = call(&mut child, "big", json!({"bytes": 1 << 20})).await;
        assert_eq!(text.len(), 1 << 20);
    }
    // A time limit that is over polls what it limits once more.
    assert!(begun.elapsed() < Duration::from_secs(20), "not by its turn");
    // A session that does not read its child keeps no turn from others.
    let held = LargeWork::all_turns().await;
    write(&mut child, "big", json!({"bytes": 1 << 20}));
    let patience = Duration::from_millis(500);
    assert!(timeout(patience, child.next()).await.is_err(), "no turn");
    drop(held);
    assert!(LargeWork::turn("other", 1 << 20).now_or_never().is_some());
    assert!(matches!(event(&mut child).await, ChildEvent::Line(_)));
    child.kill().await;
}

/// Its owner heard that it had ended, which counted as a failed start.
#[tokio::test]
async fn a_refusal_is_told_before_the_end_of_its_child() {
    let refusal = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#;
    let mut refuses = launch("sh");
    let script = format!("read asked; echo '{refusal}'; read asked; exit 3");
    refuses.args = vec!["-c".into(), script];
    let (mut child, _work) = start_as(&refuses).await;
    let sessions = (false, Isolation::Session);
    let translator = Translator::new("acme", Opening::Legacy, sessions, Arc::default());
    child.translate_by(translator);
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}});
    let initialize = format!("{initialize}\n");
    child.out().extend_from_slice(initialize.as_bytes());
    child.try_flush();
    assert!(matches!(event(&mut child).await, ChildEvent::Translated));
    let ChildEvent::Line(line) = event(&mut child).await else {
        panic!("it is lost")
    };
    assert_eq!(line, refusal);
    assert!(matches!(event(&mut child).await, ChildEvent::Closed));
    assert_eq!(ended(&mut child).await.code, Some(3));
}

/// One that stood in its pipe when the time was over was not read.
#[tokio::test]
async fn an_answer_that_has_come_goes_before_the_refusal_that_nobody_has_answered() {
    let refusal = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#;
    let discovered = r#"{"jsonrpc":"2.0","id":2147483647,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}}}}"#;
    let mut answers = launch("sh");
    let script = format!("read asked; echo '{refusal}'; read asked; echo '{discovered}'; read end");
    answers.args = vec!["-c".into(), script];
    let (mut child, _work) = start_as(&answers).await;
    let sessions = (false, Isolation::Session);
    let translator = Translator::new("acme", Opening::Legacy, sessions, Arc::default());
    // It is over as soon as the question is asked.
    child.translate_by(translator.within(Duration::from_nanos(1)));
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"}});
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let initialize = format!("{initialize}\n");
    child.out().extend_from_slice(initialize.as_bytes());
    child.try_flush();
    assert!(matches!(event(&mut child).await, ChildEvent::Translated));
    let begun = Instant::now();
    let stdout = child.stdout.as_ref().unwrap();
    while rustix::io::ioctl_fionread(stdout).unwrap() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "no answer");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stdout.readable().await.unwrap();
    let ChildEvent::Line(line) = event(&mut child).await else {
        panic!("it is lost")
    };
    assert!(
        line.starts_with(br#"{"jsonrpc":"2.0","id":1,"result":"#),
        "{line:?}"
    );
    child.kill().await;
}

/// A server could end with the code that its guard had for this, and was started again and again; or end the guard by
/// the signal.
#[tokio::test]
async fn that_a_machine_has_no_process_is_told_by_the_guard_alone() {
    let warnings = Warnings::default();
    let _default = tracing::subscriber::set_default(warnings.clone());
    for (script, code, signal) in [
        ("exit 193", Some(193), None),
        ("kill -USR2 $$", None, Some(Signal::USR2.as_raw())),
        (
            "kill -USR2 $PPID; exec cat",
            None,
            Some(Signal::KILL.as_raw()),
        ),
    ] {
        let mut own = launch("sh");
        own.args = vec!["-c".into(), script.into()];
        let (mut child, _work) = start_as(&own).await;
        let exit = ended(&mut child).await;
        let told = (exit.code, exit.signal, exit.is_shortage);
        assert_eq!(told, (code, signal, false), "{script}");
    }
    let work = tempfile::tempdir().unwrap();
    // With one more, its streams have no end to be dropped to.
    for (descriptors, home) in [(6, Home::Caller), (7, Home::Caller), (6, Home::Private)] {
        let launcher = launcher(work.path(), Sandbox::none());
        launcher.zygote.starve_to(descriptors);
        let mut spec = launch("cat");
        spec.home = home;
        let child = Child::spawn(&launcher, ("acme", "files"), &spec, &LIMITS).await;
        let exit = ended(&mut child.unwrap()).await;
        assert!(exit.is_shortage && exit.code.is_none(), "{exit:?}");
        let tail = String::from_utf8(exit.stderr_tail).unwrap();
        assert!(tail.starts_with("lockgate: cannot start cat: "), "{tail}");
    }
    // The last guard had no descriptor to remove the directory by.
    let begun = Instant::now();
    while std::fs::read_dir(work.path()).unwrap().count() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it stays");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(warnings.0.load(Ordering::Relaxed), 0, "no guard was killed");
}

/// A thousand children that printed were read at once, before the requests of other tenants.
#[tokio::test]
async fn a_child_is_read_in_the_turn_of_its_tenant() {
    let (mut child, _work) = start().await;
    let tenant = Budget::new(1 << 30).share();
    child.count_against(&tenant);
    call(&mut child, "echo", json!({"text": "x"})).await;
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(tenant.others_first())).collect();
    for one in &mut line {
        assert!(futures_util::poll!(one).is_pending());
    }
    let prints = async |child: &mut Child| {
        write(child, "echo", json!({"text": "y"}));
        let (stdout, begun) = (child.stdout.as_ref().unwrap(), Instant::now());
        while rustix::io::ioctl_fionread(stdout).unwrap() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "no answer");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The runtime has to know it too.
        stdout.readable().await.unwrap();
    };
    prints(&mut child).await;
    let printed = child.stdout.as_ref().unwrap().as_fd();
    let printed = printed.try_clone_to_owned().unwrap();
    let mut next = Box::pin(event(&mut child));
    assert!(futures_util::poll!(&mut next).is_pending());
    assert!(
        rustix::io::ioctl_fionread(&printed).unwrap() > 0,
        "it was read"
    );
    // Its turn is its own, whoever stands behind it.
    let mut behind = Box::pin(tenant.others_first());
    assert!(futures_util::poll!(&mut behind).is_pending());
    line.pop();
    assert!(matches!(next.await, ChildEvent::Line(_)));
    // What its session has to do meanwhile does not send it back.
    prints(&mut child).await;
    assert!(futures_util::poll!(Box::pin(child.next())).is_pending());
    assert!(matches!(event(&mut child).await, ChildEvent::Line(_)));
    let killed = Instant::now();
    child.kill().await;
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "it stood in line to end"
    );
}

/// Requests that waited for a child kept its answers out while its tenant had no room, and nothing became free.
#[tokio::test]
async fn the_answer_of_a_child_is_read_without_room_for_more() {
    let mut answers = launch("sh");
    answers.args = vec!["-c".into(), "read -r one; echo two; exec sleep 600".into()];
    let (mut child, _work) = start_as(&answers).await;
    let root = Budget::new(4 << 20);
    let tenant = root.share();
    child.count_against(&tenant);
    for _ in 0..2 {
        write(&mut child, "echo", json!({"text": "x".repeat(512 << 10)}));
    }
    let others = root.share().hold(4 << 20);
    assert!(matches!(event(&mut child).await, ChildEvent::Line(line) if line == "two"));
    let (used, left) = (tenant.used(), tenant.left());
    assert!(used > 256 << 10 && left < 0, "{used} {left}");
    drop(others);
    child.kill().await;
}

/// A flood of empty lines was worked on for milliseconds at a time, before the requests of other tenants.
#[tokio::test]
async fn the_stderr_of_a_child_is_read_in_the_turn_of_its_tenant() {
    let mut complains = launch("sh");
    complains.args = vec!["-c".into(), "echo no >&2; exec cat".into()];
    let (mut child, _work) = start_as(&complains).await;
    let tenant = Budget::new(1 << 30).share();
    child.count_against(&tenant);
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(tenant.others_first())).collect();
    for one in &mut line {
        assert!(futures_util::poll!(one).is_pending());
    }
    child.stderr.as_ref().unwrap().readable().await.unwrap();
    let tail = child.stderr().clone();
    let mut next = Box::pin(child.next());
    assert!(futures_util::poll!(&mut next).is_pending());
    assert!(tail.bytes().is_empty(), "it was read");
    drop(line);
    let begun = Instant::now();
    while tail.bytes().is_empty() {
        assert!(futures_util::poll!(&mut next).is_pending());
        assert!(begun.elapsed() < Duration::from_secs(20), "it is not read");
        tokio::task::yield_now().await;
    }
    drop(next);
    child.kill().await;
}

/// Whether a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One that printed more than a pipe holds stood still until its time was over: it had left the line, and nobody
/// woke it.
#[tokio::test]
async fn a_child_without_input_keeps_its_place_in_the_line_of_its_tenant() {
    let mut prints = launch("sh");
    prints.args = vec!["-c".into(), "yes said | head -n 100000".into()];
    let (mut child, _work) = start_as(&prints).await;
    let tenant = Budget::new(1 << 30).share();
    child.count_against(&tenant);
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(tenant.others_first())).collect();
    for one in &mut line {
        assert!(futures_util::poll!(one).is_pending());
    }
    child.stdout.as_ref().unwrap().readable().await.unwrap();
    let mut lines = 0;
    let mut running = Box::pin(child.run_without_input(|line| {
        assert_eq!(line, "said");
        lines += 1;
    }));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let polled = running.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending() && !woken.0.load(Ordering::Relaxed));
    drop(line);
    assert!(woken.0.load(Ordering::Relaxed), "it has left the line");
    let exit = timeout(Duration::from_secs(20), running).await.unwrap();
    assert_eq!((exit.code, lines), (Some(0), 100_000));
}

/// One that printed empty lines without end kept a worker busy.
#[tokio::test]
async fn the_lines_of_a_child_without_input_have_a_pace() {
    let mut prints = launch("sh");
    prints.args = vec!["-c".into(), "yes '' | head -n 12000".into()];
    let (mut child, _work) = start_as(&prints).await;
    let (began, mut lines) = (Instant::now(), 0);
    let exit = child.run_without_input(|_| lines += 1).await;
    assert_eq!((exit.code, lines), (Some(0), 12_000));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
}

/// Each line was cut, in a poll of its own, while the queue of one that did not read was to be written.
#[tokio::test]
async fn the_lines_of_a_stopped_child_are_not_cut() {
    let mut prints = launch("sh");
    prints.args = vec!["-c".into(), "yes '' | head -n 200000".into()];
    let (mut child, _work) = start_as(&prints).await;
    // More than a pipe takes.
    child.out().extend_from_slice(&vec![b'x'; 1 << 20]);
    let mut stopping = Box::pin(child.stop([Duration::from_secs(20); 2]));
    let mut polls = 0;
    let exit = std::future::poll_fn(|cx| {
        polls += 1;
        stopping.as_mut().poll(cx)
    });
    assert_eq!(exit.await.code, Some(0));
    assert!(polls < 20_000, "{polls}");
}

#[tokio::test]
async fn closed_streams_are_told_and_survived() {
    let (mut child, _work) = start().await;
    call(&mut child, "close_stdin", json!({})).await;
    child.out().extend_from_slice(&vec![b'x'; 100_000]);
    // The child answers before it closes stdin, so a part of the queue may still enter the pipe.
    let begun = Instant::now();
    while child.queued() > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "a queue that nobody reads"
        );
        _ = timeout(Duration::from_millis(20), child.next()).await;
    }
    child.kill().await;
    let (mut child, _work) = start().await;
    write(&mut child, "close_stdout", json!({}));
    loop {
        match event(&mut child).await {
            ChildEvent::Line(_) => {}
            other => break assert!(matches!(other, ChildEvent::Closed)),
        }
    }
    child.kill().await;
}

/// It tells whether a child reads, which the length of a queue that is filled all the time does not.
#[tokio::test]
async fn bytes_written_to_a_child_are_counted() {
    let (mut child, _work) = start().await;
    let text = "x".repeat(1 << 20);
    assert_eq!(call(&mut child, "echo", json!({"text": "hi"})).await, "hi");
    let before = child.written();
    // More than a pipe takes at once.
    let echoed = call(&mut child, "echo", json!({"text": text})).await;
    assert_eq!((echoed.len(), child.queued()), (1 << 20, 0));
    let written = child.written() - before;
    assert!((1 << 20..1 << 21).contains(&written), "{written}");
    child.kill().await;
}

#[tokio::test]
async fn what_a_child_does_not_read_waits() {
    let (mut child, _work) = start().await;
    call(&mut child, "stop_reading", json!({})).await;
    child.out().extend_from_slice(&vec![b'x'; 1 << 20]);
    child.try_flush();
    assert!(
        timeout(Duration::from_millis(100), child.next())
            .await
            .is_err()
    );
    assert!(child.queued() > 500_000);
    assert_eq!(child.stop(CLOCKS).await.signal, Some(15));
}

#[tokio::test]
async fn a_hundred_children_leave_no_zombie() {
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..100 {
        let (child, _work) = start_as(&launch("true")).await;
        let pid = i32::try_from(child.pid().unwrap()).unwrap();
        assert_eq!(child.stop([Duration::from_secs(9); 2]).await.code, Some(0));
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Other tests run in this process at the same time.
    assert!(after < before + 60, "{before} {after}");
}

#[tokio::test]
#[ignore = "a measurement"]
#[expect(clippy::too_many_lines, reason = "a measurement, not a test")]
async fn measure() {
    let spec = launch(built("examples/child").to_str().unwrap());
    let count = 200;
    let begun = Instant::now();
    for _ in 0..count {
        let (mut child, _work) = start_as(&spec).await;
        call(&mut child, "echo", json!({"text": "x"})).await;
        drop(child);
    }
    println!("guarded: {:?}", begun.elapsed() / count);
    let begun = Instant::now();
    for _ in 0..count {
        use std::io::{BufRead, Write};
        let mut child = std::process::Command::new(&spec.command)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}"#;
        writeln!(child.stdin.as_mut().unwrap(), "{call}").unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    println!("bare: {:?}", begun.elapsed() / count);
    let (mut child, _work) = start_as(&spec).await;
    call(&mut child, "echo", json!({"text": "x"})).await;
    let pid = child.pid().unwrap();
    println!(
        "{}",
        std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap()
    );
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut name = "";
    for line in maps.lines() {
        if line.contains('-') && !line.contains(" kB") {
            name = line;
        }
        if let Some(size) = line.strip_prefix("Private_Dirty:")
            && !size.trim().starts_with("0 ")
        {
            println!("{} {name}", size.trim());
        }
    }
    let begun = Instant::now();
    for _ in 0..20_000 {
        call(&mut child, "echo", json!({"text": "x"})).await;
    }
    println!("ping-pong: {:?} per call", begun.elapsed() / 20_000);
    child.kill().await;
    let mut spec = launch("sh");
    let line = "x".repeat(120);
    spec.args = vec!["-c".into(), format!("yes {line} | head -n 2000000")];
    let (mut child, _work) = start_as(&spec).await;
    let (begun, mut lines) = (Instant::now(), 0);
    while let ChildEvent::Line(_) = child.next().await {
        lines += 1;
    }
    println!("{lines} lines in {:?}", begun.elapsed());
    child.kill().await;
}
