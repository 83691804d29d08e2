//! Client ID metadata documents (draft-ietf-oauth-client-id-metadata-document): the client id is
//! the URL of the client's metadata.
//!
//! A document is cached as long as its server allows; errors are not cached, as the draft requires. While the
//! site of a well-known client does not answer, a document that is known here serves.
//! Not here: lookup of clients (`client`).

use std::{
    hash::RandomState,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use moka::{Expiry, future::Cache};
use serde_json::Value;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use url::Url;

use super::client_id;
use super::metadata::{ClientAuthMethod, ClientMetadata, Keys, MetadataError};
use crate::{
    auth::{KeySet, jose::members_of_anybody},
    base::{
        Outbound, OutboundError, Unexpected,
        budget::{Budget, Shares},
        sha256,
    },
    config::KnownClients,
    oauth::base::{Throttle, throttle::account},
    snapshot::CurrentSnapshot,
};

/// The request for which a document or a key set is fetched.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    /// Its tenant.
    pub(crate) tenant: &'a str,
    /// Its client address.
    pub(crate) from: Option<IpAddr>,
    /// The way to the store, which knows the clients with grants.
    pub(crate) snapshot: &'a CurrentSnapshot,
}

/// Cached documents and key sets of clients; they are public, so that all tenants share them.
pub(crate) struct Documents {
    outbound: Outbound,
    /// The client of probes, whose sites the operator names: silent name servers of strangers do not hold it up.
    prober: Outbound,
    /// Documents for sites that do not answer, and of which no document was fetched.
    known: KnownClients,
    fresh: Cache<String, CachedDocument>,
    /// The last valid documents, used while their servers are unreachable.
    last: Cache<String, LastDocument>,
    /// The last key sets.
    keys: Cache<String, KnownKeys>,
    /// Key sets that are being got.
    anew: Cache<String, Arc<KeySet>>,
    /// Concurrent fetches, shared out to tenants: slow sites and silent name servers of one must not keep clients of
    /// another out. Those of clients with grants have a share of their own.
    fetches: Shares<(Arc<str>, Purse), RandomState>,
    /// The same, shared out to the addresses that cause them there: a few must not have all.
    callers: Shares<(Arc<str>, Purse, u128), RandomState>,
    /// Limits fetches per minute, tenant and host, so that the gateway cannot be used to flood a host, and those that
    /// one address causes.
    hosts: Throttle,
    /// Whether documents can be fetched, as far as that was found out.
    is_reachable: AtomicBool,
    /// Wakes the next probe: a site did not answer.
    doubt: Notify,
}

/// A valid document.
#[derive(Debug)]
pub(crate) struct Document {
    /// Its metadata.
    pub(crate) metadata: ClientMetadata,
    /// The SHA-256 of its bytes.
    pub(crate) digest: [u8; 32],
    /// The day on which its site had it, if it was not fetched.
    pub(crate) date: Option<Arc<str>>,
}

impl Document {
    fn has_keys(&self) -> bool {
        matches!(self.metadata.keys, Some(Keys::Inline(_)))
    }

    /// The longest time for which it serves before its site is asked again.
    fn longest(&self) -> Duration {
        if self.has_keys() { KEYS } else { FRESH_MAX }
    }
}

/// Reason why no document is available; the texts are for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DocumentError {
    /// The URL or its document is invalid.
    Invalid(&'static str),
    /// The document cannot be fetched at the moment.
    Unavailable(&'static str),
}

/// The budget of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Purse {
    /// That of anybody's requests, of which an address has a part.
    Open,
    /// That of clients with grants, of which an address has a part as well.
    Granted,
}

/// The last key set of a client.
#[derive(Clone)]
struct KnownKeys {
    set: Arc<KeySet>,
    got: tokio::time::Instant,
}

/// The last document of a client.
#[derive(Clone)]
struct LastDocument {
    document: Arc<Document>,
    got: tokio::time::Instant,
}

impl LastDocument {
    /// Reports whether it serves while its site cannot be asked. Keys in it serve no longer than those at a `jwks_uri`: its
    /// client may have taken one away, because it was stolen.
    fn serves(&self, away: &DocumentError) -> bool {
        let keys = if *away == BUSY { BUSY_KEYS } else { LAST_KEYS };
        !self.document.has_keys() || self.got.elapsed() < keys
    }
}

