//! Delivery of secrets to a child: read when it starts, after its entry in the registry, so that a change
//! is either read or finds the entry to restart.
//!
//! Not here: the source of the values (`hub/core/secrets`), and the files (`child/launcher`).

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{
    admission::Refused,
    child::{AccessToken, Entry},
};
use crate::{
    base::Secret,
    declare::{Launch, Server, SlotForm},
};

/// The secrets that one child is started with.
pub(crate) type Delivery = Vec<Delivered>;

/// A secret for a child.
pub(crate) struct Delivered {
    /// The variable that has it.
    pub(crate) variable: String,
    /// The value.
    pub(crate) value: SlotValue,
    /// The form in which the child gets it.
    pub(crate) form: SlotForm,
}

/// The value of a slot.
pub(crate) enum SlotValue {
    /// One that was set.
    Set(Secret),
    /// The access token of an upstream.
    Token(String, AccessToken),
}

/// Reads the secrets that a child of a server is started with: those of a holder, and of the tenant alone without
/// one.
///
/// It fails with `Missing` if one that the server needs is not there.
pub(crate) type SecretSource = Arc<
    dyn Fn(&Server, Option<&str>) -> BoxFuture<'static, Result<Delivery, Refused>> + Send + Sync,
>;

/// Gives the access token of a person of a tenant at an upstream, refreshed if that is due.
///
/// It fails with `Missing` without a connection, and with `Busy` while the upstream is away and the token has
/// expired.
pub(crate) type TokenSource =
    Arc<dyn Fn(TokenOf) -> BoxFuture<'static, Result<AccessToken, Refused>> + Send + Sync>;

/// The person and the upstream of an access token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenOf {
    /// The tenant.
    pub(crate) tenant: String,
    /// The upstream.
    pub(crate) upstream: String,
    /// The subject of the person.
    pub(crate) holder: String,
}

/// Adds secrets to a launch specification.
pub(super) fn deliver(delivery: Delivery, launch: &mut Launch, entry: &Entry) {
    for Delivered {
        variable,
        value,
        form,
    } in delivery
    {
        let to = match form {
            SlotForm::Variable => &mut launch.env,
            SlotForm::File => &mut launch.files,
        };
        let value = match value {
            SlotValue::Set(value) => value,
            SlotValue::Token(upstream, token) => {
                entry.started_with(&upstream, &token);
                token.value
            }
        };
        to.insert(variable, value.expose().to_owned());
    }
}
