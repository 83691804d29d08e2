//! Short log lines for people: time, call, duration and outcome; and other events with their fields.
//!
//! All text in them is escaped, because clients and children choose names and messages.

use std::fmt::Debug;

use http::StatusCode;
use time::UtcOffset;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use super::queue::Logs;
use crate::base::{
    Clock, Screen, Tone,
    terminal::{escaped, shortened},
};

/// The target of the lines of calls.
pub(crate) const CALLS: &str = "lockgate::calls";
/// The target of the lines of requests.
const REQUESTS: &str = "lockgate::http";
/// The target of the begin and the end of preparations, which name their `subject`.
pub(crate) const PREPARATIONS: &str = "lockgate::prepare";
/// The target of the begin and the end of migrations, which name their `subject`.
pub(crate) const MIGRATIONS: &str = "lockgate::migrate";

/// Writes events as short lines.
pub(super) struct Short {
    lines: Lines,
    logs: Logs,
}

impl Short {
    /// Lines for a screen, in local time, with or without the names of tenants and servers.
    pub(super) fn new(screen: Screen, has_names: bool, logs: Logs) -> Self {
        let mut lines = Lines::new(screen, logs.offset());
        lines.has_names = has_names;
        Self { lines, logs }
    }
}

impl<S: Subscriber> Layer<S> for Short {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        match self.lines.render(event) {
            Some(Rendered::Line(line)) => self.logs.line(line.as_bytes()),
            Some(Rendered::Begin { key, text, line }) => self.logs.begin(key, text, &line),
            Some(Rendered::End { key, line }) => self.logs.end(key, &line),
            None => {}
        }
    }
}

/// Renders events as lines.
struct Lines {
    screen: Screen,
    /// There are several tenants and servers.
    has_names: bool,
    offset: UtcOffset,
    clock: Clock,
}

/// An event as output.
enum Rendered {
    /// A line.
    Line(String),
    /// Work that begins.
    Begin {
        key: String,
        text: String,
        line: String,
    },
    /// Work that has ended.
    End { key: String, line: String },
}

impl Lines {
    /// Lines for a screen, in local time.
    fn new(screen: Screen, offset: UtcOffset) -> Self {
        Self {
            screen,
            has_names: false,
            offset,
            clock: Clock::system(),
        }
    }

    /// Renders an event; none for one that says nothing new to people.
    fn render(&self, event: &Event<'_>) -> Option<Rendered> {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        // Most requests have lines as calls only: their fields are not copied.
        if target == REQUESTS && level == Level::INFO && !Status::of(event).is_refusal() {
            return None;
        }
        let mut read = Read::default();
        event.record(&mut read);
        let text = match target {
            CALLS => self.call(&read),
            REQUESTS if level == Level::INFO => self.request(&read),
            _ => self.other(level, &read),
        };
        let text = match (read.of("tenant.id"), read.of("server.name")) {
            (Some(tenant), Some(server)) if self.has_names => {
                format!("{}/{}  {text}", escaped(tenant), escaped(server))
            }
            _ => text,
        };
        let line = format!("{}  {text}\n", self.screen.paint(Tone::Faint, &self.time()));
        let is_work = matches!(target, PREPARATIONS | MIGRATIONS);
        let Some(subject) = read.of("subject").filter(|_| is_work) else {
            return Some(Rendered::Line(line));
        };
        let key = format!("{target} {subject}");
        // Only an end has a duration.
        Some(if read.of("seconds").is_none() {
            Rendered::Begin { key, text, line }
        } else {
            Rendered::End { key, line }
        })
    }

    fn call(&self, read: &Read) -> String {
        let mut text = read.shown("mcp.method.name");
        if let Some(tool) = read.of("tool") {
            text = format!("{text} {}", shortened(tool, NAME_MAX));
        }
        let outcome = match (read.of("error"), read.of("reason")) {
            (None, _) => self.screen.paint(Tone::Good, "ok"),
            (Some(error), Some(reason)) => {
                let what = format!("{}: {}", in_words(error), escaped(reason));
                self.screen.paint(Tone::Bad, &what)
            }
            (Some(error), None) => self.screen.paint(Tone::Bad, &in_words(error)),
        };
        format!("{text}  {} ms  {outcome}", read.shown("ms"))
    }

    /// A request that was refused; the others have lines as calls.
    fn request(&self, read: &Read) -> String {
        let status = read.shown("http.status");
        let known = StatusCode::from_bytes(status.as_bytes()).ok();
        let why = known.and_then(|known| known.canonical_reason());
        let (method, path) = (read.shown("http.method"), read.shown("url.path"));
        let outcome = format!("{status} {}", why.unwrap_or_default());
        let outcome = self.screen.paint(Tone::Bad, outcome.trim_end());
        format!("{method} {path}  {} ms  {outcome}", read.shown("ms"))
    }

    fn other(&self, level: Level, read: &Read) -> String {
        let mut text = match level {
            Level::ERROR => self.screen.paint(Tone::Bad, "error") + " ",
            Level::WARN => self.screen.paint(Tone::Warning, "warning") + " ",
            _ => String::new(),
        };
        text.push_str(&escaped(&read.message));
        for (name, value) in &read.fields {
            if !HIDDEN.contains(name) {
                let value = shortened(value, VALUE_MAX);
                text.push_str(&match *name {
                    "subject" => format!(" {value}"),
                    "seconds" => format!("  {:.1} s", value.parse().unwrap_or(0.0_f64)),
                    name => format!("  {name}={value}"),
                });
            }
        }
        text
    }

    fn time(&self) -> String {
        let nanos = i128::from(self.clock.now_ms()) * 1_000_000;
        let now = time::OffsetDateTime::from_unix_timestamp_nanos(nanos);
        let (hour, minute, second) =
            now.map_or((0, 0, 0), |now| now.to_offset(self.offset).to_hms());
        format!("{hour:02}:{minute:02}:{second:02}")
    }
}

/// The type of an error in words: codes stay codes.
fn in_words(error: &str) -> String {
    match error {
        "cancelled" => "cancelled".to_owned(),
        "tool_error" => "error of the tool".to_owned(),
        "_OTHER" => "error".to_owned(),
        error => format!("error {}", escaped(error).replace('_', " ")),
    }
}

/// The status in an event of a request.
#[derive(Default)]
struct Status(u64);

impl Status {
    fn of(event: &Event<'_>) -> Self {
        let mut status = Self::default();
        event.record(&mut status);
        status
    }

    fn is_refusal(&self) -> bool {
        self.0 >= 400
    }
}

impl Visit for Status {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "http.status" {
            self.0 = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// The message and the fields of an event.
#[derive(Default)]
struct Read {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Read {
    fn of(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| &**value)
    }

    /// The escaped value of a field.
    fn shown(&self, name: &str) -> String {
        shortened(self.of(name).unwrap_or_default(), VALUE_MAX)
    }

    fn keep(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.message = value;
        } else {
            self.fields.push((field.name(), value));
        }
    }
}

impl Visit for Read {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.keep(field, format!("{value:?}"));
    }
}

/// Fields without use for the reader of one server's lines.
const HIDDEN: [&str; 8] = [
    "tenant.id",
    "server.name",
    "session.id",
    "request.id",
    "trace_id",
    "span_id",
    "was_there",
    "event",
];
/// The most characters of the name of a tool.
const NAME_MAX: usize = 64;
/// The most characters of another value.
const VALUE_MAX: usize = 600;