#[derive(Clone)]
struct CachedDocument {
    document: Arc<Document>,
    fresh: Duration,
}

/// Expiry as the server of each document sets it.
struct Freshness;

impl Expiry<String, CachedDocument> for Freshness {
    fn expire_after_create(
        &self,
        _: &String,
        cached: &CachedDocument,
        _: Instant,
    ) -> Option<Duration> {
        Some(cached.fresh)
    }
}

impl Documents {
    /// Makes an empty cache that fetches through `outbound`. Documents count as reachable, or not before a
    /// probe.
    pub(crate) fn new(outbound: &Outbound, known: KnownClients, is_probed: bool) -> Self {
        let fetches = Budget::new(FETCHES);
        Self {
            outbound: outbound.of_strangers(),
            prober: outbound.clone(),
            known,
            fresh: Cache::builder()
                .max_capacity(DOCUMENTS)
                .expire_after(Freshness)
                .build(),
            last: Cache::builder()
                .max_capacity(DOCUMENTS)
                .time_to_live(LAST)
                .build(),
            keys: Cache::builder()
                .max_capacity(DOCUMENTS)
                .time_to_live(LAST_KEYS)
                .build(),
            anew: Cache::new(DOCUMENTS),
            fetches: Shares::new(Arc::clone(&fetches)),
            callers: Shares::new(fetches),
            hosts: Throttle::new(),
            is_reachable: AtomicBool::new(!is_probed),
            doubt: Notify::new(),
        }
    }

    /// Reports whether documents can be fetched: where they cannot, clients that are told that they may name
    /// theirs would end at an error instead of registering.
    pub(crate) fn are_reachable(&self) -> bool {
        self.is_reachable.load(Ordering::Relaxed)
    }

    /// Asks `sites` until one answers, with any status; returns why none does.
    pub(crate) async fn probe(&self, sites: &[String]) -> Option<OutboundError> {
        let mut why = None;
        for site in sites {
            why = self.prober.ask(site).await.err();
            if why.is_none() {
                break;
            }
        }
        self.is_reachable.store(why.is_none(), Ordering::Relaxed);
        why
    }

    /// Waits until it is time for another probe: sooner if a site does not answer.
    pub(crate) async fn next_probe(&self) {
        sleep(PROBE_PAUSE).await;
        _ = timeout(PROBE_INTERVAL, self.doubt.notified()).await;
    }

    /// Returns the document at a client id. Concurrent callers share one fetch.
    pub(crate) async fn find(
        &self,
        asker: Asker<'_>,
        id: &str,
    ) -> Result<Arc<Document>, DocumentError> {
        let url = self.check(id)?;
        match self.fresh_or_fetched(asker, id, &url).await {
            Ok(document) => Ok(document),
            // A client keeps its tokens while its own site is unreachable.
            Err(away @ DocumentError::Unavailable(_)) => match self.last.get(id).await {
                Some(last) if last.serves(&away) => Ok(last.document),
                Some(_) => Err(away),
                None => self.known(id, &away).await?.ok_or(away),
            },
            Err(wrong) => {
                self.last.invalidate(id).await;
                Err(wrong)
            }
        }
    }

    async fn fresh_or_fetched(
        &self,
        asker: Asker<'_>,
        id: &str,
        url: &Url,
    ) -> Result<Arc<Document>, DocumentError> {
        if let Some(cached) = self.fresh.get(id).await {
            return Ok(cached.document);
        }
        // Not within the fetch, which others share: one that has no budget must not have it fail for them.
        let purse = self.purse(asker, (id, url)).await?;
        let fetch = async {
            let fetched = self.fetch((asker, purse), url).await?;
            // Its day begins here, and not at each use.
            let last = LastDocument {
                document: Arc::clone(&fetched.document),
                got: tokio::time::Instant::now(),
            };
            self.last.insert(id.to_owned(), last).await;
            Ok::<_, DocumentError>(fetched)
        };
        let fetched = self.fresh.try_get_with_by_ref(id, fetch).await;
        let fetched = fetched.map_err(|error| DocumentError::clone(&error));
        Ok(fetched?.document)
    }

