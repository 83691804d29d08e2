//! SIGTERM, SIGINT and SIGHUP: the first drains, the second ends at once.
//!
//! Not here: draining (`gateway`), and SIGHUP under a service manager (`service_manager`).

use std::fs;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::gateway::Lifecycle;

/// The effect of SIGHUP.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HangUp {
    /// The terminal is gone: it drains like SIGTERM, except under `nohup`.
    Drains,
    /// It is left to the caller.
    Reloads,
}

/// Cancels `drain` at the first of these signals, and `halt` at the second.
pub(super) fn signals(
    lifecycle: Lifecycle,
    hang_up: HangUp,
) -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    // Under nohup the gateway must outlive its terminal.
    let hang_up = (hang_up == HangUp::Drains && !is_ignored())
        .then(|| signal(SignalKind::hangup()))
        .transpose();
    let mut hang_up = hang_up.context("cannot handle SIGHUP")?;
    Ok(async move {
        for token in [&lifecycle.drain, &lifecycle.halt] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = received(hang_up.as_mut()) => {}
            }
            token.cancel();
        }
        // When this process is gone, guards end all remaining children.
    })
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Reports whether this process was started with SIGHUP ignored.
fn is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let first = 1 << (SignalKind::hangup().as_raw_value() - 1);
    ignored.is_some_and(|mask| mask & first != 0)
}
