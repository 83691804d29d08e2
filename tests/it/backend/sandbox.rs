//! Confinement of children, under each separation and each profile.

use std::{
    collections::BTreeSet,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    database::persistence::{Ground, Replica, mark, server},
    support::{
        harness::{
            Gateway, NEWEST, Session, child, client, marked, opening, package, until, within,
        },
        served::Served,
    },
};

/// The separations of children that work on this machine.
const SEPARATIONS: [&str; 3] = ["uid", "namespace", "landlock"];

/// A gateway with two tenants, a session of each, and a master key in its data directory.
pub(super) struct Two {
    pub(super) gateway: Gateway,
    pub(super) a: Session,
    pub(super) b: Session,
    data: TempDir,
}

impl Two {
    pub(super) async fn start(separation: &str, sets: &[&str], keys: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let separation = format!("sandbox.separation={separation}");
        let mut all = vec![separation.as_str()];
        if separation.ends_with("uid") {
            all.push("sandbox.uids=700000-765535");
        }
        all.extend(sets);
        let gateway = Gateway::serve(data.path(), &all, keys).await;
        let origin = gateway.url.split("/t/").next().unwrap();
        // With stores elsewhere it refuses sessions until it has them.
        until("it is ready", || async {
            let answer = client().get(format!("{origin}/readyz")).send().await;
            answer.is_ok_and(|answer| answer.status() == StatusCode::OK)
        })
        .await;
        let mut b = gateway.stranger();
        b.url = gateway.url.replace("/t/a/", "/t/b/");
        b.initialize(NEWEST).await;
        let a = gateway.session().await;
        Self {
            gateway,
            a,
            b,
            data,
        }
    }

    /// The pid of the child of `b`, in the pid namespace of the tests.
    pub(super) fn neighbour(&self) -> u32 {
        let found = self.processes("b");
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }

    /// The pids of this tenant's child and of its descendants, found by their environment.
    fn processes(&self, tenant: &str) -> Vec<u32> {
        let user = self.gateway.marker.replace("IT_MARKER", "CHILD_USER");
        marked(&format!("{user}-{tenant}"))
    }

    async fn no_children(&self) {
        until("the end of all children", || async {
            self.gateway.descendants().is_empty()
        })
        .await;
    }
}

/// The file of a child belonged to the next child with its uid, of another tenant.
#[tokio::test]
async fn a_uid_passes_on_without_the_files_of_its_last_child() {
    let data = tempfile::tempdir().unwrap();
    let one = ["sandbox.separation=uid", "sandbox.uids=700001-700001"];
    let gateway = Gateway::serve(data.path(), &one, "sandbox: {profile: open}").await;
    let a = gateway.session().await;
    // A child has a /dev/shm of its own.
    let places = ["/tmp", "/var/tmp"];
    let files = places.map(|place| PathBuf::from(format!("{place}/{}", gateway.marker)));
    for file in &files {
        let text = a
            .text("write_file", json!({"path": file, "text": "of a"}))
            .await;
        assert!(!text.starts_with("refused"), "{text}");
    }
    assert_eq!(a.delete().await.status(), 204);
    until("the end of all children", || async {
        gateway.descendants().is_empty()
    })
    .await;
    assert!(files.iter().all(|file| file.exists()));
    let mut b = gateway.stranger();
    b.url = gateway.url.replace("/t/a/", "/t/b/");
    // The only uid is free once the gateway has seen the end of the child.
    until("another child with the uid", || async {
        let answer = b.post(&opening(NEWEST)).await;
        answer.headers().contains_key("mcp-session-id")
    })
    .await;
    let left: Vec<_> = files.iter().filter(|file| file.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// They were beside the database, whose file system a child could fill, or below /tmp, where others leave files.
#[tokio::test]
async fn files_of_children_are_in_the_work_dir() {
    for separation in SEPARATIONS {
        // Its path is short, and users of children reach it.
        let place = tempfile::tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(place.path(), Permissions::from_mode(0o711)).unwrap();
        let work = place.path().join("w");
        let set = format!("work_dir={}", work.display());
        let keys = "prepare: [sh, -c, 'echo made > file']";
        let mut two = Two::start(separation, &[&set], keys).await;
        let env: Value = serde_json::from_str(&two.a.text("env", json!({})).await).unwrap();
        let is_there = |name: &str| Path::new(env[name].as_str().unwrap()).starts_with(&work);
        let has_uid = separation == "uid";
        assert!(is_there("TMPDIR"), "{separation} {env}");
        assert_eq!(is_there("LOCKGATE_PREPARED"), has_uid, "{separation} {env}");
        let mode = std::fs::metadata(&work).unwrap().permissions().mode();
        let wanted = if has_uid { 0o711 } else { 0o700 };
        assert_eq!(mode & 0o777, wanted, "{separation}");
        two.a.delete().await;
        two.b.delete().await;
        two.gateway.signal(rustix::process::Signal::TERM);
        let end = two.gateway.process.wait();
        within("its end", end).await.unwrap();
        assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0, "{separation}");
    }
}

/// Programs look for code and settings in all directories above their own, and found another tenant's.
#[tokio::test]
async fn a_shared_directory_above_the_files_of_children_is_warned_of() {
    let place = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o711)).unwrap();
    let sandbox = json!({"separation": "uid", "uids": "700000-765535"});
    let config = json!({"sandbox": sandbox, "work_dir": place.path().join("w")});
    for (profile, is_warned_of) in [("open", true), ("standard", false)] {
        let server = json!({"command": "/bin/true", "sandbox": {"profile": profile}});
        let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": server}}});
        let mut gateway = Served::start(config.clone(), tenants).await;
        let logs = gateway.end().await;
        let mut lines = logs.iter().filter_map(|line| line["message"].as_str());
        let told = lines.any(|line| line.starts_with("work_dir: /tmp lies above the files"));
        assert_eq!(told, is_warned_of, "{profile} {logs:?}");
    }
}

