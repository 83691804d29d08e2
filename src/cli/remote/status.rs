//! `lockgate status`: a running gateway at a glance.

use std::{
    cell::Cell,
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::Args;
use reqwest::Method;
use serde_json::Value as Json;

use super::{
    client::{Client, Connection, RequestOptions, run},
    table::{Column, plain, pretty, table},
};
use crate::{
    base::{Screen, Tone},
    config::gateway::environment,
};

/// The command line of `lockgate status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// URL of the gateway, instead of --url
    #[arg(value_name = "URL")]
    gateway: Option<String>,
    #[command(flatten)]
    to: Connection,
}

impl StatusArgs {
    /// Prints the status. Exit code: 0 if the gateway serves, also degraded; 1 if it does not or
    /// cannot be reached.
    pub(crate) fn run(self) -> ExitCode {
        let to = match self.gateway {
            Some(url) => self.to.at(url),
            None => self.to,
        };
        let serves = Cell::new(true);
        let code = run(&to, async |client: &Client| {
            let options = RequestOptions::default();
            let status = client.json(Method::GET, &["status"], options).await?;
            serves.set(matches!(
                status["status"].as_str(),
                Some("ready" | "degraded")
            ));
            if client.json {
                return Ok(pretty(&status));
            }
            let screen = Screen::of(&environment(), io::stdout().is_terminal());
            Ok(text(&status, screen))
        });
        if serves.get() {
            code
        } else {
            ExitCode::FAILURE
        }
    }
}

fn text(status: &Json, screen: Screen) -> String {
    let word = |name: &str| plain(status[name].as_str().unwrap_or_default());
    let state = word("status");
    let tone = match state.as_str() {
        "ready" => Tone::Good,
        "degraded" => Tone::Warning,
        _ => Tone::Bad,
    };
    let mut text = screen.paint(tone, &state).to_string();
    let lost: Vec<String> = each(&status["degraded"])
        .filter_map(Json::as_str)
        .map(plain)
        .collect();
    if !lost.is_empty() {
        text += &format!(", without {}", lost.join(", "));
    }
    text += &format!("; lockgate {}", word("version"));
    if let Some(seconds) = status["uptime_seconds"].as_f64() {
        text += &format!(", up {}", duration(seconds));
    }
    let servers: Vec<Json> = each(&status["servers"]).cloned().collect();
    let sum = |name: &str| -> u64 { servers.iter().filter_map(|one| one[name].as_u64()).sum() };
    text += &format!(
        "\n{}, {}, {}, {}, {}\n",
        count(each(&status["tenants"]).count() as u64, "tenant"),
        count(servers.len() as u64, "server"),
        count(sum("sessions"), "session"),
        count(sum("children"), "running child").replace("childs", "children"),
        count(sum("calls"), "open call"),
    );
    if !servers.is_empty() {
        text += &format!("\n{}", table(&COLUMNS, &servers));
    }
    text
}

fn each(list: &Json) -> impl Iterator<Item = &Json> {
    list.as_array().into_iter().flatten()
}

fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// The two largest units of a duration.
fn duration(seconds: f64) -> String {
    let seconds = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let seconds = seconds.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}

const COLUMNS: [Column; 9] = [
    ("TENANT", "/tenant"),
    ("SERVER", "/name"),
    ("STATE", "/state"),
    ("SESSIONS", "/sessions"),
    ("CHILDREN", "/children"),
    ("CALLS", "/calls"),
    ("RESTARTS", "/restarts"),
    ("MEMORY", "/memory_bytes"),
    ("PACKAGES", "/packages"),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::status::*;

    #[test]
    fn a_status_is_read_at_a_glance() {
        let server = json!({
            "tenant": "acme", "name": "files", "sessions": 3, "children": 1, "calls": 2,
            "restarts": 0, "memory_bytes": 2048, "packages": "failed", "state": "failed",
        });
        let status = json!({
            "status": "degraded", "degraded": ["sql", "x\u{1b}[2J"], "version": "1.2.3",
            "uptime_seconds": 3723.4, "tenants": ["acme", "globex"], "servers": [server],
        });
        insta::assert_snapshot!(text(&status, Screen::default()), @r"
        degraded, without sql, x\u{1b}[2J; lockgate 1.2.3, up 1h 2m
        2 tenants, 1 server, 3 sessions, 1 running child, 2 open calls

        TENANT  SERVER  STATE   SESSIONS  CHILDREN  CALLS  RESTARTS  MEMORY  PACKAGES
        acme    files   failed  3         1         2      0         2KiB    failed
        ");
    }

    #[test]
    fn durations_have_two_units() {
        let shown = [59.9, 61.0, 3600.0, 90_000.0].map(duration);
        assert_eq!(shown, ["59s", "1m 1s", "1h 0m", "1d 1h"]);
    }
}
