//! Stalled log outputs and full disks: requests continue.

use std::{process::Stdio, time::Duration};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdout, Command},
    time::Instant,
};

use crate::{
    auth::external_tokens::bearer,
    database::persistence::server,
    support::{
        gauges::metric_of,
        harness::{NEWEST, Session, child, client, json_of, run_args, until, within},
    },
};

/// A gateway with a given log output.
struct Logging {
    url: String,
    ops: String,
    _process: Child,
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Logging {
    /// `lockgate run`, which logs on stderr.
    async fn to(stderr: impl Into<Stdio>) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ops = port.local_addr().unwrap().to_string();
        drop(port);
        let listen = format!("ops.listen={ops}");
        let mut process = Command::new(env!("CARGO_BIN_EXE_lockgate"))
            .args(run_args(&[&listen], &[]))
            .args(["--", &child()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = within("the URL", stdout.next_line()).await.unwrap();
        Self {
            url: url.expect("it starts"),
            ops: format!("http://{ops}"),
            _process: process,
            _stdout: stdout,
        }
    }

    /// The number of log lines that were lost so far.
    async fn lost(&self) -> i64 {
        metric_of(&self.ops, "lockgate_log_lines_dropped_total ").await
    }

    /// Sends requests until `lost` lines were lost; calls meanwhile are answered in time.
    async fn calls(&self, session: &Session, lost: i64) {
        let began = Instant::now();
        while self.lost().await < lost {
            let asking = join_all((0..8).map(|_| self.asks()));
            let calling = async {
                for _ in 0..5 {
                    let began = Instant::now();
                    let answer = session.text("echo", json!({"text": "x"})).await;
                    assert_eq!(answer, "x");
                    let took = began.elapsed();
                    assert!(took < Duration::from_secs(5), "{took:?}");
                }
            };
            tokio::join!(asking, calling);
            assert!(began.elapsed() < Duration::from_secs(60), "nothing is lost");
        }
    }

    /// Sends many requests over one connection, each of which is logged.
    async fn asks(&self) {
        let host = crate::support::cluster::place(&self.url);
        let mut socket = TcpStream::connect(&host).await.unwrap();
        let head = format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n", "x".repeat(200));
        let asked = format!("{head}\r\n").repeat(MANY) + &head + "Connection: close\r\n\r\n";
        let (mut read, mut write) = socket.split();
        let mut said = String::new();
        let (sent, answered) = tokio::join!(
            write.write_all(asked.as_bytes()),
            within("answers", read.read_to_string(&mut said)),
        );
        sent.and(answered.map(drop)).unwrap();
        assert_eq!(said.matches("HTTP/1.1 404").count(), MANY + 1);
    }
}

/// The number of requests over one connection.
const MANY: usize = 400;

async fn goes_on(gateway: &Logging) {
    let mut session = Session::at(client(), gateway.url.clone());
    session.initialize(NEWEST).await;
    gateway.calls(&session, 1).await;
    let lost = gateway.lost().await;
    let args = json!({"n": 20, "ms": 5});
    let mut stream = session.stream("slow", args, json!("t")).await;
    assert_eq!(stream.messages().await.len(), 21);
    gateway.calls(&session, lost + 100).await;
    let mut other = Session::at(client(), gateway.url.clone());
    other.initialize(NEWEST).await;
    assert_eq!(other.text("counter", json!({})).await, "1");
}

/// A reader of the logs that does not read.
#[tokio::test]
async fn a_log_that_nobody_reads_holds_up_no_request() {
    let (reader, writer) = std::io::pipe().unwrap();
    let gateway = Logging::to(writer).await;
    goes_on(&gateway).await;
    drop(reader);
}

/// A reader of stderr that does not read, and an end by an error: it waited for the reader to say so.
#[tokio::test]
async fn an_end_by_an_error_waits_for_no_reader() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let room = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    std::io::Write::write_all(&mut writer, &vec![b'x'; room]).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["serve", "--set", &format!("http.listen={address}")])
        .args(["--set", &format!("data_dir={}", dir.path().display())])
        .args(["--set", "ops.listen="])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let status = within("its end", process.wait()).await.unwrap();
    assert_eq!(status.code(), Some(1));
    drop(reader);
}