/// The other server could put a link in its place, and the next start followed it.
#[tokio::test]
async fn a_path_that_another_server_may_replace_prevents_the_start() {
    let root = tempfile::tempdir().unwrap();
    let shared = root.path().join("shared");
    let below = shared.join("sub");
    std::fs::create_dir_all(&below).unwrap();
    let server = |sandbox: Value| json!({"command": child(), "sandbox": sandbox});
    let config = json!({"sandbox": {"separation": "landlock"}});
    let tenants = json!({
        "a": {"auth": {"mode": "none"}, "servers": {"w": server(json!({"write": [shared]}))}},
        "b": {"auth": {"mode": "none"}, "servers": {
            "same": server(json!({"read": [shared]})),
            "read": server(json!({"read": [below]})),
            "write": server(json!({"write": [below]})),
        }},
    });
    let mut gateway = Served::start(config, tenants).await;
    let mut same = gateway.stranger("b", "same");
    same.initialize(NEWEST).await;
    for name in ["read", "write"] {
        let session = gateway.stranger("b", name);
        let answer = session.post(&opening(NEWEST)).await;
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["error"]["code"], -31001, "{name} {answer}");
    }
    let logs = gateway.end().await;
    let told = logs
        .iter()
        .filter(|line| line.to_string().contains("which could put a link"));
    assert!(told.count() >= 2, "{logs:?}");
}

