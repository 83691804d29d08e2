//! Reach of a child in profile `standard` beyond its files: UNIX sockets, shared memory, queues.

use std::{
    io::{BufRead, BufReader, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixDatagram, UnixListener},
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::{
    mount::{MountPropagationFlags, mount_bind, mount_change},
    thread::UnshareFlags,
};
use serde_json::{Value, json};

use crate::{
    backend::sandbox::{Two, reads},
    support::{
        harness::{Gateway, Session, child, until},
        postgres::Postgres,
        redis::{Kind, Redis},
    },
};

/// The separations in which a child has a mount namespace. A gateway of the tests may be root.
const WITH_MOUNTS: [&str; 2] = ["uid", "namespace"];

/// A UNIX socket that accepts connections, in a directory of its own below `/run`.
struct Engine {
    _listener: UnixListener,
    dir: tempfile::TempDir,
}

impl Engine {
    /// `mode` is that of the socket; its directory is open to all.
    fn listen(mode: u32) -> Self {
        let dir = tempfile::tempdir_in("/run").unwrap();
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open(dir.path(), 0o755);
        let listener = UnixListener::bind(dir.path().join("engine.sock")).unwrap();
        open(&dir.path().join("engine.sock"), mode);
        Self {
            _listener: listener,
            dir,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("engine.sock")
    }
}

async fn reach(session: &Session, what: &str, path: impl AsRef<Path>, number: i64) -> String {
    let args = json!({"what": what, "path": path.as_ref(), "number": number});
    session.text("reach", args).await
}

/// The same attempt by a child that nothing confines, to show that it succeeds.
fn unconfined(what: &str, path: impl AsRef<Path>, number: i64) -> String {
    let args = json!({"what": what, "path": path.as_ref(), "number": number});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "reach", "arguments": args}});
    let mut process = Command::new(child())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    writeln!(stdin, "{call}").unwrap();
    let mut line = String::new();
    let stdout = process.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    drop(stdin);
    process.wait().unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap();
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn no_unix_socket_of_others_is_reached() {
    let (private, public) = (Engine::listen(0o600), Engine::listen(0o666));
    let name = format!("lockgate-it-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let name = format!("@{name}");
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temporary.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let datagrams = temporary.path().join("d.sock");
    let _datagrams = UnixDatagram::bind(&datagrams).unwrap();
    std::fs::set_permissions(&datagrams, PermissionsExt::from_mode(0o666)).unwrap();
    let temporary = temporary.path().join("x.sock");
    let _temporary = UnixListener::bind(&temporary).unwrap();
    let targets = [private.path(), public.path(), name.into(), temporary];
    for target in &targets {
        assert_eq!(unconfined("unix", target, 0), "connected");
    }
    assert_eq!(unconfined("unix_datagram", &datagrams, 0), "sent 1");
    let mut reached = Vec::new();
    for separation in ["uid", "namespace", "landlock", "none"] {
        let sets = ["sandbox.shared_uid=true"];
        let two = Two::start(separation, &sets, "args: []").await;
        for target in &targets {
            let text = reach(&two.a, "unix", target, 0).await;
            note(&mut reached, separation, &format!("{target:?}"), &text);
        }
        let text = reach(&two.a, "unix_datagram", &datagrams, 0).await;
        note(&mut reached, separation, "by one of a pair", &text);
        let home = std::fs::read_link(format!("/proc/{}/cwd", two.neighbour())).unwrap();
        let _own = UnixListener::bind(home.join("own.sock")).unwrap();
        let text = reach(&two.a, "unix", home.join("own.sock"), 0).await;
        note(&mut reached, separation, "the neighbour's", &text);
        std::fs::remove_file(home.join("own.sock")).unwrap();
        // Programs talk to their own processes by pairs, and by sockets in their own directory.
        assert_eq!(reach(&two.a, "unix_pair", "", 0).await, "connected");
        let own = reach(&two.a, "unix_own", "", 0).await;
        if (own == "connected") != WITH_MOUNTS.contains(&separation) {
            reached.push(format!("{separation}: its own: {own}"));
        }
    }
    assert!(reached.is_empty(), "{reached:#?}");
}

/// Notes an attempt that was not refused.
fn note(reached: &mut Vec<String>, separation: &str, target: &str, text: &str) {
    if !text.starts_with("refused") {
        reached.push(format!("{separation}: {target}: {text}"));
    }
}

#[tokio::test]
async fn a_named_unix_socket_is_reached_and_no_other() {
    let (named, other) = (Engine::listen(0o666), Engine::listen(0o666));
    for path in [named.path(), named.dir.path().to_owned()] {
        let keys = format!("sandbox: {{sockets: [{}]}}", path.display());
        for separation in WITH_MOUNTS {
            let two = Two::start(separation, &[], &keys).await;
            let text = reach(&two.a, "unix", named.path(), 0).await;
            assert_eq!(text, "connected", "{separation}");
            let text = reach(&two.a, "unix", other.path(), 0).await;
            assert!(text.starts_with("refused"), "{separation} {text}");
        }
    }
    let two = Two::start("landlock", &[], "sandbox: {sockets: true}").await;
    assert_eq!(reach(&two.a, "unix", other.path(), 0).await, "connected");
    let two = Two::start("namespace", &[], "sandbox: {sockets: false}").await;
    let text = reach(&two.a, "unix_own", "", 0).await;
    assert_eq!(text, "refused: Operation not permitted (os error 1)");
    assert_eq!(reach(&two.a, "unix_pair", "", 0).await, "connected");
}

/// The address of a socket has 107 bytes (unix(7)). Of Chromium's, below TMPDIR, some were longer.
#[tokio::test]
async fn a_browser_can_make_its_socket_under_each_separation() {
    let data = tempfile::tempdir().unwrap();
    let data = data.path().join("home/ada.lovelace/.local/state/lockgate");
    for (separation, keys) in [
        ("uid", "args: []"),
        ("namespace", "args: []"),
        ("uid", "sandbox: {profile: open}"),
        ("namespace", "sandbox: {profile: open}"),
        ("landlock", "sandbox: {profile: open}"),
        ("landlock", "sandbox: {sockets: true}"),
        ("none", "sandbox: {sockets: true}"),
    ] {
        std::fs::create_dir_all(&data).unwrap();
        let mut sets = vec![format!("sandbox.separation={separation}")];
        sets.extend((separation == "uid").then(|| "sandbox.uids=700000-765535".to_owned()));
        sets.extend((separation == "none").then(|| "sandbox.shared_uid=true".to_owned()));
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let gateway = Gateway::serve(&data, &sets, keys).await;
        let session = gateway.session().await;
        let text = reach(&session, "unix_browser", "", 0).await;
        assert_eq!(text, "connected", "{separation} {keys}");
    }
}

/// A System V segment of this machine, removed at the end.
struct Segment(i64);

impl Segment {
    fn make() -> Self {
        Self(unconfined("segment_make", "", 0).parse().unwrap())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        unconfined("segment_remove", "", self.0);
    }
}

/// A semaphore, a message queue and a POSIX message queue of this machine, open to all users.
struct Queues {
    key: i64,
    name: String,
}

impl Queues {
    fn make() -> Self {
        let own = std::process::id();
        let queues = Self {
            key: i64::from(own) | 0x4c47_0000,
            name: format!("/lockgate-it-{own}"),
        };
        unconfined("queues_make", &queues.name, queues.key);
        queues
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        unconfined("queues_remove", &self.name, self.key);
    }
}

#[tokio::test]
async fn no_shared_memory_of_others_is_reached() {
    let mut segment = Segment::make();
    assert_eq!(unconfined("segment", "", segment.0), "read 77");
    let queues = Queues::make();
    assert_eq!(
        unconfined("queues", &queues.name, queues.key),
        "semaphore queue posix"
    );
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    std::fs::write(file.path(), "shared").unwrap();
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o666)).unwrap();
    let mut reached = Vec::new();
    for separation in ["uid", "namespace", "landlock", "none"] {
        let sets = ["sandbox.shared_uid=true"];
        let two = Two::start(separation, &sets, "args: []").await;
        let text = reach(&two.a, "segment", "", segment.0).await;
        note(&mut reached, separation, "segment", &text);
        let text = reach(&two.a, "queues", &queues.name, queues.key).await;
        note(&mut reached, separation, "queues", &text);
        let text = reads(&two.a, file.path()).await;
        note(&mut reached, separation, "file", &text);
        let has_own = WITH_MOUNTS.contains(&separation);
        // The neighbour's own segment and file are its own alone, if it can make any.
        let made = reach(&two.b, "segment_make", "", 0).await;
        if made.starts_with("refused") == has_own {
            reached.push(format!("{separation}: its own segment: {made}"));
        }
        if let Ok(id) = made.parse() {
            assert_eq!(reach(&two.b, "segment", "", id).await, "read 77");
            let text = reach(&two.a, "segment", "", id).await;
            // Another IPC namespace may give the same number to the segment of the test.
            note(&mut reached, separation, "the neighbour's segment", &text);
            for what in ["segment", "segment_remove"] {
                let text = reach(&two.a, what, "", id).await;
                note(&mut reached, separation, what, &text);
            }
        }
        let path = format!("/dev/shm/it-{}", std::process::id());
        let args = json!({"path": path, "text": "mine"});
        let written = two.b.text("write_file", args).await;
        if (written == "written") != has_own {
            reached.push(format!("{separation}: its own file: {written}"));
        }
        assert!(reads(&two.a, &path).await.starts_with("refused"));
        assert!(!Path::new(&path).exists());
        let text = reach(&two.a, "segment_remove", "", segment.0).await;
        note(&mut reached, separation, "removal of a segment", &text);
        if unconfined("segment", "", segment.0) != "read 77" {
            segment = Segment::make();
        }
    }
    assert!(reached.is_empty(), "{reached:#?}");
}

