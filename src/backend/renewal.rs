//! Renewal of access tokens: of children that run, before their tokens expire and after other replicas got
//! new ones.
//!
//! Not here: the requests to upstreams, and the turns of replicas (`oauth/upstreams`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    StreamExt,
    stream::{self, FuturesUnordered},
};

use super::{
    admission::Refused,
    child::{Entry, Registry},
    delivery::{TokenFor, TokenOf, TokenSource},
};
use crate::{base::Clock, declare::TokenFrom};

/// A tenant and an origin of tokens.
type OriginAt = (String, TokenFrom);

/// Renews the access tokens of children, until it is dropped. Each origin has its own turns, so that one that is
/// slow delays the tokens of no other.
pub(crate) async fn renew_tokens(registry: Arc<Registry>, tokens: TokenSource, clock: Clock) {
    let (mut busy, mut under_way) = (BTreeSet::new(), FuturesUnordered::new());
    loop {
        let looked = tokio::time::timeout(TICK, registry.stale());
        tokio::select! {
            Some(at) = under_way.next() => {
                busy.remove(&at);
            }
            _ = looked => {
                for (at, entries) in due(&registry, clock.now_ms()) {
                    if busy.insert(at.clone()) {
                        under_way.push(renew_all(at, entries, &tokens, &clock));
                    }
                }
            }
        }
    }
}

/// The children whose token is due, by its origin.
fn due(registry: &Registry, now_ms: i64) -> BTreeMap<OriginAt, Vec<Arc<Entry>>> {
    let mut due: BTreeMap<OriginAt, Vec<Arc<Entry>>> = BTreeMap::new();
    for entry in registry.with_tokens() {
        for from in entry.due_tokens(now_ms) {
            let at = (entry.names()[0].to_owned(), from);
            due.entry(at).or_default().push(Arc::clone(&entry));
        }
    }
    due
}

async fn renew_all(
    at: OriginAt,
    entries: Vec<Arc<Entry>>,
    tokens: &TokenSource,
    clock: &Clock,
) -> OriginAt {
    stream::iter(entries)
        .for_each_concurrent(PARALLEL, |entry| renew(entry, &at, tokens, clock))
        .await;
    at
}

async fn renew(entry: Arc<Entry>, (tenant, from): &OriginAt, tokens: &TokenSource, clock: &Clock) {
    let Some(holder) = entry.holder() else {
        return;
    };
    let of = TokenOf {
        tenant: tenant.clone(),
        from: from.clone(),
        holder: holder.to_owned(),
    };
    match tokens(of, TokenFor::Renewal).await {
        Ok(token) => {
            entry.renew(from, &token).await;
            // What another request refreshes, or could not be refreshed, stays due.
            entry.retry_token(from, clock.now_ms() + AGAIN_MS);
        }
        // The next request is told to connect it again.
        Err(Refused::Missing) => entry.drain(),
        Err(_) => entry.retry_token(from, clock.now_ms() + AGAIN_MS),
    }
}

/// The time between two looks at the children.
const TICK: Duration = Duration::from_secs(1);
/// The time between two looks at the token of one child that stays due, in milliseconds.
const AGAIN_MS: i64 = 1_000;
/// The most tokens of one origin that are renewed at a time.
const PARALLEL: usize = 16;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::super::{
        child::{AccessToken, ChildSeats},
        renewal::*,
    };
    use crate::{
        base::Secret, config::Format, declare::Server, manifest::reader::parse, telemetry::Metrics,
    };

    fn server(tenant: &str) -> Arc<Server> {
        let text = format!(
            "tenants: {{{tenant}: {{auth: {{mode: builtin}}, upstreams: {{u: {{issuer: \"https://u.test\", \
             client_id: c}}}}, servers: {{x: {{command: cat, secrets: {{T: {{for: principal, upstream: u}}}}}}}}}}}}"
        );
        let manifest = parse("F", &text, Format::Yaml, &BTreeMap::new()).unwrap();
        manifest.catalog.find(tenant, "x").unwrap().1
    }

    fn token(version: i64) -> AccessToken {
        AccessToken {
            value: Secret::new("t".to_owned()),
            version,
            look_ms: None,
        }
    }

    /// The files of a child are in its own directory, and the task that wrote them is that of all tenants.
    #[test]
    fn tokens_are_written_off_the_runtime() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (seats, _requests) = ChildSeats::new(100);
            let registry = Arc::new(Registry::new(seats, Arc::new(Metrics::new(None).unwrap())));
            let child = registry.add(&server("a"), Some("ada".into()), 0);
            let from = TokenFrom::Upstream("u".to_owned());
            child.started_with(&from, &token(1));
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || wait.recv().is_err());
            let newer = token(2);
            let mut renewed = Box::pin(child.renew(&from, &newer));
            assert!((&mut renewed).now_or_never().is_none());
            drop(go);
            renewed.await;
            assert!(busy.await.unwrap());
        });
    }

    /// The upstream of a tenant that answers nobody must not let the tokens of another tenant expire.
    #[tokio::test]
    async fn a_slow_upstream_delays_no_other() {
        let (seats, _requests) = ChildSeats::new(100);
        let registry = Arc::new(Registry::new(seats, Arc::new(Metrics::new(None).unwrap())));
        let (ask, mut asked) = mpsc::channel(64);
        let mut children = Vec::new();
        let mut start = |tenant: &str, holder: &str| {
            let child = registry.add(&server(tenant), Some(holder.into()), 0);
            child.started_with(
                &TokenFrom::Upstream("u".to_owned()),
                &AccessToken {
                    look_ms: Some(0),
                    ..token(1)
                },
            );
            children.push(child);
        };
        (0..2 * PARALLEL).for_each(|at| start("slow", &format!("p{at}")));
        let tokens: TokenSource = Arc::new(move |of, purpose| {
            assert_eq!(purpose, TokenFor::Renewal, "it waits for no other request");
            let is_slow = of.tenant == "slow";
            ask.try_send(of.tenant).unwrap();
            Box::pin(async move {
                if is_slow {
                    std::future::pending::<()>().await;
                }
                Ok(token(2))
            })
        });
        let story = async {
            for _ in 0..PARALLEL {
                assert_eq!(asked.recv().await.unwrap(), "slow");
            }
            start("quick", "ada");
            assert_eq!(
                asked.recv().await.unwrap(),
                "quick",
                "the other has its turns"
            );
        };
        let renewing = renew_tokens(Arc::clone(&registry), tokens, Clock::system());
        tokio::select! {
            () = renewing => unreachable!("it goes on"),
            told = tokio::time::timeout(TICK * 10, story) => told.unwrap(),
        }
    }
}