/// Starts without a uid failed, and counted against the server.
#[tokio::test]
async fn a_tenant_with_all_uids_opens_no_circuit() {
    let data = tempfile::tempdir().unwrap();
    let two = ["sandbox.separation=uid", "sandbox.uids=700011-700012"];
    let gateway = Gateway::serve(data.path(), &two, "args: []").await;
    let kept = [gateway.session().await, gateway.session().await];
    for _ in 0..8 {
        // An idle child is given up for it.
        let mut b = gateway.stranger();
        b.url = gateway.url.replace("/t/a/", "/t/b/");
        b.initialize(NEWEST).await;
        assert_eq!(b.text("echo", json!({"text": "x"})).await, "x");
        assert_eq!(b.delete().await.status(), 204);
    }
    for session in &kept {
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    }
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let rest = stat.rsplit_once(')').unwrap().1;
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn is_refused(session: &Session, tool: &str, args: Value) {
    let text = session.text(tool, args.clone()).await;
    assert!(text.starts_with("refused"), "{tool} {args}: {text}");
}

pub(super) async fn reads(session: &Session, path: impl AsRef<Path>) -> String {
    let path = path.as_ref().to_str().unwrap();
    session.text("read_path", json!({"path": path})).await
}

/// The attacks of `a` on `b`, on the guards and on the gateway.
async fn nothing_is_reached(two: &Two, separation: &str) {
    let neighbour = two.neighbour();
    let mut targets = vec![neighbour];
    let gateway = two.gateway.process.id().unwrap();
    while *targets.last().unwrap() != gateway {
        targets.push(parent(*targets.last().unwrap()));
    }
    assert!(targets.len() >= 3, "child, guard, gateway: {targets:?}");
    let mut files = vec![
        "environ",
        "mem",
        "maps",
        "cwd/x",
        "root/etc/hostname",
        "fd/0",
    ];
    if separation == "namespace" {
        // Any process may read these files, so the child must not see the pid at all.
        files.extend(["cmdline", "status"]);
    }
    for pid in targets {
        for file in &files {
            let text = reads(&two.a, format!("/proc/{pid}/{file}")).await;
            assert!(
                text.starts_with("refused"),
                "{separation} {pid} {file}: {text}"
            );
        }
        for directory in ["cwd", "root"] {
            let path = format!("/proc/{pid}/{directory}");
            is_refused(&two.a, "list_dir", json!({"path": path})).await;
        }
        is_refused(&two.a, "kill", json!({"pid": pid})).await;
        is_refused(&two.a, "attach", json!({"pid": pid})).await;
    }
    let home = std::fs::read_link(format!("/proc/{neighbour}/cwd")).unwrap();
    let secret = home.join("secret").display().to_string();
    let write = json!({"path": secret, "text": "x"});
    assert_eq!(two.b.text("write_file", write.clone()).await, "written");
    assert_eq!(reads(&two.b, &secret).await, "read x");
    is_refused(&two.a, "write_file", write).await;
    assert!(reads(&two.a, &secret).await.starts_with("refused"));
    is_refused(&two.a, "list_dir", json!({"path": home})).await;
    let key = two.data.path().join("master.key");
    assert!(key.exists(), "what is not there cannot be read");
    let text = reads(&two.a, &key).await;
    assert!(text.starts_with("refused"), "{separation} {text}");
    let args = json!({"path": two.data.path()});
    let listed = two.a.text("list_dir", args).await;
    assert!(!listed.contains("master.key"), "{listed}");
    // The children still work.
    assert_eq!(two.a.text("echo", json!({"text": "here"})).await, "here");
    assert_eq!(two.b.text("echo", json!({"text": "here"})).await, "here");
}

#[tokio::test]
async fn a_child_reaches_nothing_of_another_in_profile_standard() {
    for separation in SEPARATIONS {
        let two = Two::start(separation, &[], "args: []").await;
        nothing_is_reached(&two, separation).await;
    }
}

#[tokio::test]
async fn a_child_reaches_nothing_of_another_in_profile_open() {
    for separation in SEPARATIONS {
        let two = Two::start(separation, &[], "sandbox: {profile: open}").await;
        nothing_is_reached(&two, separation).await;
    }
}

/// A symbolic link in `/tmp`.
fn link_to(target: &Path) -> tempfile::NamedTempFile<()> {
    let make = |path: &Path| std::os::unix::fs::symlink(target, path);
    tempfile::Builder::new().make_in("/tmp", make).unwrap()
}

/// A start reads no directory that others fill: one for each child, or for all users of the machine.
#[tokio::test]
async fn links_beside_what_a_child_was_given_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x"), "here").unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let (of_others, given) = (link_to("/etc/hostname".as_ref()), link_to(dir.path()));
    let keys = format!("sandbox: {{read: [{}]}}", given.path().display());
    for separation in ["uid", "namespace"] {
        let two = Two::start(separation, &[], &keys).await;
        let home = std::fs::read_link(format!("/proc/{}/cwd", two.neighbour())).unwrap();
        let of_children = home.with_file_name("link");
        std::os::unix::fs::symlink("/etc/hostname", &of_children).unwrap();
        let session = two.gateway.session().await;
        let named = reads(&session, "/etc/hostname").await;
        assert!(named.starts_with("read"), "{separation} {named}");
        let text = reads(&session, given.path().join("x")).await;
        assert_eq!(text, "read here", "{separation}");
        for path in [of_others.path(), &of_children] {
            let text = reads(&session, path).await;
            assert!(text.starts_with("refused"), "{separation} {path:?} {text}");
        }
    }
}