#[tokio::test]
async fn multipath_tcp_does_not_pass_the_refused_addresses() {
    for separation in ["uid", "namespace", "landlock"] {
        let two = Two::start(separation, &[], "args: []").await;
        let own = two.gateway.base().strip_prefix("http://").unwrap();
        let own = own.split('/').next().unwrap();
        let text = reach(&two.a, "mptcp", own, 0).await;
        assert!(text.contains("os error 1)"), "{separation} {text}");
    }
}

/// Landlock has a rule for `bind`, and the kernel binds a socket that listens without it.
#[tokio::test]
async fn a_child_accepts_connections_at_its_ports_only() {
    // None that the kernel gives to others meanwhile, and another one each time: a child may end late.
    let mut free =
        (61_000..).filter_map(|port| std::net::TcpListener::bind(("127.0.0.1", port)).ok());
    for separation in ["uid", "namespace", "landlock"] {
        let own = free.next().unwrap().local_addr().unwrap();
        let keys = format!("sandbox: {{tcp: [443, {}]}}", own.port());
        let two = Two::start(separation, &[], &keys).await;
        let text = reach(&two.a, "listen", "", 0).await;
        let port = text.strip_prefix("port ").expect(&text);
        let other = format!("127.0.0.1:{port}").parse().unwrap();
        assert_eq!(
            reach(&two.a, "listen", &own.to_string(), 0).await,
            format!("port {}", own.port())
        );
        let connect = |to| std::net::TcpStream::connect_timeout(to, Duration::from_millis(500));
        connect(&own).unwrap();
        let refused = connect(&other).expect_err(separation);
        assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut, "{separation}");
        connect(&own).unwrap();
    }
}

