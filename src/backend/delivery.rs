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
    declare::{Launch, Server, SlotForm, TokenFrom},
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
    /// An access token of the person.
    Token(TokenFrom, AccessToken),
}

/// Reads the secrets that a child of a server is started with: those of a holder, and of the tenant alone without
/// one.
///
/// It fails with `Missing` if one that the server needs is not there, and with `Unreadable` if it cannot be read.
pub(crate) type SecretSource = Arc<
    dyn Fn(&Server, Option<&str>) -> BoxFuture<'static, Result<Delivery, Refused>> + Send + Sync,
>;

/// Gives an access token of a person of a tenant, renewed if that is due.
///
/// It fails with `Missing` if the person has none to give, and with `Unreadable` while the service that gives it is away
/// and the token has expired; for a renewal also while another request renews it.
pub(crate) type TokenSource = Arc<
    dyn Fn(TokenOf, TokenFor) -> BoxFuture<'static, Result<AccessToken, Refused>> + Send + Sync,
>;

/// The use of an access token, which decides whether its source waits for another request that renews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenFor {
    /// The start of a child, which waits for it.
    Start,
    /// A child that runs: it is asked for again in a moment, so that nothing has to wait.
    Renewal,
}

/// The person and the origin of an access token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenOf {
    /// The tenant.
    pub(crate) tenant: String,
    /// The origin.
    pub(crate) from: TokenFrom,
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
            SlotValue::Token(from, token) => {
                entry.started_with(&from, &token);
                token.value
            }
        };
        to.insert(variable, value.expose().to_owned());
    }
}