/// A gateway with one server in `profile` whose children may read `dir`. Files of `dir` are the
/// gateway's configuration, its master key, and the `MARK` of the children.
async fn reading(ground: &Ground, dir: &Path, profile: &str) -> Replica {
    let at = |name: &str| dir.join(name).display().to_string();
    std::fs::write(at("lockgate.toml"), "drain.timeout = \"3s\"\n").unwrap();
    std::fs::write(at("key"), format!("{}=\n", "A".repeat(43))).unwrap();
    let file = marked_by(ground, dir, "one", profile);
    let env = [
        ("LOCKGATE_CONFIG", at("lockgate.toml")),
        ("LOCKGATE_MASTER_KEY_FILE", at("key")),
    ];
    let env = env.each_ref().map(|(name, path)| (*name, path.as_str()));
    ground
        .serve_with(&env, &["--apply", file.to_str().unwrap()])
        .await
}

fn marked_by(ground: &Ground, dir: &Path, name: &str, profile: &str) -> PathBuf {
    std::fs::write(dir.join(name), name).unwrap();
    let mark = format!("${{file:{}}}", dir.join(name).display());
    let mut server = server(&mark);
    let read = [dir, ground.data().parent().unwrap()].map(Path::to_owned);
    server["sandbox"] = json!({"profile": profile, "required": false, "read": read});
    ground.manifest(&json!({"a": {"auth": {"mode": "none"}, "servers": {"x": server}}}))
}

#[tokio::test]
async fn a_child_reads_none_of_the_files_that_the_gateway_was_given() {
    for profile in ["standard", "open"] {
        let (ground, dir) = (Ground::sqlite(), tempfile::tempdir().unwrap());
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("two"), "two").unwrap();
        std::fs::write(at("free"), "free").unwrap();
        let gateway = reading(&ground, dir.path(), profile).await;
        let session = gateway.session("a", "x").await;
        assert_eq!(mark(&session).await, "one");
        assert_eq!(reads(&session, at("free")).await, "read free");
        assert_eq!(reads(&session, at("two")).await, "read two");
        let manifest = ground.data().with_file_name("manifest.json");
        for path in [at("lockgate.toml"), at("key"), at("one"), manifest.clone()] {
            let text = reads(&session, &path).await;
            assert!(text.starts_with("refused"), "{profile} {path:?} {text}");
        }
        session.delete().await;
        // Newly named files are hidden, and those that were named before stay hidden.
        marked_by(&ground, dir.path(), "two", profile);
        until("the change", || async {
            let session = gateway.session("a", "x").await;
            let is_new = mark(&session).await == "two";
            for path in [at("one"), at("two"), manifest.clone()]
                .iter()
                .filter(|_| is_new)
            {
                let text = reads(&session, path).await;
                assert!(text.starts_with("refused"), "{profile} {path:?} {text}");
            }
            session.delete().await;
            is_new
        })
        .await;
        gateway.stop().await;
    }
}

#[tokio::test]
async fn what_a_child_is_and_where_it_may_write() {
    let given = tempfile::tempdir().unwrap();
    std::fs::write(given.path().join("file"), "given").unwrap();
    let taken = tempfile::tempdir().unwrap();
    for separation in SEPARATIONS {
        let open = |dir: &TempDir| {
            let all = PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(dir.path(), all).unwrap();
            dir.path().display().to_string()
        };
        let keys = format!(
            "sandbox: {{read: [{}], write: [{}]}}",
            open(&given),
            open(&taken)
        );
        let two = Two::start(separation, &[], &keys).await;
        let own: Value = serde_json::from_str(&two.a.text("cwd", json!({})).await).unwrap();
        assert_eq!(own["mode"], "700");
        assert_eq!(own["umask"], "0077");
        assert_eq!(own["no_new_privs"], "1");
        assert_eq!(own["capabilities"], "0000000000000000", "{separation}");
        assert_eq!(own["seccomp"], "2");
        assert_eq!(own["session"], own["pid"]);
        let uid = own["uid"].as_str().unwrap();
        assert_eq!(uid.starts_with('7'), separation == "uid", "{uid}");
        for path in [
            "/tmp/it-x",
            "/var/tmp/it-x",
            "/etc/it-x",
            "/usr/it-x",
            "/proc/sys/kernel/hostname",
            "/dev/it-x",
            "/it-x",
        ] {
            is_refused(&two.a, "write_file", json!({"path": path, "text": ""})).await;
        }
        let given = given.path().join("file");
        assert_eq!(reads(&two.a, &given).await, "read given");
        is_refused(&two.a, "write_file", json!({"path": given, "text": ""})).await;
        for path in [
            "here".into(),
            taken.path().join(separation),
            "/dev/null".into(),
        ] {
            let args = json!({"path": path, "text": "mine"});
            assert_eq!(two.a.text("write_file", args).await, "written", "{path:?}");
        }
        let manifest = package().join("Cargo.toml").display().to_string();
        assert!(reads(&two.a, &manifest).await.starts_with("refused"));
        assert!(reads(&two.a, "/etc/passwd").await.starts_with("read root"));
        // What every program reads is open; settings of some service may hold its passwords.
        is_refused(&two.a, "list_dir", json!({"path": "/etc"})).await;
        let others = ["/etc/fstab", "/etc/shells", "/etc/crontab"].map(Path::new);
        assert!(others.iter().any(|path| path.exists()));
        for path in others.into_iter().filter(|path| path.exists()) {
            let text = reads(&two.a, path).await;
            assert!(text.starts_with("refused"), "{separation} {path:?}: {text}");
        }
    }
}

