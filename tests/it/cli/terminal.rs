//! Output and questions on a terminal, and the same commands without one.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use rustix::{
    fs::{Mode, OFlags, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};
use serde_json::{Value, json};

use super::commands::{Said, Shell, stranger};
use crate::support::harness::{NEWEST, Session, child, client, run_args};

/// A pseudo-terminal.
struct Terminal {
    user: File,
    program: OwnedFd,
    received: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn new() -> Self {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let program = open(name, flags, Mode::empty()).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&program, size).unwrap();
        let user = File::from(user);
        let (sender, received) = channel();
        let mut reader = user.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            user,
            program,
            received,
            seen: String::new(),
        }
    }

    fn stdio(&self) -> Stdio {
        self.program.try_clone().unwrap().into()
    }

    /// Runs a command whose controlling terminal this is.
    fn run(&self, command: &Command) -> Child {
        let mut own = Command::new("setsid");
        own.arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => own.env(name, value),
                None => own.env_remove(name),
            };
        }
        own.env("TERM", "xterm").env_remove("NO_COLOR");
        own.stdin(self.stdio())
            .stdout(self.stdio())
            .stderr(self.stdio())
            .spawn()
            .unwrap()
    }

    fn types(&mut self, text: &str) {
        self.user.write_all(text.as_bytes()).unwrap();
    }

    /// What was shown until `is_seen`.
    fn until(&mut self, is_seen: impl Fn(&str) -> bool) -> &str {
        let began = Instant::now();
        while !is_seen(&self.seen) {
            assert!(began.elapsed() < LIMIT, "only {:?}", self.seen);
            if let Ok(more) = self.received.recv_timeout(Duration::from_millis(100)) {
                self.seen.push_str(&String::from_utf8_lossy(&more));
            }
        }
        &self.seen
    }

    fn shows(&mut self, text: &str) -> &str {
        self.until(|seen| seen.contains(text))
    }

    fn has_echo(&self) -> bool {
        let modes = tcgetattr(&self.program).unwrap().local_modes;
        modes.contains(LocalModes::ECHO)
    }

    /// The exit code of a command, and everything that it has shown.
    fn end(mut self, mut child: Child) -> (i32, String) {
        let code = child.wait().unwrap().code().unwrap();
        while let Ok(more) = self.received.recv_timeout(Duration::from_millis(300)) {
            self.seen.push_str(&String::from_utf8_lossy(&more));
        }
        (code, self.seen)
    }
}

/// On a terminal `serve` logs for eyes, elsewhere as JSON.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_on_a_terminal_logs_for_people() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = stranger(&["serve", "--listen", "127.0.0.1:0", "--set", "ops.listen="]);
    command.env("LOCKGATE_DATA_DIR", dir.path().join("data"));
    let mut terminal = Terminal::new();
    let mut child = terminal.run(command.as_std());
    let seen = terminal.shows("  listening").to_owned();
    assert!(!seen.contains("{\""), "{seen}");
    terminal.shows("url=http://127.0.0.1:");
    // As if the terminal was closed.
    terminal.types("\u{3}");
    assert!(child.wait().unwrap().success());
}

/// A password is asked for twice and never shown; the terminal is as it was, also after Ctrl-C.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_typed_without_echo() {
    const PASSWORD: &str = "correct-horse-battery";
    let shell = Shell::new().await;
    shell.done(&["tenant", "add", "a"]).await;
    let add = shell.command(&["user", "add", "a", "ada"]);
    for (again, code) in [("another-horse", 2), (PASSWORD, 0)] {
        let mut terminal = Terminal::new();
        let child = terminal.run(add.as_std());
        terminal.shows("Password: ");
        assert!(!terminal.has_echo());
        terminal.types(&format!("{PASSWORD}\n"));
        terminal.shows("Password again: ");
        terminal.types(&format!("{again}\n"));
        terminal.until(|seen| seen.contains("two differ") || seen.contains(", version "));
        assert!(terminal.has_echo());
        let (ended, seen) = terminal.end(child);
        assert_eq!(ended, code, "{seen}");
        assert!(!seen.contains("horse"), "{seen}");
    }
    let mut terminal = Terminal::new();
    let child = terminal.run(shell.command(&["user", "add", "a", "eve"]).as_std());
    terminal.shows("Password: ");
    assert!(!terminal.has_echo());
    terminal.types("sec\u{3}");
    let began = Instant::now();
    while !terminal.has_echo() {
        assert!(began.elapsed() < LIMIT, "the echo stays off");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (code, seen) = terminal.end(child);
    assert_eq!(code, 130, "{seen}");
    assert!(!seen.contains("sec"), "{seen}");
    let said = shell.run(&["user", "show", "a", "eve"]).await;
    assert_eq!(said.code, 1);
}

/// A migration is a line that is drawn again on a terminal, and two lines elsewhere.
#[test]
fn migrations_show_that_they_are_under_way() {
    let data = tempfile::tempdir().unwrap();
    // A database without tables: where none is, none is made.
    std::fs::write(data.path().join("lockgate.db"), "").unwrap();
    let migrate = || {
        let mut command = stranger(&["migrate"]);
        command.env("LOCKGATE_DATA_DIR", data.path());
        command
    };
    let said = Said::of(migrate().into_std().output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!(lines[0], "updating the schema");
    assert!(lines[1].starts_with("updated the schema  "), "{lines:?}");
    assert_eq!((lines.len(), said.err.contains('\u{1b}')), (2, false));
    // Another process migrates.
    let lock = std::fs::read_dir(data.path()).unwrap().flatten();
    let lock = lock
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "migrate"))
        .unwrap();
    let lock = File::open(lock).unwrap();
    lock.lock().unwrap();
    let mut terminal = Terminal::new();
    let child = terminal.run(migrate().as_std());
    terminal.shows("\r\u{1b}[Kupdating the schema  1 s");
    lock.unlock().unwrap();
    let (code, seen) = terminal.end(child);
    assert_eq!(code, 0, "{seen}");
    let end = seen.rsplit('\r').find(|part| part.contains("updated"));
    assert!(
        end.unwrap().starts_with("\u{1b}[Kupdated the schema  "),
        "{seen:?}"
    );
}