/// One did: at `::1` beside the gateway, and in its place while it drained, it got the tokens of other tenants'
/// clients.
#[tokio::test]
async fn a_child_cannot_have_a_port_of_the_gateway() {
    for separation in ["uid", "namespace", "landlock"] {
        let two = Two::start(separation, &[], "args: []").await;
        let own = two
            .gateway
            .base()
            .strip_prefix("http://127.0.0.1:")
            .unwrap();
        let port: u16 = own.split('/').next().unwrap().parse().unwrap();
        for address in [
            "127.0.0.1",
            "127.0.0.2",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.3]",
        ] {
            let bind = async |port: u16| {
                let address = json!({"address": format!("{address}:{port}")});
                two.a.text("bind", address).await
            };
            let text = bind(port).await;
            assert!(
                text.contains("os error 1)"),
                "{separation} {address} {text}"
            );
            assert_eq!(bind(0).await, "bound", "{separation} {address}");
        }
    }
}

#[tokio::test]
async fn networks_of_the_operator_are_refused() {
    let listener = std::net::TcpListener::bind("127.9.8.7:0").unwrap();
    let (near, six) = (
        listener.local_addr().unwrap().to_string(),
        std::net::TcpListener::bind("[::1]:0").unwrap(),
    );
    let six = six.local_addr().unwrap().to_string();
    let sets = ["sandbox.refuse=[\"127.9.0.0/16\", \"198.51.100.7\", \"::1/128\"]"];
    let two = Two::start("landlock", &sets, "args: []").await;
    let mapped = near.replace("127.9.8.7", "[::ffff:127.9.8.7]");
    for address in [&near, &mapped, &six, "198.51.100.7:443"] {
        let text = two.a.text("connect", json!({"address": address})).await;
        assert!(text.contains("os error 1)"), "{address} {text}");
    }
    let other = std::net::TcpListener::bind("127.8.8.7:0").unwrap();
    let other = other.local_addr().unwrap().to_string();
    let text = two.a.text("connect", json!({"address": other})).await;
    assert_eq!(text, "connected");
}

