//! Notifications to a service manager such as systemd: readiness, reload, stop and watchdog.
//!
//! The protocol is that of `sd_notify(3)`: a datagram with lines `NAME=VALUE` to the socket that
//! `NOTIFY_SOCKET` names. Not here: signals that end the gateway (`signals`).

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future,
    os::{linux::net::SocketAddrExt, unix::net as unix},
    time::Duration,
};

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    net::UnixDatagram,
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};

use crate::{
    config::Config,
    gateway::{Lifecycle, longest_end},
    snapshot::Reloader,
};

/// The service manager that started this process.
pub(super) struct ServiceManager {
    socket: UnixDatagram,
    /// The interval of signs of life; none if it expects none.
    watchdog: Option<Duration>,
    /// What SIGHUP applies again; none for `lockgate run`, which has no manifest.
    reloader: Option<Reloader>,
    /// The line for `systemctl status`.
    status: String,
    /// The longest time that a stop may take.
    longest_end: Duration,
}

impl ServiceManager {
    /// The manager that `env` names, if it can be reached.
    pub(super) fn of(
        env: &BTreeMap<String, String>,
        reloader: Option<Reloader>,
        config: &Config,
    ) -> Option<Self> {
        let name = env.get("NOTIFY_SOCKET").filter(|name| !name.is_empty())?;
        let warn = |error: &std::io::Error| {
            tracing::warn!(%error, "NOTIFY_SOCKET: cannot tell the service manager");
        };
        Some(Self {
            socket: connect(name).inspect_err(warn).ok()?,
            watchdog: watchdog(env),
            reloader,
            status: format!("serving on {}", config.public_url),
            longest_end: longest_end(&config.drain),
        })
    }

    /// Whether SIGHUP is a request to reload.
    pub(super) fn reloads(&self) -> bool {
        self.reloader.is_some()
    }

    /// Tells the manager each state, and applies the manifest again at each SIGHUP.
    async fn follow(&self, lifecycle: &Lifecycle, mut hang_up: Option<Signal>) -> Infallible {
        let period = self.watchdog.unwrap_or(FOREVER);
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::select! {
            () = lifecycle.serving.cancelled() => self.tell(&self.ready()).await,
            () = lifecycle.drain.cancelled() => {}
        }
        loop {
            tokio::select! {
                () = lifecycle.drain.cancelled() => break,
                () = received(hang_up.as_mut()) => self.reload().await,
                _ = ticks.tick() => self.tell("WATCHDOG=1").await,
            }
        }
        let time = self.longest_end.as_micros();
        self.tell(&format!(
            "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={time}"
        ))
        .await;
        loop {
            ticks.tick().await;
            self.tell("WATCHDOG=1").await;
        }
    }

    async fn reload(&self) {
        // systemd.service(5), "Type=notify-reload": tells this reload from an earlier one.
        let now = clock_gettime(ClockId::Monotonic);
        let now = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.tell(&format!(
            "RELOADING=1\nMONOTONIC_USEC={now}\nSTATUS=applying the manifest"
        ))
        .await;
        tracing::info!(event = "reload", "applying the manifest again");
        let mut state = self.ready();
        if let Some(reloader) = &self.reloader {
            match timeout(RELOAD, reloader.reload()).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => {
                    tracing::error!(event = "manifest.unread", "the manifest is not read: {why}");
                    state = format!("{state}; the manifest is not read: {why}");
                }
                Err(_) => tracing::warn!("the manifest is still being applied"),
            }
        }
        self.tell(&state).await;
    }

    fn ready(&self) -> String {
        format!("READY=1\nSTATUS={}", self.status)
    }

    async fn tell(&self, state: &str) {
        let sent = timeout(TELL, self.socket.send(state.as_bytes())).await;
        if !matches!(sent, Ok(Ok(_))) {
            let state = state.lines().next();
            tracing::warn!(state, "cannot tell the service manager");
        }
    }
}

/// Tells `manager`, if any, the states of a gateway, until it is dropped.
///
/// # Errors
///
/// SIGHUP cannot be handled.
pub(super) fn inform(
    manager: Option<ServiceManager>,
    lifecycle: Lifecycle,
) -> anyhow::Result<impl Future<Output = Infallible>> {
    let reloads = manager.as_ref().is_some_and(ServiceManager::reloads);
    // Before the gateway serves: without a handler the signal ends the process.
    let hang_up = reloads.then(|| signal(SignalKind::hangup())).transpose();
    let hang_up = hang_up.context("cannot handle SIGHUP")?;
    Ok(async move {
        match manager {
            Some(manager) => manager.follow(&lifecycle, hang_up).await,
            None => future::pending().await,
        }
    })
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => future::pending().await,
    }
}

/// Connects to a socket in the file system, or with an abstract name behind `@`.
fn connect(name: &str) -> std::io::Result<UnixDatagram> {
    let address = match name.strip_prefix('@') {
        Some(name) => unix::SocketAddr::from_abstract_name(name)?,
        None => unix::SocketAddr::from_pathname(name)?,
    };
    let socket = unix::UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

/// A third of the interval in which the manager expects a sign of life from this process.
fn watchdog(env: &BTreeMap<String, String>) -> Option<Duration> {
    let own = std::process::id().to_string();
    if env.get("WATCHDOG_PID").is_some_and(|pid| *pid != own) {
        return None;
    }
    let limit = env.get("WATCHDOG_USEC")?.parse().ok()?;
    let limit = Duration::from_micros(limit) / 3;
    (!limit.is_zero()).then_some(limit)
}

/// The time for one datagram; its receiver is another process of this machine.
const TELL: Duration = Duration::from_secs(1);
/// The time of a reload until it counts as done: longer than the deadlines of the database, and
/// shorter than any watchdog should be.
const RELOAD: Duration = Duration::from_secs(15);
/// The interval of signs of life that nobody expects.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::super::service_manager::*;

    #[test]
    fn a_watchdog_of_this_process_is_fed_three_times_as_often() {
        let env = |pairs: &[(&str, &str)]| {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let own = std::process::id().to_string();
        let limit = ("WATCHDOG_USEC", "3000000");
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog(&env(&[limit])), second);
        assert_eq!(watchdog(&env(&[limit, ("WATCHDOG_PID", &own)])), second);
        assert_eq!(watchdog(&env(&[limit, ("WATCHDOG_PID", "1")])), None);
        for wrong in ["", "0", "-1", "soon"] {
            assert_eq!(watchdog(&env(&[("WATCHDOG_USEC", wrong)])), None, "{wrong}");
        }
        assert_eq!(watchdog(&env(&[])), None);
    }
}