/// Gateways of `lockgate run` whose stderr is `stderr`, after calls of which some fail.
async fn logs(stderr: Stdio, env: &[(&str, &str)], args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    command.args(run_args(&[], &[])).args(args);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    command.envs(env.iter().copied());
    let mut process = command
        .args(["--", &child()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let mut url = String::new();
    let mut stdout = std::io::BufReader::new(process.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut url).unwrap();
    let mut session = Session::at(client(), url.trim().to_owned());
    session.initialize(NEWEST).await;
    assert_eq!(
        session.text("echo", json!({"text": "s3cret"})).await,
        "s3cret"
    );
    let refused: Value = session.call(EVIL, json!({})).await;
    assert!(
        refused["error"].is_object() || refused["result"]["isError"] == true,
        "{refused}"
    );
    process
}

fn stopped(mut process: Child) {
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    process.wait().unwrap();
}

/// A call is one short line; nothing that a client chose steers the terminal or makes a line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_short_lines() {
    for (env, has_colours) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
        let mut terminal = Terminal::new();
        let process = logs(terminal.stdio(), env, &[]).await;
        terminal.shows("\\u{1b}[2J");
        let green = "\u{1b}[32mok\u{1b}[0m";
        let seen = terminal.until(|seen| seen.contains("tools/call echo"));
        assert_eq!(seen.contains(green), has_colours, "{seen:?}");
        assert_eq!(seen.contains('\u{1b}'), has_colours, "{seen:?}");
        stopped(process);
    }
    let mut process = logs(Stdio::piped(), &[], &[]).await;
    let mut stderr = process.stderr.take().unwrap();
    stopped(process);
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert!(!text.contains(['\u{1b}', '\u{202e}', '\r']), "{text:?}");
    assert!(!text.contains("s3cret"), "{text}");
    let echo = text.lines().find(|line| line.contains("tools/call echo"));
    let words: Vec<&str> = echo.expect(&text).split_whitespace().collect();
    let [time, "tools/call", "echo", session, ms, "ms", "ok"] = words[..] else {
        panic!("{words:?}");
    };
    assert!(time.len() == 8 && ms.parse::<u32>().is_ok(), "{words:?}");
    // As much of its id as logs, lists and commands show.
    assert_eq!(session.len(), 12, "{words:?}");
    assert!(
        !text.lines().any(|line| line.starts_with("forged")),
        "{text}"
    );
    let evil = text.lines().find(|line| line.contains("\\nforged"));
    assert!(
        evil.is_some_and(|line| line.chars().count() < 400),
        "{text}"
    );
}

/// With `-v` every request and call is a line with all fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbose_lines_have_every_field() {
    let mut process = logs(Stdio::piped(), &[], &["-v"]).await;
    let mut stderr = process.stderr.take().unwrap();
    stopped(process);
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    let has = |parts: &[&str]| {
        text.lines()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    };
    assert!(
        has(&[
            "lockgate::calls",
            "tool=\"echo\"",
            "ms=",
            "tenant.id=\"local\""
        ]),
        "{text}"
    );
    assert!(
        has(&["lockgate::http", "http.status=200", "request.id="]),
        "{text}"
    );
}

/// `lockgate status` shows an operator everything, and a tenant's administrator its own tenant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_is_shown_at_a_glance() {
    let shell = Shell::new().await;
    let session = shell.session("a").await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    shell.done(&["tenant", "add", "b"]).await;
    let shown = shell.done(&["status"]).await;
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("ready; lockgate "), "{shown}");
    assert!(lines[0].contains(", up "), "{shown}");
    let counts = "2 tenants, 1 server, 1 session, 1 running child, 0 open calls";
    assert_eq!(lines[1], counts);
    let row: Vec<&str> = lines[4].split_whitespace().take(6).collect();
    assert_eq!(row, ["a", "x", "running", "1", "1", "0"]);
    // As an argument, and of another tenant's administrator.
    let url = shell.replica.http.clone();
    let made = [
        "key", "add", "b", "boss", "--server", "*", "--scope", "admin",
    ];
    let key = shell.done(&made).await;
    let mut own = stranger(&["status", &url, "--json"]);
    let said = Said::of(own.env("LOCKGATE_KEY", key.trim()).output().await.unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let seen: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (&seen["tenants"], &seen["servers"]),
        (&json!(["b"]), &json!([]))
    );
    assert_eq!(
        (&seen["uptime_seconds"], &seen["degraded"]),
        (&Value::Null, &json!([]))
    );
    let mut away = stranger(&["status", "http://127.0.0.1:9"]);
    let said = Said::of(away.env("LOCKGATE_KEY", "x").output().await.unwrap());
    assert_eq!((said.code, &*said.out), (1, ""));
}

/// The name of a tool that would clear the screen, turn the text and make a line.
const EVIL: &str = "\u{1b}[2J\u{202e}evil\nforged\r\u{9b}1m";
const LIMIT: Duration = Duration::from_secs(20);
