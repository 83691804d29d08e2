//! Renewal of access tokens: of children that run, before their tokens expire and after other replicas got
//! new ones.
//!
//! Not here: the requests to upstreams, and the turns of replicas (`oauth/providers`).

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};

use super::{
    admission::Refused,
    child::{Entry, Registry},
    delivery::{TokenOf, TokenSource},
};
use crate::base::Clock;

/// Renews the access tokens of children, until it is dropped.
pub(crate) async fn renew_tokens(registry: Arc<Registry>, tokens: TokenSource, clock: Clock) {
    loop {
        _ = tokio::time::timeout(TICK, registry.stale()).await;
        let now_ms = clock.now_ms();
        let due = registry.with_tokens().into_iter().flat_map(|entry| {
            let upstreams = entry.due_tokens(now_ms).into_iter();
            upstreams.map(move |upstream| (Arc::clone(&entry), upstream))
        });
        // Side by side, so that an upstream that is away delays no other.
        stream::iter(due)
            .for_each_concurrent(PARALLEL, |(entry, upstream)| {
                renew(entry, upstream, &tokens, &clock)
            })
            .await;
    }
}

async fn renew(entry: Arc<Entry>, upstream: String, tokens: &TokenSource, clock: &Clock) {
    let ([tenant, _], Some(holder)) = (entry.names(), entry.holder()) else {
        return;
    };
    let of = TokenOf {
        tenant: tenant.to_owned(),
        upstream: upstream.clone(),
        holder: holder.to_owned(),
    };
    match tokens(of).await {
        Ok(token) => {
            entry.renew(&upstream, &token);
            // What another replica refreshes, or could not be refreshed, stays due.
            entry.retry_token(&upstream, clock.now_ms() + AGAIN_MS);
        }
        // The next request is told to connect it again.
        Err(Refused::Missing) => entry.drain(),
        Err(_) => entry.retry_token(&upstream, clock.now_ms() + AGAIN_MS),
    }
}

/// The time between two looks at the children.
const TICK: Duration = Duration::from_secs(1);
/// The time between two looks at the token of one child that stays due, in milliseconds.
const AGAIN_MS: i64 = 1_000;
/// The most tokens that are renewed at a time.
const PARALLEL: usize = 16;