/// A child that runs as the gateway's user owns its files: to own a file is enough to change its mode.
#[tokio::test]
async fn modes_of_files_that_a_child_may_not_write_stay() {
    let modes = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (separation, more) in [
        ("uid", ""),
        ("namespace", ""),
        ("namespace", ", sockets: true"),
    ] {
        let (given, taken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let shown = |dir: &TempDir| {
            std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
            dir.path().display().to_string()
        };
        let file = given.path().join("file");
        std::fs::write(&file, "given").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let keys = format!(
            "sandbox: {{read: [{}], write: [{}]{more}}}",
            shown(&given),
            shown(&taken)
        );
        let two = Two::start(separation, &[], &keys).await;
        let data = two.data.path();
        let before = modes(data);
        for path in [&file, given.path(), data] {
            is_refused(&two.a, "chmod", json!({"path": path})).await;
        }
        assert_eq!(
            (modes(&file), modes(data)),
            (0o644, before),
            "{separation}{more}"
        );
        assert_eq!(
            two.a
                .text("write_file", json!({"path": "own", "text": ""}))
                .await,
            "written"
        );
        assert_eq!(two.a.text("chmod", json!({"path": "own"})).await, "done");
        assert_eq!(
            two.a
                .text("write_file", json!({"path": "/dev/null", "text": ""}))
                .await,
            "written"
        );
        if separation == "namespace" {
            let path = taken.path().join("file");
            assert_eq!(
                two.a
                    .text("write_file", json!({"path": path, "text": ""}))
                    .await,
                "written"
            );
            assert_eq!(two.a.text("chmod", json!({"path": path})).await, "done");
        }
    }
}

#[tokio::test]
async fn system_calls_that_lead_out_are_denied() {
    let two = Two::start("landlock", &[], "args: []").await;
    let own = std::process::id();
    for what in [
        "unshare",
        "clone",
        "mount",
        "bpf",
        "keyctl",
        "io_uring",
        "perf",
        "process_vm_readv",
        "personality",
        "prlimit",
        "packet",
        "vsock",
        "netfilter",
    ] {
        let text = two
            .a
            .text("try_call", json!({"what": what, "pid": own}))
            .await;
        assert_eq!(
            text, "refused: Operation not permitted (os error 1)",
            "{what}"
        );
    }
    let text = two.a.text("try_call", json!({"what": "clone3"})).await;
    assert_eq!(text, "refused: Function not implemented (os error 38)");
    for what in ["tcp", "udp", "route"] {
        let text = two.a.text("try_call", json!({"what": what})).await;
        assert_eq!(text, "done", "{what}");
    }
    let answer = two.b.call("try_call", json!({"what": "x32"})).await;
    assert_eq!(answer["error"]["code"], -31001, "{answer}");
    assert_eq!(two.a.text("echo", json!({"text": "here"})).await, "here");
}

/// A limit of processor time ended the gateway, and the keys of a uid were those of its next child.
#[tokio::test]
async fn profile_open_reaches_no_limits_and_no_keys_of_others() {
    for separation in ["uid", "landlock"] {
        let two = Two::start(separation, &[], "sandbox: {profile: open}").await;
        let others = [two.gateway.process.id().unwrap(), two.neighbour()];
        for (what, pid) in [
            ("keyctl", 0),
            ("prlimit", others[0]),
            ("prlimit", others[1]),
        ] {
            let args = json!({"what": what, "pid": pid});
            let text = two.a.text("try_call", args).await;
            let denied = "refused: Operation not permitted (os error 1)";
            assert_eq!(text, denied, "{separation} {what} {pid}");
        }
        let args = json!({"what": "prlimit", "pid": 0});
        assert_eq!(two.a.text("try_call", args).await, "done");
    }
}

#[tokio::test]
async fn tcp_may_be_off_or_go_to_some_ports() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let two = Two::start("landlock", &[], "sandbox: {tcp: false}").await;
    is_refused(&two.a, "connect", json!({"address": address})).await;
    is_refused(&two.a, "bind", json!({"address": "127.0.0.1:0"})).await;
    let udp = two.a.text("try_call", json!({"what": "udp"})).await;
    assert_eq!(udp, "done");
    drop(two);
    let keys = format!(
        "sandbox: {{tcp: [{}]}}",
        listener.local_addr().unwrap().port()
    );
    let two = Two::start("landlock", &[], &keys).await;
    let connected = two.a.text("connect", json!({"address": address})).await;
    assert_eq!(connected, "connected");
    let gateway = two.gateway.base().strip_prefix("http://").unwrap();
    is_refused(
        &two.a,
        "connect",
        json!({"address": gateway.split('/').next()}),
    )
    .await;
    is_refused(&two.a, "try_call", json!({"what": "mptcp"})).await;
}