    /// Returns the known document of a client, and keeps it for the other steps of a log-in, each of which would
    /// wait for the site. Where one tenant may not ask the site any more, others may.
    async fn known(
        &self,
        id: &str,
        away: &DocumentError,
    ) -> Result<Option<Arc<Document>>, DocumentError> {
        let Some(text) = self.known.documents.get(id) else {
            return Ok(None);
        };
        let read = read(id, text.as_bytes()).map_err(DocumentError::Invalid)?;
        let document = Arc::new(Document {
            date: Some(Arc::clone(&self.known.date)),
            ..read
        });
        if *away != BUSY {
            let cached = CachedDocument {
                document: Arc::clone(&document),
                fresh: KNOWN,
            };
            self.fresh.insert(id.to_owned(), cached).await;
        }
        Ok(Some(document))
    }

    /// Returns the key set at the `jwks_uri` of a client. Concurrent callers share one fetch. The last set serves while the
    /// site does not answer, so that its clients go on.
    pub(crate) async fn keys(
        &self,
        asker: Asker<'_>,
        (client, url): (&str, &str),
    ) -> Result<Arc<KeySet>, DocumentError> {
        let known = self.keys.get(url).await;
        if let Some(known) = &known
            && known.got.elapsed() < KEYS
        {
            return Ok(Arc::clone(&known.set));
        }
        match (self.keys_anew(asker, (client, url)).await, known) {
            (Err(away @ DocumentError::Unavailable(_)), Some(known)) => {
                // Others can use up the budget: a key that its client has taken away is not theirs for long.
                let is_old = away == BUSY && known.got.elapsed() >= BUSY_KEYS;
                if is_old { Err(away) } else { Ok(known.set) }
            }
            (got, _) => got,
        }
    }

    /// Returns the key set at the `jwks_uri` of a client as it is now. The one before stays until another is got:
    /// anybody can name a key that is not in it.
    pub(crate) async fn keys_anew(
        &self,
        asker: Asker<'_>,
        (client, url): (&str, &str),
    ) -> Result<Arc<KeySet>, DocumentError> {
        let parsed = keys_url(url)?;
        let purse = self.purse(asker, (client, &parsed)).await?;
        // Concurrent callers share one fetch and its failure; later ones do not.
        let fetched = self
            .anew
            .try_get_with_by_ref(url, self.fetch_keys((asker, purse), &parsed));
        let fetched = fetched.await;
        self.anew.invalidate(url).await;
        let set = fetched.map_err(|error| DocumentError::clone(&error))?;
        let known = KnownKeys {
            set: Arc::clone(&set),
            got: tokio::time::Instant::now(),
        };
        self.keys.insert(url.to_owned(), known).await;
        Ok(set)
    }

