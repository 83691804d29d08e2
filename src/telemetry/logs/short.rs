//! Short log lines for people: time, call, session, duration and outcome; and other events with their fields.
//!
//! All text in them is escaped, because clients and children choose names and messages.

use std::{
    borrow::Cow,
    fmt::{self, Debug, Display, Write},
};

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
        // The line, and where the text begins behind the time.
        let mut line = String::with_capacity(LINE);
        _ = write!(line, "{}  ", self.screen.paint(Tone::Faint, self.time()));
        let begin = line.len();
        if self.has_names
            && let (Some(tenant), Some(server)) = (read.of("tenant.id"), read.of("server.name"))
        {
            _ = write!(line, "{}/{}  ", escaped(tenant), escaped(server));
        }
        // Writing to a text does not fail.
        _ = match target {
            CALLS => self.call(&read, &mut line),
            REQUESTS if level == Level::INFO => self.request(&read, &mut line),
            _ => self.other(level, &read, &mut line),
        };
        line.push('\n');
        let is_work = matches!(target, PREPARATIONS | MIGRATIONS);
        let Some(subject) = read.of("subject").filter(|_| is_work) else {
            return Some(Rendered::Line(line));
        };
        let key = format!("{target} {subject}");
        // Only an end has a duration.
        Some(if read.of("seconds").is_none() {
            let text = line[begin..].trim_end_matches('\n').to_owned();
            Rendered::Begin { key, text, line }
        } else {
            Rendered::End { key, line }
        })
    }

    fn call(&self, read: &Read, to: &mut String) -> fmt::Result {
        to.write_str(&read.shown("mcp.method.name"))?;
        if let Some(tool) = read.of("tool") {
            write!(to, " {}", shortened(tool, NAME_MAX))?;
        }
        let screen = self.screen;
        if let Some(session) = read.of("session.id") {
            write!(to, "  {}", screen.paint(Tone::Faint, escaped(session)))?;
        }
        write!(to, "  {} ms  ", read.shown("ms"))?;
        match (read.of("error"), read.of("reason")) {
            (None, _) => write!(to, "{}", screen.paint(Tone::Good, "ok")),
            (Some(error), Some(reason)) => {
                let what = format!("{}: {}", in_words(error), escaped(reason));
                write!(to, "{}", screen.paint(Tone::Bad, what))
            }
            (Some(error), None) => write!(to, "{}", screen.paint(Tone::Bad, in_words(error))),
        }
    }

    /// A request that was refused; the others have lines as calls.
    fn request(&self, read: &Read, to: &mut String) -> fmt::Result {
        let status = read.shown("http.status");
        let known = StatusCode::from_bytes(status.as_bytes()).ok();
        let why = known.and_then(|known| known.canonical_reason());
        let (method, path) = (read.shown("http.method"), read.shown("url.path"));
        let outcome = format!("{status} {}", why.unwrap_or_default());
        let outcome = self.screen.paint(Tone::Bad, outcome.trim_end());
        write!(to, "{method} {path}  {} ms  {outcome}", read.shown("ms"))
    }

    fn other(&self, level: Level, read: &Read, to: &mut String) -> fmt::Result {
        match level {
            Level::ERROR => write!(to, "{} ", self.screen.paint(Tone::Bad, "error"))?,
            Level::WARN => write!(to, "{} ", self.screen.paint(Tone::Warning, "warning"))?,
            _ => {}
        }
        to.write_str(&escaped(&read.message))?;
        for (name, value) in &read.fields {
            if HIDDEN.contains(name) {
                continue;
            }
            let value = shortened(value, VALUE_MAX);
            match *name {
                "subject" => write!(to, " {value}")?,
                "seconds" => write!(to, "  {:.1} s", value.parse().unwrap_or(0.0_f64))?,
                name => write!(to, "  {name}={value}")?,
            }
        }
        Ok(())
    }

    fn time(&self) -> Time {
        let nanos = i128::from(self.clock.now_ms()) * 1_000_000;
        let now = time::OffsetDateTime::from_unix_timestamp_nanos(nanos);
        let (hour, minute, second) =
            now.map_or((0, 0, 0), |now| now.to_offset(self.offset).to_hms());
        Time(hour, minute, second)
    }
}

/// A time of day.
struct Time(u8, u8, u8);

impl Display for Time {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(hour, minute, second) = self;
        write!(to, "{hour:02}:{minute:02}:{second:02}")
    }
}

/// The type of an error in words: codes stay codes.
fn in_words(error: &str) -> Cow<'_, str> {
    match error {
        "cancelled" => "cancelled".into(),
        "tool_error" => "error of the tool".into(),
        "_OTHER" => "error".into(),
        error => format!("error {}", escaped(error).replace('_', " ")).into(),
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
struct Read {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Default for Read {
    fn default() -> Self {
        Self {
            message: String::new(),
            // As many as most events have.
            fields: Vec::with_capacity(8),
        }
    }
}

impl Read {
    fn of(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| &**value)
    }

    /// The escaped value of a field.
    fn shown(&self, name: &str) -> Cow<'_, str> {
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

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value.to_string());
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
/// Room for most lines.
const LINE: usize = 128;
/// The most characters of the name of a tool.
const NAME_MAX: usize = 64;
/// The most characters of another value.
const VALUE_MAX: usize = 600;