#[tokio::test]
async fn no_way_to_the_gateway_or_to_a_clouds_credentials() {
    let beside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let beside = beside.local_addr().unwrap().to_string();
    for separation in SEPARATIONS {
        let two = Two::start(separation, &[], "args: []").await;
        let own = two.gateway.base().strip_prefix("http://").unwrap();
        let own = own.split('/').next().unwrap();
        let port = own.rsplit_once(':').unwrap().1;
        for address in [
            own.to_owned(),
            format!("127.1.2.3:{port}"),
            format!("0.0.0.0:{port}"),
            format!("[::ffff:127.0.0.1]:{port}"),
            format!("[::1]:{port}"),
            "169.254.169.254:80".to_owned(),
            "[::ffff:169.254.169.254]:80".to_owned(),
            "[fd00:ec2::254]:80".to_owned(),
        ] {
            let text = two.a.text("connect", json!({"address": address})).await;
            assert!(text.contains("os error 1)"), "{address} {text}");
        }
        let text = two.a.text("connect", json!({"address": beside})).await;
        assert_eq!(text, "connected");
    }
    let two = Two::start("landlock", &[], "sandbox: {profile: open}").await;
    let own = two.gateway.base().strip_prefix("http://").unwrap();
    let args = json!({"address": own.split('/').next()});
    assert_eq!(two.a.text("connect", args).await, "connected");
}

#[tokio::test]
async fn a_fork_bomb_stops_at_its_limit() {
    let two = Two::start("uid", &[], "limits: {pids: 24}").await;
    let started = two.a.text("fork_bomb", json!({"n": 200})).await;
    let started: u32 = started.parse().unwrap();
    assert!((8..24).contains(&started), "{started}");
    assert_eq!(two.b.text("fork_bomb", json!({"n": 5})).await, "5");
    two.a.delete().await;
    two.b.delete().await;
    two.no_children().await;
}

#[tokio::test]
async fn hogs_of_processors_and_disks_leave_the_neighbour_alone() {
    let two = Two::start("landlock", &[], "limits: {file_size: 1MiB}").await;
    let filled = two
        .a
        .text("fill", json!({"path": "f", "bytes": 8 << 20}))
        .await;
    assert_eq!(filled, "filled 1048576");
    let mut hog = std::pin::pin!(two.a.call("hog", json!({"ms": 1500, "bytes": 64 << 20})));
    let busy = tokio::time::timeout(Duration::from_millis(300), &mut hog).await;
    assert!(busy.is_err());
    for _ in 0..20 {
        assert_eq!(two.b.text("echo", json!({"text": "x"})).await, "x");
    }
    let held = hog.await;
    assert_eq!(held["result"]["content"][0]["text"], "held 67108864");
}