    async fn fetch_keys(
        &self,
        by: (Asker<'_>, Purse),
        url: &Url,
    ) -> Result<Arc<KeySet>, DocumentError> {
        let fetched = self.get(by, url, KEYS_MAX).await?;
        let set = KeySet::parse_of_anybody(&fetched.body)
            .map_err(|_| DocumentError::Invalid("what is at jwks_uri is no key set"))?;
        Ok(Arc::new(set))
    }

    /// Checks the syntax of a client id, and that its URL may be asked.
    fn check(&self, id: &str) -> Result<Url, DocumentError> {
        let url = client_id::parse(id).map_err(DocumentError::Invalid)?;
        let wrong = "the client id is a URL that may not be asked";
        let checked = self.outbound.check(&url);
        checked
            .map(|()| url)
            .map_err(|_| DocumentError::Invalid(wrong))
    }

    async fn fetch(
        &self,
        by: (Asker<'_>, Purse),
        url: &Url,
    ) -> Result<CachedDocument, DocumentError> {
        let fetched = self.get(by, url, DOCUMENT_MAX).await?;
        let document = read(url.as_str(), &fetched.body).map_err(DocumentError::Invalid)?;
        Ok(CachedDocument {
            // Without a header the document may change at any time.
            fresh: fetched.fresh.unwrap_or_default().min(document.longest()),
            document: Arc::new(document),
        })
    }

    /// Returns the budget that has something left for a fetch of a client: the one of all, unless the address has had
    /// its part or strangers have used it or its turns up, and then that of clients with grants.
    async fn purse(
        &self,
        asker: Asker<'_>,
        (client, url): (&str, &Url),
    ) -> Result<Purse, DocumentError> {
        let mut open = of_anybody(asker, url.host_str().unwrap_or_default()).into_iter();
        let has_turn = self.turns((asker, Purse::Open)).has_room(1);
        if has_turn && open.all(|(key, bound)| self.hosts.check(&key, bound).is_ok()) {
            return Ok(Purse::Open);
        }
        // Only now, so that the database is not asked at each fetch.
        let has_grant = match asker.snapshot.database() {
            Ok(store) => store.grants().has_any(asker.tenant, client).await,
            Err(failure) => Err(failure),
        };
        // While the database is away there are no tokens either.
        let is_granted = has_grant.unwrap_or(false);
        is_granted.then_some(Purse::Granted).ok_or(BUSY)
    }

    /// Returns the share of the concurrent fetches that an address has at a tenant.
    fn turns(&self, (asker, purse): (Asker<'_>, Purse)) -> Arc<Budget> {
        let tenant = Arc::<str>::from(asker.tenant);
        let caller = (Arc::clone(&tenant), purse, account(asker.from));
        let of_tenant = || self.fetches.of(&(tenant, purse));
        self.callers.below(of_tenant, &caller)
    }

    /// Draws a fetch from a budget that had something left.
    fn spend(&self, (asker, purse): (Asker<'_>, Purse), host: &str) -> Result<(), Duration> {
        let keys = match purse {
            Purse::Open => of_anybody(asker, host),
            Purse::Granted => of_grants(asker, host),
        };
        let mut keys = keys.iter();
        keys.try_for_each(|(key, bound)| self.hosts.spend(key, *bound))
    }

    async fn get(
        &self,
        by: (Asker<'_>, Purse),
        url: &Url,
        max: usize,
    ) -> Result<crate::base::Document, DocumentError> {
        let host = url.host_str().unwrap_or_default();
        self.spend(by, host).map_err(|_| BUSY)?;
        let turn = self.turns(by).draw(1).ok_or(BUSY)?;
        let fetched = self.outbound.document(url.as_str(), max, turn);
        fetched.await.map_err(|refused| {
            tracing::info!(url.domain = host, why = %refused, "a client's document was not got");
            match refused {
                OutboundError::Unconnected(_) | OutboundError::Unreachable(_) => {
                    self.doubt.notify_one();
                    DocumentError::Unavailable("the client's site does not answer")
                }
                OutboundError::Url(_) => DocumentError::Invalid(ABSENT),
                OutboundError::Response(unexpected) => DocumentError::Invalid(unfit(unexpected)),
            }
        })
    }
}

/// The budgets of anybody's fetch, with their bounds: of the address, and of the host.
fn of_anybody<'k>(asker: Asker<'k>, host: &'k str) -> [(FetchKey<'k>, u32); 2] {
    let of_address = ("address", asker.tenant, "", account(asker.from));
    let of_host = ("host", asker.tenant, host, 0);
    [(of_address, ADDRESS_FETCHES), (of_host, HOST_FETCHES)]
}

/// The same of a fetch for a client with grants, which anybody can name.
fn of_grants<'k>(asker: Asker<'k>, host: &'k str) -> [(FetchKey<'k>, u32); 2] {
    let of_address = ("granted-of", asker.tenant, host, account(asker.from));
    let of_host = ("granted", asker.tenant, host, 0);
    [(of_address, ADDRESS_GRANTED), (of_host, HOST_FETCHES)]
}

/// What a budget of fetches is of: its kind, the tenant, the host, and the account of the address.
type FetchKey<'k> = (&'static str, &'k str, &'k str, u128);

fn keys_url(url: &str) -> Result<Url, DocumentError> {
    Url::parse(url).map_err(|_| DocumentError::Invalid("jwks_uri is no URL"))
}

/// Tells the makers of a client why the answer of its site is not taken.
fn unfit(answer: Unexpected) -> &'static str {
    match answer {
        Unexpected::Redirect(_) => {
            "the client's site answers with a redirect, which is not followed"
        }
        Unexpected::MediaType => {
            "the client's site answers with another type than application/json"
        }
        Unexpected::Size(_) => {
            "the client's site answers with more bytes than are read \
             (10,240 of a document, 65,536 of keys)"
        }
        Unexpected::Status(_) | Unexpected::Foreign(_) => ABSENT,
    }
}

