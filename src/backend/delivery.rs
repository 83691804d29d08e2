//! Delivery of secrets to a child: read when it starts, after its entry in the registry, so that a change
//! is either read or finds the entry to restart.
//!
//! Not here: the source of the values (`hub/core/secrets`), and the files (`child/launcher`).

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::admission::Refused;
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
    pub(crate) value: Secret,
    /// The form in which the child gets it.
    pub(crate) form: SlotForm,
}

/// Reads the secrets that a child of a server is started with: those of a holder, and of the tenant alone without
/// one.
///
/// It fails with `Missing` if one that the server needs is not there.
pub(crate) type SecretSource = Arc<
    dyn Fn(&Server, Option<&str>) -> BoxFuture<'static, Result<Delivery, Refused>> + Send + Sync,
>;

/// Adds secrets to a launch specification.
pub(super) fn deliver(delivery: Delivery, launch: &mut Launch) {
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
        to.insert(variable, value.expose().to_owned());
    }
}