#[tokio::test]
async fn trees_end_with_their_session_under_each_separation() {
    for separation in SEPARATIONS {
        let keys = "clocks: {stop: [50ms, 50ms]}";
        let mut two = Two::start(separation, &[], keys).await;
        for session in [&two.a, &two.b] {
            session.call("spawn_tree", json!({})).await;
        }
        assert!(two.processes("a").len() >= 8, "{separation}");
        assert!(two.processes("b").len() >= 8, "{separation}");
        assert_eq!(two.a.text("ignore_term", json!({})).await, "ignored");
        two.a.delete().await;
        until("the end of one tree", || async {
            two.processes("a").is_empty()
        })
        .await;
        assert_eq!(two.b.text("echo", json!({"text": "x"})).await, "x");
        two.gateway.process.kill().await.unwrap();
        two.no_children().await;
    }
}

#[tokio::test]
async fn a_server_is_asked_to_end_before_it_is_made_to() {
    for separation in SEPARATIONS {
        let two = Two::start(separation, &[], "clocks: {stop: [50ms, 20s]}").await;
        // This child survives the end of stdin and ends on SIGTERM, long before SIGKILL.
        two.a.text("close_stdin", json!({})).await;
        two.a.delete().await;
        two.b.delete().await;
        two.no_children().await;
        let work = two.data.path().join("work");
        until("the end of private directories", || async {
            std::fs::read_dir(&work).map_or(0, Iterator::count) == 0
        })
        .await;
    }
}

/// The cgroup v2 of this process, if it is mounted.
fn cgroups() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount.split(' ').nth(4)?).join(own))
}

/// The processes of a cgroup.
fn members(group: &Path) -> BTreeSet<u32> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// The cgroup of this process in `parent`. Its name says nothing of the child: others may read it.
fn group_of(parent: &Path, pid: u32) -> PathBuf {
    let mut groups = std::fs::read_dir(parent).unwrap().flatten();
    let group = groups.find(|group| members(&group.path()).contains(&pid));
    let group = group.unwrap();
    assert_eq!(group.file_name().len(), 32, "{group:?}");
    group.path()
}

#[tokio::test]
async fn a_child_lives_in_a_cgroup_of_its_own_and_dies_with_it() {
    // Without cgroups the guard ends the tree:
    // `trees_end_with_their_session_under_each_separation` tests that.
    let Some(base) = cgroups().filter(|base| base.join("cgroup.procs").exists()) else {
        return;
    };
    let two = Two::start("landlock", &[], "args: []").await;
    two.b.call("spawn_tree", json!({})).await;
    let group = format!("lockgate-{}", two.gateway.process.id().unwrap());
    let group = base.join(group).join("filtered");
    let [a, b] = ["a", "b"].map(|tenant| group_of(&group, two.processes(tenant)[0]));
    let inside = members(&b);
    assert_eq!(inside, two.processes("b").into_iter().collect());
    assert!(!inside.contains(&parent(two.processes("a")[0])), "a guard");
    // `cgroup.kill` ends the whole tree of this child, and not its neighbour.
    std::fs::write(b.join("cgroup.kill"), "1").unwrap();
    until("the end of a group", || async { !b.exists() }).await;
    assert!(two.processes("b").is_empty());
    assert_eq!(two.a.text("echo", json!({"text": "x"})).await, "x");
    two.a.delete().await;
    until("the end of all groups", || async { !a.exists() }).await;
}

/// One child without a limit of its own took the last process: no other server started.
#[tokio::test]
async fn all_children_leave_processes_to_the_gateway() {
    let Some(base) = cgroups().filter(|base| {
        let controllers = std::fs::read_to_string(base.join("cgroup.controllers"));
        controllers.is_ok_and(|names| names.contains("pids"))
    }) else {
        return;
    };
    let two = Two::start("landlock", &[], "args: []").await;
    let group = format!("lockgate-{}", two.gateway.process.id().unwrap());
    let number = |file: PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().parse().ok()
    };
    let around = base.ancestors().map(|group| group.join("pids.max"));
    let kernel = ["pid_max", "threads-max"].map(|name| Path::new("/proc/sys/kernel").join(name));
    let total = around.chain(kernel).filter_map(number).min().unwrap();
    let most = number(base.join(group).join("pids.max")).unwrap();
    let possible = total / 2..=total - total / 8;
    assert!(possible.contains(&most), "{most} of {total}");
}