/// Parses a document (draft, section 4).
fn read(id: &str, bytes: &[u8]) -> Result<Document, &'static str> {
    let what = "the client's document is no JSON object, has a name twice, or too many objects";
    let all = members_of_anybody(bytes).ok_or(what)?;
    if all.get("client_id").and_then(Value::as_str) != Some(id) {
        return Err("the client's document is about another client");
    }
    if all.keys().any(|name| name.starts_with("client_secret")) {
        return Err("the client's document has a secret, which everybody can read");
    }
    let metadata =
        ClientMetadata::read(&all, ClientAuthMethod::None).map_err(|wrong| match wrong {
            MetadataError::RedirectUri(what) | MetadataError::Metadata(what) => what,
        })?;
    // A public document cannot keep a secret.
    if metadata.method.has_secret() {
        return Err("the client's document asks for a secret");
    }
    // 2025-11-25 authorization, "Client ID Metadata Documents".
    if metadata.name.is_none() {
        return Err("the client's document has no client_name");
    }
    Ok(Document {
        metadata,
        digest: sha256(bytes),
        date: None,
    })
}

/// Maximum cached documents.
const DOCUMENTS: u64 = 1000;
/// Maximum size of a document in bytes; the draft recommends 5 KiB.
const DOCUMENT_MAX: usize = 10 << 10;
/// Maximum size of a key set in bytes.
const KEYS_MAX: usize = 64 << 10;
/// Upper bound of a server's caching header, for a document without keys: half of the day for which a document serves, so
/// that there is a rest of it for a site that does not answer.
const FRESH_MAX: Duration = Duration::from_hours(12);
/// Time for which the last valid document without keys serves while its server is unreachable.
const LAST: Duration = Duration::from_hours(24);
/// Time for which a known document serves before its site is asked again.
const KNOWN: Duration = Duration::from_mins(1);
/// Time after which cached keys, and documents with keys, are got again.
const KEYS: Duration = Duration::from_mins(5);
/// Time for which keys serve while there is no budget for others.
const BUSY_KEYS: Duration = Duration::from_mins(15);
/// Time for which the last keys serve while their site does not answer.
const LAST_KEYS: Duration = Duration::from_hours(1);
/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_mins(10);
/// Shortest time between two of them.
const PROBE_PAUSE: Duration = Duration::from_secs(5);
/// Maximum concurrent fetches, each until its lookup is over as well.
const FETCHES: u64 = 64;
/// Maximum fetches per minute from one host, for one tenant: as many by anybody, and as many for clients with grants.
const HOST_FETCHES: u32 = 150;
/// Maximum fetches per minute from one host for clients with grants that one address causes at a tenant.
const ADDRESS_GRANTED: u32 = HOST_FETCHES / 4;
/// Maximum fetches per minute by anybody from one address at a tenant.
const ADDRESS_FETCHES: u32 = 60;
/// The reason against a site that has no document.
const ABSENT: &str = "the client's site does not have the document";
/// The refusal of a fetch for which no budget has anything left.
const BUSY: DocumentError = DocumentError::Unavailable("too many documents are asked for");

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        runtime,
        task::spawn_blocking,
    };

    use super::*;
    use crate::{declare::Catalog, oauth::clients::redirect::matches_registered};

    const ID: &str = "https://app.test/client.json";

    fn document() -> Value {
        json!({"client_id": ID, "client_name": "App", "redirect_uris": ["http://127.0.0.1/cb"]})
    }

    #[test]
    fn documents_are_validated() {
        let good = document().to_string();
        let read_one = read(ID, good.as_bytes()).unwrap();
        assert_eq!(read_one.metadata.method, ClientAuthMethod::None);
        let spaced = read(ID, good.replace(',', ", ").as_bytes()).unwrap();
        assert_ne!(spaced.digest, read_one.digest, "any change is one");
        for (name, value) in [
            ("client_id", json!("https://app.test/client.json/")),
            ("client_id", json!("https://APP.test/client.json")),
            ("client_id", json!(null)),
            ("client_secret", json!("s")),
            ("client_secret_expires_at", json!(0)),
            ("token_endpoint_auth_method", json!("client_secret_basic")),
            ("token_endpoint_auth_method", json!("client_secret_post")),
            ("token_endpoint_auth_method", json!("private_key_jwt")),
            ("redirect_uris", json!([])),
            ("redirect_uris", json!(["http://app.test/cb"])),
            ("client_name", json!("")),
            ("response_types", json!(["token"])),
        ] {
            let mut wrong = document();
            wrong[name] = value.clone();
            assert!(
                read(ID, wrong.to_string().as_bytes()).is_err(),
                "{name}: {value}"
            );
        }
        for text in ["", "[]", "null", "{", "\"x\""] {
            assert!(read(ID, text.as_bytes()).is_err(), "{text}");
        }
    }

    /// Each shipped document is one that would be taken from its site, with the ports that its client uses.
    #[tokio::test]
    async fn shipped_documents_are_clients() {
        let known = KnownClients::shipped();
        let documents = Documents::new(&Outbound::new(Vec::new()), known.clone(), false);
        for (id, text) in known.documents.iter() {
            documents.check(id).unwrap();
            let document = read(id, text.as_bytes()).unwrap();
            assert_eq!(document.metadata.method, ClientAuthMethod::None, "{id}");
        }
        for (id, uri) in [
            (
                "https://claude.ai/oauth/claude-code-client-metadata",
                "http://localhost:54321/callback",
            ),
            (
                "https://claude.ai/oauth/mcp-oauth-client-metadata",
                "https://claude.ai/api/mcp/auth_callback",
            ),
            (
                "https://vscode.dev/oauth/client-metadata.json",
                "http://127.0.0.1:33418/",
            ),
            (
                "https://chatgpt.com/oauth/codex/client.json",
                "http://127.0.0.1:1455/callback",
            ),
            (
                "https://zed.dev/oauth/client-metadata.json",
                "http://127.0.0.1:8000/callback",
            ),
            (
                "https://goose-docs.ai/oauth/client-metadata.json",
                "http://[::1]:9/oauth_callback",
            ),
        ] {
            let document = documents.known(id, &BUSY).await.unwrap().unwrap();
            assert!(
                documents.fresh.get(id).await.is_none(),
                "one tenant is busy"
            );
            let away = DocumentError::Unavailable("away");
            let at_all = documents.known(id, &away).await.unwrap().unwrap();
            assert!(documents.fresh.get(id).await.is_some());
            assert_eq!(at_all.digest, document.digest);
            let mut own = document.metadata.redirect_uris.iter();
            assert!(own.any(|own| matches_registered(own, uri)), "{id} {uri}");
            assert_eq!(document.date.as_deref(), Some("2026-09-01"));
        }
    }

    /// Each use within its freshness began its day anew, so that it served for two.
    #[tokio::test]
    async fn the_day_of_a_document_begins_with_its_fetch() {
        let documents = Documents::new(&Outbound::new(Vec::new()), KnownClients::default(), false);
        let snapshot = CurrentSnapshot::fixed(Catalog::default());
        let asker = Asker {
            tenant: "a",
            from: None,
            snapshot: &snapshot,
        };
        let read = read(ID, document().to_string().as_bytes()).unwrap();
        let cached = CachedDocument {
            document: Arc::new(read),
            fresh: FRESH_MAX,
        };
        documents.fresh.insert(ID.to_owned(), cached).await;
        documents.find(asker, ID).await.unwrap();
        assert!(documents.last.get(ID).await.is_none());
        // Whatever its site allows, there is a rest of the day for a site that does not answer.
        assert_eq!(FRESH_MAX * 2, LAST);
    }

    /// One address used up what is kept for clients with grants.
    #[tokio::test]
    async fn an_address_has_a_part_of_the_fetches_for_clients_with_grants() {
        let documents = Documents::new(&Outbound::new(Vec::new()), KnownClients::default(), false);
        let snapshot = CurrentSnapshot::fixed(Catalog::default());
        let from = |last: u8| Asker {
            tenant: "a",
            from: Some([192, 0, 2, last].into()),
            snapshot: &snapshot,
        };
        let spent = |last: u8| {
            let mut count = 0;
            while documents.spend((from(last), Purse::Granted), "h").is_ok() {
                count += 1;
            }
            count
        };
        let parts: Vec<u32> = (0..6).map(spent).collect();
        assert_eq!(parts, [37, 37, 37, 37, 2, 0]);
    }

    /// Silent name servers, which hold a lookup for longer than its fetch, took the lookups of all tenants.
    #[test]
    fn a_lookup_that_goes_on_holds_the_turn_of_its_tenant() {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build();
        runtime.unwrap().block_on(async {
            let outbound = Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]);
            let documents = Documents::new(&outbound, KnownClients::default(), false);
            let snapshot = CurrentSnapshot::fixed(Catalog::default());
            let asker = Asker {
                tenant: "a",
                from: None,
                snapshot: &snapshot,
            };
            let (answer, silence) = std::sync::mpsc::sync_channel::<()>(1);
            // The only thread for lookups.
            let silent = spawn_blocking(move || silence.recv());
            let url = Url::parse("http://localhost:9/client.json").unwrap();
            let got = documents.get((asker, Purse::Open), &url, DOCUMENT_MAX);
            let away = DocumentError::Unavailable("the client's site does not answer");
            assert_eq!(got.await.unwrap_err(), away);
            let share = documents.fetches.of(&("a".into(), Purse::Open));
            assert_eq!(share.used(), 1);
            drop(answer);
            assert!(silent.await.unwrap().is_err());
            // It is the next in line behind the lookup.
            spawn_blocking(|| ()).await.unwrap();
            assert_eq!(share.used(), 0);
        });
    }

    /// Two addresses held all fetches of a tenant, also those of its clients with grants.
    #[tokio::test]
    async fn strangers_leave_fetches_to_other_addresses_and_to_clients_with_grants() {
        let documents = Documents::new(&Outbound::new(Vec::new()), KnownClients::default(), false);
        let snapshot = CurrentSnapshot::fixed(Catalog::default());
        let at = |tenant: &'static str, last: u8| Asker {
            tenant,
            from: Some([192, 0, 2, last].into()),
            snapshot: &snapshot,
        };
        let drawn = |asker: Asker<'_>, purse: Purse| {
            let share = documents.turns((asker, purse));
            std::iter::from_fn(|| share.draw(1)).collect::<Vec<_>>()
        };
        let first = drawn(at("a", 1), Purse::Open);
        let second = drawn(at("a", 2), Purse::Open);
        assert_eq!((first.len(), second.len()), (21, 7));
        let url = Url::parse(ID).unwrap();
        let purse = async |last: u8| documents.purse(at("a", last), (ID, &url)).await;
        assert_eq!(purse(1).await, Err(BUSY));
        assert_eq!(purse(3).await, Ok(Purse::Open));
        let others = (3..9).map(|last| drawn(at("a", last), Purse::Open));
        let others: Vec<_> = others.collect();
        assert_eq!(others.iter().map(Vec::len).sum::<usize>(), 3);
        assert_eq!(purse(9).await, Err(BUSY));
        assert_eq!(drawn(at("a", 1), Purse::Granted).len(), 11);
        assert_eq!(drawn(at("b", 1), Purse::Open).len(), 11);
        drop(first);
        assert_eq!(purse(9).await, Ok(Purse::Open));
    }

    /// Silent name servers of one tenant's strangers turned documents off at all tenants.
    #[tokio::test]
    async fn a_probe_waits_for_no_lookup_of_strangers() {
        let outbound = Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let documents = Documents::new(&outbound, KnownClients::default(), true);
        let _silent = documents.outbound.take_lookups().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let site = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            _ = socket.read(&mut [0; 4096]).await.unwrap();
            let answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
            socket.write_all(answer).await.unwrap();
            std::future::pending().await
        };
        let sites = [format!("http://localhost:{port}/")];
        let away = tokio::select! {
            away = documents.probe(&sites) => away,
            away = site => away,
        };
        assert_eq!(away, None);
        assert!(documents.are_reachable());
    }

    /// Clients with a key set were out five minutes after its site was.
    #[tokio::test]
    async fn the_last_keys_serve_while_their_site_does_not_answer() {
        let outbound = Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let documents = Documents::new(&outbound, KnownClients::default(), false);
        let snapshot = CurrentSnapshot::fixed(Catalog::default());
        let asker = Asker {
            tenant: "a",
            from: None,
            snapshot: &snapshot,
        };
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}/keys", closed.local_addr().unwrap());
        drop(closed);
        let got = async || documents.keys(asker, (ID, &url)).await;
        assert!(matches!(got().await, Err(DocumentError::Unavailable(_))));
        let keys = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        let known = KnownKeys {
            set: Arc::new(KeySet::parse(keys).unwrap()),
            got: tokio::time::Instant::now().checked_sub(KEYS).unwrap(),
        };
        let set = Arc::clone(&known.set);
        documents.keys.insert(url.clone(), known).await;
        assert!(Arc::ptr_eq(&got().await.unwrap(), &set));
        assert!(documents.keys_anew(asker, (ID, &url)).await.is_err());
    }

    /// A stolen key served for a day after its client had taken it out of its document.
    #[tokio::test]
    async fn keys_in_a_document_serve_no_longer_than_others() {
        let outbound = Outbound::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let documents = Documents::new(&outbound, KnownClients::default(), false);
        let snapshot = CurrentSnapshot::fixed(Catalog::default());
        let asker = Asker {
            tenant: "a",
            from: None,
            snapshot: &snapshot,
        };
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let id = format!("https://{}/client.json", closed.local_addr().unwrap());
        drop(closed);
        let mut public = document();
        public["client_id"] = json!(id);
        let mut keyed = public.clone();
        keyed["token_endpoint_auth_method"] = json!("private_key_jwt");
        keyed["jwks"] = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k",
            "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]});
        let last = |text: &Value, age: Duration| LastDocument {
            document: Arc::new(read(&id, text.to_string().as_bytes()).unwrap()),
            got: tokio::time::Instant::now().checked_sub(age).unwrap(),
        };
        for (text, age, wanted) in [
            (&keyed, KEYS, true),
            (&keyed, LAST_KEYS, false),
            (&public, LAST_KEYS, true),
        ] {
            documents.last.insert(id.clone(), last(text, age)).await;
            let found = documents.find(asker, &id).await;
            assert_eq!(found.is_ok(), wanted, "{age:?}: {found:?}");
        }
        // Whatever its site allows, there is a rest of the hour for a site that does not answer.
        assert_eq!(last(&keyed, KEYS).document.longest(), KEYS);
        assert_eq!(last(&public, KEYS).document.longest(), FRESH_MAX);
        assert!(!last(&keyed, BUSY_KEYS).serves(&BUSY));
        assert!(last(&public, BUSY_KEYS).serves(&BUSY));
    }

    /// A document that was too long, redirected or of another type was told as one that is not there.
    #[test]
    fn a_document_that_is_there_is_told_from_none() {
        for (answer, told) in [
            (Unexpected::Redirect(301), "redirect"),
            (Unexpected::MediaType, "application/json"),
            (Unexpected::Size(DOCUMENT_MAX), "10,240 of a document"),
            (Unexpected::Size(KEYS_MAX), "65,536 of keys"),
            (Unexpected::Status(404), "does not have the document"),
        ] {
            assert!(unfit(answer).contains(told), "{answer:?}");
        }
        assert_eq!((DOCUMENT_MAX, KEYS_MAX), (10_240, 65_536));
    }

    #[tokio::test]
    async fn invalid_client_id_urls() {
        let outbound = Outbound::new(Vec::new());
        let documents = Documents::new(&outbound, KnownClients::default(), false);
        assert!(!documents.outbound.shares_lookups(&outbound));
        assert!(documents.check(ID).is_ok());
        assert!(documents.check("https://app.test:8443/a/b?c=d").is_ok());
        for id in [
            "https://app.test",
            "https://app.test/",
            "https://app.test/?x",
            "https://app.test/c#x",
            "https://app.test/c#",
            "https://app.test/a/../c",
            "https://app.test/./c",
            "https://app.test/%2e%2e/c",
            "https://APP.test/c",
            "https://app.test:443/c",
            "https://app.test\\c",
            "https://app.test/c?d\\e",
            "https://user@app.test/c",
            "https://u:p@app.test/c",
            "https:app.test/c",
            "https:///app.test/c",
            "https://app.test/c d",
            "https://äpp.test/c",
            "https://127.0.0.1/c",
            "https://[::1]/c",
            "https://[::ffff:7f00:1]/c",
            "https://10.0.0.1/c",
            "https://169.254.169.254/latest",
            "https://127.1/c",
            "https://0x7f000001/c",
            "http://app.test/c",
            "ftp://app.test/c",
            "file:///etc/passwd",
            "https://",
            "",
        ] {
            assert!(documents.check(id).is_err(), "{id}");
        }
        let long = format!("https://app.test/{}", "a".repeat(1024));
        assert!(documents.check(&long).is_err());
    }
}
