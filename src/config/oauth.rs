//! Settings of the authorization servers of tenants.
//!
//! Not here: what an operator declares for one tenant (`control/builtin`).

use std::time::Duration;

use super::{document::Node, reader::Wrong, sources::Layers};

/// How long what is issued holds, and how much may be asked for.
#[derive(Clone, Debug)]
pub(crate) struct Issuing {
    /// An access token; at most 15 minutes (CONTRACT P91).
    pub(crate) access: Duration,
    /// An authorization code; at most 10 minutes (RFC 6749, section 4.1.2).
    pub(crate) code: Duration,
    /// After how long the replay of a code ends what its first use got.
    pub(crate) replay: Duration,
    /// How long a refresh token that was used gives the same successor again.
    pub(crate) grace: Duration,
    /// A refresh token that is not used.
    pub(crate) refresh_idle: Duration,
    /// A grant, however often it is refreshed.
    pub(crate) refresh_max: Duration,
    /// A registered client that was never used.
    pub(crate) client_unused: Duration,
    /// A registered client, from its last use on.
    pub(crate) client_used: Duration,
    /// Registered clients of one tenant.
    pub(crate) clients: u32,
    /// Registrations a minute of one address.
    pub(crate) registrations_address: u32,
    /// Registrations a minute for one redirect host.
    pub(crate) registrations_host: u32,
    /// Registrations a minute in all.
    pub(crate) registrations: u32,
    /// Wrong codes, secrets, tokens and passwords a minute of one address.
    pub(crate) failures: u32,
    /// How long a browser stays logged in.
    pub(crate) login: Duration,
    /// How long a person may take from the authorization request to the consent.
    pub(crate) flow: Duration,
    /// How old a signing key gets before another takes its place; zero is for ever.
    pub(crate) key_age: Duration,
    /// How long a signing key is published before it signs.
    pub(crate) key_ahead: Duration,
}

impl Issuing {
    /// The keys below `oauth`.
    pub(crate) fn read(layers: &mut Layers) -> Self {
        let some = |max: Duration| {
            move |node: &Node| {
                let read = node.duration()?;
                if read.is_zero() || read > max {
                    let what = format!("{read:?} is not between 1 ms and {max:?}");
                    return Err(Wrong::new(what, "write a duration like \"10m\""));
                }
                Ok(read)
            }
        };
        let count = |node: &Node| node.count(1);
        Self {
            access: layers.leaf("oauth.access", some(Duration::from_mins(15))),
            code: layers.leaf("oauth.code", some(Duration::from_mins(10))),
            replay: layers.leaf("oauth.replay", Node::duration),
            grace: layers.leaf("oauth.grace", some(Duration::from_hours(1))),
            refresh_idle: layers.leaf("oauth.refresh_idle", some(YEAR)),
            refresh_max: layers.leaf("oauth.refresh_max", some(YEAR)),
            client_unused: layers.leaf("oauth.client_unused", some(YEAR)),
            client_used: layers.leaf("oauth.client_used", some(YEAR)),
            clients: layers.leaf("oauth.clients", count),
            registrations_address: layers.leaf("oauth.registrations_address", count),
            registrations_host: layers.leaf("oauth.registrations_host", count),
            registrations: layers.leaf("oauth.registrations", count),
            failures: layers.leaf("oauth.failures", count),
            login: layers.leaf("oauth.login", some(YEAR)),
            flow: layers.leaf("oauth.flow", some(Duration::from_hours(1))),
            key_age: layers.leaf("oauth.key_age", Node::duration),
            key_ahead: layers.leaf("oauth.key_ahead", Node::duration),
        }
    }
}

const YEAR: Duration = Duration::from_hours(366 * 24);