/// Nothing told operators that one child could keep the gateway from accepting connections.
#[tokio::test]
async fn a_start_tells_what_tenants_share_without_users_of_their_own() {
    let tenant = json!({"auth": {"mode": "none"}, "servers": {"x": {"command": "cat"}}});
    let (one, two) = (json!({"a": tenant}), json!({"a": tenant, "b": tenant}));
    let uids = json!({"sandbox": {"separation": "uid", "uids": "700000-765535"}});
    let landlock = json!({"sandbox": {"separation": "landlock"}});
    for (config, tenants, is_told) in [
        (&landlock, &two, true),
        (&landlock, &one, false),
        (&uids, &two, false),
    ] {
        let logs = Served::start(config.clone(), tenants.clone());
        let logs = logs.await.end().await;
        let told = logs.iter().filter(|line| {
            let text = line["message"].as_str().unwrap_or_default();
            line["level"] == "WARN" && text.contains("counts per user")
        });
        assert_eq!(told.count(), usize::from(is_told), "{logs:?}");
    }
}

/// A child with the gateway's user owned the files of its cgroup, and in profile `open` it could write them.
#[tokio::test]
async fn a_child_does_not_change_its_cgroup() {
    let Some(base) = cgroups().filter(|base| base.join("cgroup.procs").exists()) else {
        return;
    };
    for separation in SEPARATIONS {
        let two = Two::start(separation, &[], "sandbox: {profile: open}").await;
        let group = format!("lockgate-{}", two.gateway.process.id().unwrap());
        let own = group_of(&base.join(group), two.processes("a")[0]);
        for path in [own.join("cgroup.procs"), base.join("cgroup.procs")] {
            let read = reads(&two.a, &path).await;
            assert!(read.starts_with("read"), "{separation} {read}");
            let write = json!({"path": path, "text": ""});
            is_refused(&two.a, "write_file", write).await;
        }
        if separation == "namespace" {
            let most = reads(&two.a, "/proc/sys/user/max_cgroup_namespaces").await;
            assert_eq!(most.trim(), "read 0");
        }
        let write = json!({"path": "own", "text": ""});
        assert_eq!(two.a.text("write_file", write).await, "written");
    }
}

#[tokio::test]
async fn an_unenforceable_wall_prevents_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("m.yaml");
    let run = |keys: &str, sets: &[&str]| {
        let text = format!(
            "tenants: {{a: {{auth: {{mode: none}}, servers: {{x: {{command: {}, {keys}}}}}}}, b: {{auth: {{mode: none}}}}}}",
            child()
        );
        std::fs::write(&manifest, text).unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_lockgate"))
            .args(["check", "--apply"])
            .arg(&manifest)
            .args(sets.iter().flat_map(|set| ["--set", set]))
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, text) = run("args: []", &["sandbox.separation=none"]);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("tenants: more than one tenant, and nothing here separates"),
        "{text}"
    );
    let shared = ["sandbox.separation=none", "sandbox.shared_uid=true"];
    let (code, text) = run("args: []", &shared);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("warning: sandbox.shared_uid"), "{text}");
    let (code, text) = run("args: []", &["sandbox.separation=uid"]);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("sandbox.separation: needs sandbox.uids"),
        "{text}"
    );
    let bounds_memory = cgroups().is_some_and(|base| {
        let controllers = std::fs::read_to_string(base.join("cgroup.controllers"));
        controllers.is_ok_and(|names| names.contains("memory"))
    });
    let (code, text) = run("limits: {memory: 1GiB}", &[]);
    assert_eq!(code, Some(if bounds_memory { 0 } else { 2 }), "{text}");
    assert!(
        bounds_memory || text.contains("a.servers.x.limits.memory: no cgroup"),
        "{text}"
    );
    let (code, text) = run("limits: {memory: 1GiB}, sandbox: {required: false}", &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        bounds_memory || text.contains("a/x: limits.memory is not enforced"),
        "{text}"
    );
    let (code, text) = run("args: []", &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("separation of children: namespace"), "{text}");
}
