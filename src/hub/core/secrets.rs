//! Secrets of children: the values in the slots of a server, from the database, from upstreams and from
//! identity providers.
//!
//! Not here: their delivery (`backend/delivery`).

use std::sync::Arc;

use crate::{
    backend::{Delivered, Refused, SecretSource, SlotValue, TokenFor, TokenOf, TokenSource},
    database::{self, HolderAt},
    declare::Holder,
    snapshot::CurrentSnapshot,
};

/// The source of the secrets of children.
pub(crate) fn secret_source(snapshot: Arc<CurrentSnapshot>, tokens: TokenSource) -> SecretSource {
    Arc::new(move |server, holder| {
        let (snapshot, slots) = (Arc::clone(&snapshot), server.slots.clone());
        let (tenant, server) = (server.tenant.clone(), server.name.clone());
        let (holder, tokens) = (holder.map(str::to_owned), Arc::clone(&tokens));
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
                Refused::Unreadable
            })?;
            let mut delivery = Vec::with_capacity(slots.len());
            for (variable, slot) in slots {
                let value = match (slot.token, slot.holder) {
                    (Some(from), _) => {
                        let of = TokenOf {
                            tenant: tenant.clone(),
                            from: from.clone(),
                            holder: holder.clone().ok_or(Refused::Missing)?,
                        };
                        let token = tokens(of, TokenFor::Start).await?;
                        Some(SlotValue::Token(from, token))
                    }
                    (None, Holder::Principal) => values.own.remove(&variable).map(SlotValue::Set),
                    (None, Holder::Tenant) => {
                        values.of_tenant.remove(&variable).map(SlotValue::Set)
                    }
                };
                delivery.push(Delivered {
                    variable,
                    value: value.ok_or(Refused::Missing)?,
                    form: slot.form,
                });
            }
            Ok(delivery)
        })
    })
}
