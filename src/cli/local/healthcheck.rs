//! `lockgate healthcheck`: whether the gateway of a configuration serves, for containers without a
//! shell.
//!
//! Not here: what it answers (`http::ops`).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Args;

use super::runtime::{configuration, said, wait};

/// `lockgate healthcheck`
#[derive(Args)]
pub(crate) struct HealthcheckArgs {
    /// Configuration file
    #[arg(long, value_name = "F")]
    config: Option<PathBuf>,
    /// Any key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Only whether the process answers, also while it cannot serve
    #[arg(long)]
    live: bool,
}

/// Asks the operations listener of the gateway on this machine that has this configuration.
pub(crate) fn healthcheck(args: HealthcheckArgs) -> ExitCode {
    let config = match configuration(args.config, args.set) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let Some(listen) = config.ops.listen.filter(|listen| listen.port() != 0) else {
        eprintln!("ops.listen: names no port to ask; set HOST:PORT");
        return ExitCode::from(2);
    };
    let path = if args.live { "livez" } else { "readyz" };
    let url = format!("http://{}/{path}", own(listen));
    match wait(ask(&url)) {
        Ok(Ok(answer)) => said(answer + "\n"),
        Ok(Err(error)) => {
            eprintln!("lockgate: {url}: {error}");
            ExitCode::FAILURE
        }
        Err(code) => code,
    }
}

/// The address by which this machine reaches a listener.
fn own(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// The answer, or the reason why it is none that counts.
async fn ask(url: &str) -> Result<String, String> {
    let client = reqwest::Client::builder()
        .tls_certs_only([])
        .no_proxy()
        .timeout(LIMIT)
        .build();
    let client = client.map_err(|error| error.to_string())?;
    let answer = client.get(url).send().await;
    let answer = answer.map_err(|error| {
        if error.is_timeout() {
            format!("no answer within {LIMIT:?}")
        } else {
            "no connection".to_owned()
        }
    })?;
    let status = answer.status();
    let body = answer.text().await.unwrap_or_default();
    if status.is_success() {
        Ok(body)
    } else {
        Err(format!("{status}: {body}"))
    }
}

/// The time limit of an answer: less than an orchestrator waits.
const LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::super::healthcheck::*;

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        for (listen, wanted) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("10.0.0.7:9090", "10.0.0.7:9090"),
        ] {
            assert_eq!(own(listen.parse().unwrap()).to_string(), wanted);
        }
    }
}
