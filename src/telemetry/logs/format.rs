//! Form and level of the log lines of this process.
//!
//! Not here: the queue that they go through (`queue`), JSON (`json`), and the lines for people (`short`).

use std::io::{self, Write};

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry as Spans};

use super::json::Json;
use super::queue::Logs;
use super::short::{CALLS, Short};
use crate::base::{Screen, terminal::escaped};

/// Format and destination of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object per line, on stdout.
    Json,
    /// Text for people with every field, on stderr.
    Text,
    /// A short line for each call of the one server, on stderr, which has these abilities.
    Short(Screen),
    /// The same with the names of tenants and servers.
    ShortOfAll(Screen),
}

/// Begins logging for the whole process; may be called once only.
///
/// `directives` is the level or filter of the configuration, or `RUST_LOG`.
pub(crate) fn init(directives: &str, format: Format) -> Result<Logs, String> {
    let logs = match format {
        Format::Json => Logs::to(io::stdout(), false),
        Format::Text => Logs::to(io::stderr(), false),
        Format::Short(screen) | Format::ShortOfAll(screen) => {
            Logs::to(io::stderr(), screen.redraws())
        }
    };
    let logs = logs.map_err(|error| format!("cannot start the log thread: {error}"))?;
    subscriber(directives, format, &logs)?
        .try_init()
        .map_err(|error| format!("logging was begun before: {error}"))?;
    Ok(logs)
}

/// Makes the subscriber that formats events as lines for `logs`.
fn subscriber(
    directives: &str,
    format: Format,
    logs: &Logs,
) -> Result<impl Subscriber + Send + Sync, String> {
    let mut filter = EnvFilter::try_new(directives)
        .map_err(|error| format!("{directives:?} is no log filter: {error}"))?;
    // Its warnings are about peers, of which each connection can bring one.
    if !directives.contains("h2")
        && let Ok(of_peers) = "h2=error".parse()
    {
        filter = filter.add_directive(of_peers);
    }
    let lines = match format {
        Format::Json => Json::new(logs.clone()).boxed(),
        Format::Text => tracing_subscriber::fmt::layer()
            .with_writer(logs.clone())
            .with_ansi(false)
            .boxed(),
        Format::Short(screen) | Format::ShortOfAll(screen) => {
            // They are what these lines are for, unless only warnings are wanted.
            let is_quiet = filter.max_level_hint() < Some(LevelFilter::INFO);
            let calls = format!("{CALLS}={}", if is_quiet { "off" } else { "debug" });
            if !directives.contains(CALLS)
                && let Ok(calls) = calls.parse()
            {
                filter = filter.add_directive(calls);
            }
            let has_names = matches!(format, Format::ShortOfAll(_));
            Short::new(screen, has_names, logs.clone()).boxed()
        }
    };
    Ok(Spans::default().with(filter).with(lines))
}

/// One line of text; tracing-subscriber writes each in a single call.
impl Write for Logs {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.line(&one_line(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// A line without what steers a terminal or begins another line.
fn one_line(line: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
    let mut safe = escaped(&text).into_owned();
    safe.push('\n');
    safe.into_bytes()
}

#[cfg(test)]
#[expect(
    clippy::disallowed_types,
    reason = "plain threads; nothing here is async"
)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::super::format::*;
    use crate::base::terminal::steers;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("lock").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: Format, log: impl FnOnce()) -> String {
        logged_by("info", format, log)
    }

    fn logged_by(directives: &str, format: Format, log: impl FnOnce()) -> String {
        let kept = Kept::default();
        let logs = Logs::to(kept.clone(), false).expect("thread");
        let subscriber = subscriber(directives, format, &logs).expect("filter");
        tracing::subscriber::with_default(subscriber, log);
        logs.flush(Duration::from_secs(5));
        String::from_utf8(kept.0.lock().expect("lock").clone()).expect("UTF-8")
    }

    #[test]
    fn one_event_is_one_line() {
        for evil in [
            "a\r\nb",
            "\x1b[2Jx",
            "\u{85}x\u{2028}y",
            "\u{9b}2J\u{9b}1;1HFAKE\u{202e}\u{7f}\u{feff}",
            "a\tb ä\u{1f600}…",
            "{\"level\":\"ERROR\"}\n{}",
            "\"\\\0",
        ] {
            for format in [Format::Json, Format::Text, Format::Short(Screen::default())] {
                let line = logged(format, || {
                    tracing::info!(agent = evil, "{evil}");
                    tracing::debug!("not shown");
                });
                assert_eq!(line.lines().count(), 1, "{line:?}");
                let mut letters = line.trim_end_matches('\n').chars();
                assert!(!letters.any(steers), "{line:?}");
                if format == Format::Json {
                    let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                    assert_eq!(value["level"], "INFO");
                    assert_eq!(value["agent"], evil);
                    assert_eq!(value["message"], evil);
                }
            }
        }
    }

    /// Anybody could write a line with each connection.
    #[test]
    fn no_peer_fills_the_log_with_warnings() {
        let log = || {
            tracing::warn!(target: "h2::proto::streams::recv", "reset");
            tracing::warn!("ours");
        };
        let lines = |directives| logged_by(directives, Format::Json, log).lines().count();
        assert_eq!(["info", "warn", "debug"].map(lines), [1, 1, 1]);
        assert_eq!(lines("info,h2=warn"), 2, "if it is asked for");
    }

    #[test]
    fn short_lines_of_several_servers_name_them() {
        let log = || {
            tracing::debug!(
                target: CALLS,
                { tenant.id = "acme", server.name = "files", session.id = "k3f9",
                  mcp.method.name = "tools/call", tool = "echo", ms = 7_u64 },
                "call"
            );
            tracing::warn!(
                tenant.id = "acme",
                server.name = "files",
                why = "x",
                "failed"
            );
        };
        let of = |format| {
            let lines = logged(format, log);
            let cut = |line: &str| line.split_once("  ").expect("a time").1.to_owned();
            lines.lines().map(cut).collect::<Vec<_>>()
        };
        let one = ["tools/call echo  k3f9  7 ms  ok", "warning failed  why=x"];
        assert_eq!(of(Format::Short(Screen::default())), one);
        let all = [
            "acme/files  tools/call echo  k3f9  7 ms  ok",
            "acme/files  warning failed  why=x",
        ];
        assert_eq!(of(Format::ShortOfAll(Screen::default())), all);
    }

    #[test]
    fn fields_keep_their_types_in_json() {
        struct Failing;
        impl std::fmt::Debug for Failing {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("ha\"lf")?;
                Err(std::fmt::Error)
            }
        }
        let lines = logged(Format::Json, || {
            tracing::info!(
                a.text = "x", count = 3, less = -3, share = 0.5, none = f64::NAN, is = true,
                shown = %"\"y\"", absent = None::<u64>, failing = ?Failing, "message"
            );
        });
        let mut line: serde_json::Value = serde_json::from_str(&lines).expect(&lines);
        line["timestamp"] = "T".into();
        let wanted = serde_json::json!({
            "timestamp": "T", "level": "INFO", "message": "message", "a.text": "x", "count": 3,
            "less": -3, "share": 0.5, "none": null, "is": true, "shown": "\"y\"", "failing": "ha\"lf",
            "target": "lockgate::telemetry::logs::format::tests"
        });
        assert_eq!(line, wanted);
    }
}
