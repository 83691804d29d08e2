//! Secrets of children: the values in the slots of a server, from the database.
//!
//! Not here: their delivery (`backend/delivery`).

use std::sync::Arc;

use crate::{
    backend::{Delivered, Refused, SecretSource},
    database::{self, HolderAt},
    declare::Holder,
    snapshot::CurrentSnapshot,
};

/// The source of the secrets of children.
pub(crate) fn secret_source(snapshot: Arc<CurrentSnapshot>) -> SecretSource {
    Arc::new(move |server, holder| {
        let (snapshot, slots) = (Arc::clone(&snapshot), server.slots.clone());
        let (tenant, server) = (server.tenant.clone(), server.name.clone());
        let holder = holder.map(str::to_owned);
        Box::pin(async move {
            let of = HolderAt {
                tenant: &tenant,
                server: &server,
                holder: holder.as_deref(),
            };
            let read = async { snapshot.database()?.secrets().values(of).await };
            let mut values = read.await.map_err(|error: database::Error| {
                tracing::warn!(
                    tenant.id = tenant, server.name = server, %error,
                    "the secrets of a child cannot be read"
                );
                Refused::Busy
            })?;
            let mut delivery = Vec::with_capacity(slots.len());
            for (variable, slot) in slots {
                let of = match slot.holder {
                    Holder::Principal => &mut values.own,
                    Holder::Tenant => &mut values.of_tenant,
                };
                let value = of.remove(&variable).ok_or(Refused::Missing)?;
                delivery.push(Delivered {
                    variable,
                    value,
                    form: slot.form,
                });
            }
            Ok(delivery)
        })
    })
}