/// A full disk for the logs.
#[tokio::test]
async fn a_log_on_a_full_disk_fails_no_request() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let gateway = Logging::to(full).await;
    goes_on(&gateway).await;
}

/// Mounts a disk of 8 MiB as the data directory, fills and empties it when a file says so, and
/// becomes a gateway.
const SMALL_DISK: &str = r#"
data=$1 signs=$2
shift 2
mount -t tmpfs -o size=8m,mode=700 none "$data" || exit 1
wait_for() { for _ in $(seq 1200); do [ -e "$1" ] && return; sleep 0.05; done; exit; }
(
  exec >/dev/null 2>&1
  wait_for "$signs/fill"
  dd if=/dev/zero of="$data/filler" bs=4k
  : >"$signs/full"
  wait_for "$signs/empty"
  rm "$data/filler"
  : >"$signs/emptied"
) &
exec "$@"
"#;

/// A full disk under the data directory: requests that must write get 503, and all others continue.
/// Skipped where no disk can be mounted.
#[expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]
#[tokio::test]
async fn a_full_data_directory_costs_changes_and_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let (data, manifest) = (dir.path().join("data"), dir.path().join("manifest.json"));
    std::fs::create_dir(&data).unwrap();
    let wrapper = ["unshare", "-rm", "sh", "-c", SMALL_DISK, "sh"];
    let mut probe = Command::new(wrapper[0]);
    probe
        .args(&wrapper[1..])
        .arg(&data)
        .arg("/nowhere")
        .arg("true");
    if !within("a probe", probe.status())
        .await
        .is_ok_and(|status| status.success())
    {
        println!("skipped: no disk can be made here");
        return;
    }
    let servers = json!({"x": server("1")});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": servers}});
    let text = json!({"version": 1, "tenants": tenants}).to_string();
    std::fs::write(&manifest, text).unwrap();
    let (key, _) = crate::auth::api_keys::key();
    let mut process = Command::new(wrapper[0])
        .args(&wrapper[1..])
        .args([&data, dir.path()])
        .arg(env!("CARGO_BIN_EXE_lockgate"))
        .args(["serve", "--listen", "127.0.0.1:0", "--apply"])
        .arg(&manifest)
        .args(["--set", &format!("data_dir={}", data.display())])
        .args(["--set", "ops.listen=", "--set", "sandbox.separation=none"])
        .env("LOCKGATE_ADMIN_KEY", &key)
        .env_remove("DATABASE_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(process.stdout.take().unwrap()).lines();
    let origin = within("the listening line", async {
        loop {
            let line = stdout.next_line().await.unwrap().expect("it starts");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["event"] == "listening" {
                return format!("http://{}", line["http"].as_str().unwrap());
            }
        }
    })
    .await;
    let url = format!("{origin}/t/a/x/mcp");
    let mut session = Session::at(client(), url.clone());
    until("the server", || async {
        session.get(None).await.status() == 400
    })
    .await;
    session.initialize(NEWEST).await;
    let admin = bearer(&key);
    let change = async |name: &str| {
        let path = format!("{origin}/api/v1/tenants/a/servers/{name}");
        let put = admin.put(path).json(&server(&"x".repeat(4000)));
        within("a change", put.send()).await.unwrap()
    };
    let sign = |name: &str| std::fs::write(dir.path().join(name), "").unwrap();
    let signed = async |name: &str| {
        let path = dir.path().join(name);
        until(name, async || path.exists()).await;
    };
    sign("fill");
    signed("full").await;
    // Writes that fit into the journal may still succeed.
    let mut number = 0;
    let refused = loop {
        number += 1;
        let answer = change(&format!("u{number}")).await;
        if !answer.status().is_success() {
            break answer;
        }
        assert!(number < 1000, "there is always room");
    };
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let said = json_of(refused).await.to_string();
    assert!(!said.contains("disk"), "{said}");
    for _ in 0..20 {
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    }
    let mut other = Session::at(client(), url);
    other.initialize(NEWEST).await;
    assert_eq!(other.text("counter", json!({})).await, "1");
    sign("empty");
    signed("emptied").await;
    until("changes", || async {
        change("last").await.status().is_success()
    })
    .await;
    assert_eq!(
        session.text("counter", json!({})).await,
        "1",
        "the same child"
    );
}
