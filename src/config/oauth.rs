//! Settings of the tenants' authorization servers.
//!
//! Not here: the declaration of one authorization server (`declare/authorization_server`).

use std::time::Duration;

use super::{document::Node, reader::Wrong, sources::Layers};

/// Lifetimes of codes, tokens and keys, and limits of registrations.
#[derive(Clone, Debug)]
pub(crate) struct OauthSettings {
    /// Lifetime of access tokens, at most 15 minutes.
    pub(crate) access: Duration,
    /// Lifetime of authorization codes, at most 10 minutes (RFC 6749, section 4.1.2).
    pub(crate) code: Duration,
    /// Time within which a replayed code does not revoke the grant of its first use.
    pub(crate) replay: Duration,
    /// Time within which a used refresh token yields the same successor again.
    pub(crate) grace: Duration,
    /// Lifetime of an unused refresh token.
    pub(crate) refresh_idle: Duration,
    /// Maximum lifetime of a grant, with refreshes.
    pub(crate) refresh_max: Duration,
    /// Lifetime of a registered client that is never used.
    pub(crate) client_unused: Duration,
    /// Lifetime of a registered client after its last use.
    pub(crate) client_used: Duration,
    /// Maximum number of registered clients of a tenant.
    pub(crate) clients: u32,
    /// Maximum registrations per minute of one address.
    pub(crate) registrations_address: u32,
    /// Maximum registrations per minute for one redirect host.
    pub(crate) registrations_host: u32,
    /// Maximum registrations per minute in total.
    pub(crate) registrations: u32,
    /// Maximum wrong codes, secrets, tokens and passwords per minute of one address.
    pub(crate) failures: u32,
    /// Maximum log-ins, decisions and codes per minute of one address.
    pub(crate) writes: u32,
    /// Lifetime of a browser's log-in.
    pub(crate) login: Duration,
    /// Maximum time from the authorization request to the consent.
    pub(crate) flow: Duration,
    /// Age at which a signing key is rotated; zero is never.
    pub(crate) key_age: Duration,
    /// Time that a signing key is published before its first use.
    pub(crate) key_ahead: Duration,
}

impl OauthSettings {
    /// Reads the keys below `oauth`.
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
            writes: layers.leaf("oauth.writes", count),
            login: layers.leaf("oauth.login", some(YEAR)),
            flow: layers.leaf("oauth.flow", some(Duration::from_hours(1))),
            key_age: layers.leaf("oauth.key_age", Node::duration),
            key_ahead: layers.leaf("oauth.key_ahead", Node::duration),
        }
    }
}

const YEAR: Duration = Duration::from_hours(366 * 24);