#[tokio::test]
async fn stores_and_replicas_elsewhere_are_refused() {
    let (redis, postgres) = (Redis::start(Kind::Redis), Postgres::start());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let cluster = free.local_addr().unwrap();
    drop(free);
    // The parameter is the address of the server, the host a name of it: neither is reached.
    let store = postgres.url().replace("@127.0.0.1:", "@198.51.100.7:");
    let port = store.rsplit_once(':').unwrap().1;
    let port = port.split('/').next().unwrap();
    let sets = [
        format!("redis.url={}", redis.url()),
        format!("sql.url={store}&hostaddr=127.0.0.1"),
        format!("cluster.listen={cluster}"),
    ];
    let sets = sets.each_ref().map(String::as_str);
    let two = Two::start("landlock", &sets, "args: []").await;
    let replicas = ["198.51.100.8", "[2001:db8::7]"].map(|ip| format!("{ip}:{}", cluster.port()));
    let stores = ["198.51.100.7", "127.0.0.1"].map(|ip| format!("{ip}:{port}"));
    for address in replicas.iter().chain(&stores) {
        let text = two.a.text("connect", json!({"address": address})).await;
        assert!(text.contains("os error 1)"), "{address} {text}");
    }
    let text = two
        .a
        .text(
            "connect",
            json!({"address": format!("198.51.100.8:{port}")}),
        )
        .await;
    assert!(!text.contains("os error 1)"), "another machine: {text}");
}

/// The name service of this test and of what it starts: in a mount namespace of its own.
struct Names {
    file: tempfile::NamedTempFile,
}

impl Names {
    fn of(text: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = std::fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(open).unwrap();
        let names = Self { file };
        names.set(text);
        #[expect(
            deprecated,
            reason = "only this thread starts processes; it opened no file"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::FS).unwrap();
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
        mount_bind(names.file.path(), "/etc/hosts").unwrap();
        names
    }

    fn set(&self, text: &str) {
        std::fs::write(self.file.path(), format!("127.0.0.1 localhost\n{text}\n")).unwrap();
    }
}

/// The addresses of the stores were those at the start: children reached a database that had moved.
#[tokio::test]
async fn a_store_that_moves_stays_refused() {
    let redis = Redis::start(Kind::Redis);
    let names = Names::of("127.0.0.1 store.test");
    let port = redis.url().rsplit_once(':').unwrap().1.replace("/0", "");
    let set = format!(
        "redis.url={}",
        redis.url().replace("127.0.0.1", "store.test")
    );
    let two = Two::start(
        "landlock",
        &[&set, "cluster.listen=127.0.0.1:0"],
        "args: []",
    )
    .await;
    let connect = async |ip: &str| {
        let address = json!({"address": format!("{ip}:{port}")});
        two.a.text("connect", address).await
    };
    let is_refused = |text: &str| text.contains("os error 1)");
    assert!(is_refused(&connect("127.0.0.1").await));
    assert!(!is_refused(&connect("198.51.100.7").await));
    names.set("198.51.100.7 store.test");
    until("the new address is refused", || async {
        is_refused(&connect("198.51.100.7").await)
    })
    .await;
    assert!(is_refused(&connect("127.0.0.1").await), "as it was before");
}

/// The table of `lockgate check`: what a child cannot reach under a separation.
fn walls(sets: &[&str]) -> Vec<(String, bool)> {
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .arg("check")
        .args(sets.iter().flat_map(|set| ["--set", set]))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("  "));
    rows.map(|row| {
        let (what, holds) = row.rsplit_once("  ").unwrap();
        (what.trim().to_owned(), holds == "yes")
    })
    .collect()
}

/// The attack of `two.a` on what a row of that table names; true if it fails.
async fn fails(two: &Two, what: &str, outside: &Outside) -> bool {
    let neighbour = two.neighbour();
    let home = std::fs::read_link(format!("/proc/{neighbour}/cwd")).unwrap();
    let process = |file: &str| format!("/proc/{neighbour}/{file}");
    let own = two.gateway.base().strip_prefix("http://").unwrap();
    let text = match what {
        "files of other children and of the gateway" => {
            std::fs::write(home.join("secret"), "x").unwrap();
            reads(&two.a, home.join("secret")).await
        }
        "modes, owners and times of files it may not write" => {
            // It may read all beside its program.
            let program = std::fs::read_link(process("exe")).unwrap();
            let file = program.with_file_name("given");
            std::fs::write(&file, "x").unwrap();
            two.a.text("chmod", json!({"path": file})).await
        }
        "signals to other processes" => two.a.text("kill", json!({"pid": neighbour})).await,
        "memory and environment of other processes" => reads(&two.a, process("environ")).await,
        "command lines of other processes" => reads(&two.a, process("cmdline")).await,
        "UNIX sockets of others" => reach(&two.a, "unix", outside.socket.path(), 0).await,
        "abstract UNIX sockets of others" => reach(&two.a, "unix", &outside.name, 0).await,
        "System V IPC and message queues of others" => {
            let (key, name) = (outside.queues.key, &outside.queues.name);
            reach(&two.a, "queues", name, key).await
        }
        "/dev/shm of others" => reads(&two.a, outside.memory.path()).await,
        "TCP to the gateway, its stores and replicas" => {
            let address = own.split('/').next().unwrap();
            two.a.text("connect", json!({"address": address})).await
        }
        "TCP to metadata addresses" => {
            let args = json!({"address": "169.254.169.254:80"});
            let text = two.a.text("connect", args).await;
            // Without the wall it fails as well, in another way, on a machine without the service.
            return text.contains("os error 1)");
        }
        "memory above limits.memory" => {
            let answer = two.b.call("hold", json!({"bytes": 128 << 20})).await;
            return answer["error"]["code"] == -31001;
        }
        "processes above limits.pids" => {
            let started = two.a.text("fork_bomb", json!({"n": 60})).await;
            return started.parse::<u32>().unwrap() < 60;
        }
        _ => panic!("a row without an attack: {what}"),
    };
    text.starts_with("refused")
}

/// Things of this machine that are open to all users.
struct Outside {
    socket: Engine,
    name: String,
    _listener: UnixListener,
    queues: Queues,
    memory: tempfile::NamedTempFile,
}

impl Outside {
    fn make() -> Self {
        let name = format!("lockgate-walls-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let memory = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        std::fs::set_permissions(memory.path(), PermissionsExt::from_mode(0o666)).unwrap();
        Self {
            socket: Engine::listen(0o666),
            name: format!("@{name}"),
            _listener: UnixListener::bind_addr(&address).unwrap(),
            queues: Queues::make(),
            memory,
        }
    }
}

#[tokio::test]
async fn every_row_of_check_is_what_a_child_can_do() {
    let outside = Outside::make();
    let mut wrong = Vec::new();
    for separation in ["uid", "namespace", "landlock", "none"] {
        let keys = "limits: {pids: 40, memory: 64MiB}, sandbox: {required: false}";
        let two = Two::start(separation, &["sandbox.shared_uid=true"], keys).await;
        let named = format!("sandbox.separation={separation}");
        let mut sets = vec![named.as_str()];
        sets.extend((separation == "uid").then_some("sandbox.uids=700000-765535"));
        let rows = walls(&sets);
        assert_eq!(rows.len(), 13, "{rows:?}");
        for (what, holds) in rows {
            if fails(&two, &what, &outside).await != holds {
                wrong.push(format!("{separation}: {what}: check says {holds}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
