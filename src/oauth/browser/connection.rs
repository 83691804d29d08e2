//! Connections to upstreams: the redirect of a person, the return, and the end (2025-03-26 authorization,
//! "Third-Party Authorization Flow").
//!
//! A return counts only in the browser and for the person that departed, once, and from the upstream it
//! departed to: nobody can be led to use the account of another. Not here: the requests to upstreams
//! (`oauth::upstreams`), and the page (`account`).

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{self, Request},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    account::{day, unknown},
    authorization_request::without_log_in_prompt,
    callback::wrong_issuer,
    flow::Flow,
    pages::{ErrorPage, ShownUpstream, redirect, shown},
    request::{BrowserRequest, StepRefusal, StepResult, not_found_page, unreadable},
};
use crate::{
    database::{self, ConnectionAt, Tokens, oauth::Person},
    declare::Upstream,
    endpoint::OauthEndpoint,
    oauth::{
        base::Form,
        server::Oauth,
        upstreams::{Departure, UpstreamError},
    },
};

/// An unfinished connection, sealed in the database.
#[derive(Serialize, Deserialize)]
struct PendingConnection {
    upstream: String,
    verifier: String,
    /// The subject of the person who departed.
    holder: String,
    /// The upstream and the client as declared then.
    authority: String,
    /// The consent that the person returns to; the account page without one.
    #[serde(default)]
    consent: Option<PendingConsent>,
}

/// A consent whose decision is to be taken after a return.
#[derive(Serialize, Deserialize)]
struct PendingConsent {
    /// The parameters of the authorization request, as received.
    query: String,
    is_short: bool,
}

/// GET: handles the return from an upstream.
pub(crate) async fn connected(
    extract::State(oauth): extract::State<Oauth>,
    extract::Path((_, upstream)): extract::Path<(String, String)>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let query = parts.uri.query().unwrap_or_default();
    let step = request.arrive(&upstream, query).await;
    request.respond(step, StatusCode::FOUND)
}

impl BrowserRequest {
    /// The upstreams that servers of the person need, or this one.
    pub(super) async fn shown_upstreams(
        &self,
        person: &Person,
        server: Option<&str>,
    ) -> Result<Vec<ShownUpstream>, StepRefusal> {
        let needed = self.needed_upstreams(person, server);
        if needed.is_empty() {
            return Ok(Vec::new());
        }
        let kept = self.store()?.connections();
        let kept = kept.of_holder(self.tenant(), &person.subject).await?;
        // What an upstream of that name gave before it was declared anew is worth nothing.
        let since = |name: &str, upstream: &Upstream| {
            let mut of_now = kept.iter().filter(|known| known.upstream == name);
            of_now.find(|known| known.authority.as_ref() == Some(&upstream.authority()))
        };
        let upstreams = needed
            .into_iter()
            .map(|(name, (upstream, servers))| ShownUpstream {
                name: name.to_owned(),
                title: shown(&upstream.title),
                servers,
                scopes: upstream.scopes.clone(),
                connected: since(name, upstream).map(|known| day(known.updated_ms)),
            });
        Ok(upstreams.collect())
    }

    /// The upstreams, each with the servers of the person that need it: all, or this one.
    fn needed_upstreams(
        &self,
        person: &Person,
        server: Option<&str>,
    ) -> BTreeMap<&str, (&Arc<Upstream>, Vec<String>)> {
        let mut needed: BTreeMap<&str, (&Arc<Upstream>, Vec<String>)> = BTreeMap::new();
        let declared = &self.server.builtin.upstreams;
        let servers = self.server.tenant.servers.values();
        let servers = servers.filter(|one| server.is_none_or(|server| one.name == server));
        for server in servers.filter(|server| self.may_fill(person, server)) {
            let names = server.slots.values().filter_map(|slot| slot.upstream());
            for (name, upstream) in names.filter_map(|name| declared.get_key_value(name)) {
                let (_, servers) = needed.entry(name).or_insert((upstream, Vec::new()));
                if servers.last() != Some(&server.name) {
                    servers.push(server.name.clone());
                }
            }
        }
        needed
    }

    /// The upstream of this name, if a server of the person needs it, or this one.
    pub(super) fn needed_upstream(
        &self,
        person: &Person,
        server: Option<&str>,
        name: &str,
    ) -> Option<Arc<Upstream>> {
        let needed = self.needed_upstreams(person, server);
        needed.get(name).map(|(upstream, _)| Arc::clone(upstream))
    }

    /// The upstream that a form of the account page names.
    pub(super) fn named_upstream(
        &self,
        person: &Person,
        fields: &Form,
    ) -> Result<Arc<Upstream>, StepRefusal> {
        let name = fields.get("upstream").unwrap_or_default();
        let upstream = self.needed_upstream(person, None, name);
        Ok(upstream.ok_or_else(unknown)?)
    }

    /// Redirects a person to an upstream, from the account page or from the consent of a flow, whose decision it
    /// takes; the inner error is that of the upstream.
    pub(super) async fn depart(
        &self,
        person: &Person,
        upstream: &Upstream,
        consent: Option<&Flow>,
    ) -> Result<Result<Response, ErrorPage>, StepRefusal> {
        let trips = self.trips.as_ref().ok_or_else(expired)?;
        let (state, verifier) = (self.random()?, self.random()?);
        let callback = self.callback_of_upstream(upstream);
        let departure = Departure {
            callback: &callback,
            state: &state,
            verifier: &verifier,
        };
        let client = &self.oauth.0.upstreams.client;
        let to = match client.authorization_url(upstream, &departure).await {
            Ok(to) => to,
            Err(error) => return Ok(Err(failed(upstream, &error))),
        };
        if let Some(flow) = consent {
            // After the upstream's metadata are known: without them the page stays valid.
            self.take_decision(flow).await?;
        }
        let pending = PendingConnection {
            upstream: upstream.name.clone(),
            verifier,
            holder: person.subject.clone(),
            authority: upstream.authority(),
            consent: consent.map(|flow| PendingConsent {
                query: flow.query.clone(),
                is_short: flow.is_short,
            }),
        };
        let content = Zeroizing::new(serde_json::to_vec(&pending).unwrap_or_default());
        let (key, expires_ms) = (trips.login_key(&state), self.flow_expiry());
        let logins = self.store()?.logins();
        let added = logins.add_trip(self.tenant(), &key, &content, expires_ms);
        if let Err(failure) = added.await {
            if let Some(flow) = consent {
                self.give_back_decision(flow).await;
            }
            return Err(failure.into());
        }
        Ok(Ok(self.send_off(trips, to.as_str())))
    }

    /// The redirect URI, byte for byte as registered at the upstream.
    fn callback_of_upstream(&self, upstream: &Upstream) -> String {
        let endpoint = OauthEndpoint::Connected(&upstream.name);
        self.server.endpoint(&self.oauth.0, endpoint)
    }

    async fn arrive(&self, name: &str, query: &str) -> StepResult {
        let fields = Form::parse(query).map_err(|_| unreadable())?;
        if fields.repeated(&[]).is_some() {
            return Err(unreadable().into());
        }
        let state = fields.get("state").ok_or_else(expired)?;
        let (upstream, pending) = self.pending(name, state).await?;
        // The log-in may have ended meanwhile, or be that of another person.
        let person = self.person().await?;
        let person = person.filter(|person| person.subject == pending.holder);
        let person = person.ok_or_else(expired)?;
        let client = &self.oauth.0.upstreams.client;
        let iss = fields.get("iss");
        let redeemed = match client.is_from(&upstream, iss).await {
            Ok(true) => self.redeem(&upstream, &pending, &fields).await,
            // RFC 9207: a response of another authorization server is a mix-up attack.
            Ok(false) => return Err(no_answer(&upstream, iss).into()),
            Err(error) => Err(failed(&upstream, &error)),
        };
        let Some(consent) = pending.consent else {
            self.keep_tokens(upstream, &person, redeemed?).await?;
            let account = self.path(OauthEndpoint::Account);
            return Ok(redirect(
                StatusCode::FOUND,
                &format!("{account}?done=connected"),
            ));
        };
        let browser = self.browser.as_ref().ok_or_else(expired)?;
        let flow = Flow::new(consent.query, consent.is_short, browser, self.flow_expiry());
        match redeemed {
            Ok(tokens) => {
                self.keep_tokens(upstream, &person, tokens).await?;
                // The log-in that the request may demand came before its consent.
                let again = self.restart_url(&flow, &without_log_in_prompt(&flow.query));
                Ok(redirect(StatusCode::FOUND, &again))
            }
            Err(failed) => {
                let authorization = self.read(&flow.query).await?;
                self.consent_page_after(&failed, &authorization, flow, &person)
                    .await
            }
        }
    }

    /// The tokens for the code that an upstream sent with a person.
    async fn redeem(
        &self,
        upstream: &Upstream,
        pending: &PendingConnection,
        fields: &Form,
    ) -> Result<Tokens, ErrorPage> {
        let code = fields.get("code").ok_or_else(|| refused(upstream))?;
        let callback = self.callback_of_upstream(upstream);
        let departure = Departure {
            callback: &callback,
            state: fields.get("state").unwrap_or_default(),
            verifier: &pending.verifier,
        };
        let client = &self.oauth.0.upstreams.client;
        let tokens = client
            .redeem(upstream, &departure, code, self.now_ms())
            .await;
        tokens.map_err(|error| failed(upstream, &error))
    }

    async fn keep_tokens(
        &self,
        upstream: Arc<Upstream>,
        person: &Person,
        tokens: Tokens,
    ) -> Result<(), StepRefusal> {
        let at = self.connection_at(&upstream, person);
        let (kept, author) = (self.store()?.connections(), self.author(person));
        let refused = match kept.put(at, &tokens, person.auth_ms, &author).await {
            Ok(true) => {
                self.oauth.0.snapshot.refresh_issued().await?;
                return Ok(());
            }
            // The person or the upstream may have been removed while the upstream was asked.
            Ok(false) | Err(database::Error::NotFound) => expired(),
            Err(database::Error::Invalid(_)) => {
                let what =
                    "The tenant has as many connections as permitted. Nothing was connected.";
                ErrorPage::bad(
                    "This account cannot be connected",
                    what,
                    "Ask an administrator.",
                )
            }
            Err(failure) => return Err(failure.into()),
        };
        // Nobody has them any more.
        self.oauth.0.upstreams.revoke(upstream, tokens).await;
        Err(refused.into())
    }

    /// What this browser departed for, once.
    async fn pending(
        &self,
        name: &str,
        state: &str,
    ) -> Result<(Arc<Upstream>, PendingConnection), StepRefusal> {
        let trips = self.trips.as_ref().ok_or_else(expired)?;
        // Another cookie gives another key, so no browser can take over the connection of another one.
        let (key, logins) = (trips.login_key(state), self.store()?.logins());
        let pending = logins.take_trip(self.tenant(), &key).await?;
        let pending = pending.and_then(|content| serde_json::from_slice(&content).ok());
        let pending = pending.filter(|pending: &PendingConnection| pending.upstream == name);
        let pending = pending.ok_or_else(expired)?;
        let upstream = self.server.builtin.upstreams.get(name);
        let upstream = upstream.filter(|known| known.authority() == pending.authority);
        Ok((Arc::clone(upstream.ok_or_else(expired)?), pending))
    }

    /// Ends a connection here, and at the upstream where it has an endpoint for that.
    pub(super) async fn disconnect(
        &self,
        person: &Person,
        fields: &Form,
    ) -> Result<&'static str, StepRefusal> {
        let upstream = self.named_upstream(person, fields)?;
        let (at, author) = (self.connection_at(&upstream, person), self.author(person));
        let kept = self.store()?.connections();
        let upstreams = &self.oauth.0.upstreams;
        if let Some(left) = upstreams.disconnect(kept, at, &author).await? {
            upstreams.revoke_left(left).await;
        }
        Ok("disconnected")
    }

    fn connection_at<'c>(&'c self, upstream: &'c Upstream, person: &'c Person) -> ConnectionAt<'c> {
        ConnectionAt {
            tenant: self.tenant(),
            upstream: &upstream.name,
            holder: &person.subject,
        }
    }
}

fn failed(upstream: &Upstream, error: &UpstreamError) -> ErrorPage {
    tracing::warn!(
        upstream.name = upstream.name,
        ?error,
        "an account cannot be connected"
    );
    match error {
        UpstreamError::Unavailable(_) => {
            ErrorPage::away(format!("{} does not answer.", shown(&upstream.title)))
        }
        UpstreamError::Ended | UpstreamError::Invalid(_) => {
            let what = format!(
                "The answer of {} is not valid. Nothing was connected.",
                shown(&upstream.title)
            );
            ErrorPage::bad("The account is not connected", what, OPEN_AGAIN)
        }
    }
}

/// A return from another authorization server than the upstream's.
fn no_answer(upstream: &Upstream, iss: Option<&str>) -> ErrorPage {
    let why = wrong_issuer(iss);
    // It may be anything, so the log alone has it.
    let iss: String = iss.unwrap_or_default().chars().take(256).collect();
    tracing::warn!(
        upstream.name = upstream.name,
        why,
        iss,
        "a return from an upstream is no answer of it"
    );
    let what = format!(
        "This is no answer of {}: {why}. Nothing was connected.",
        shown(&upstream.title)
    );
    ErrorPage::bad("The account is not connected", what, OPEN_AGAIN)
}

fn refused(upstream: &Upstream) -> ErrorPage {
    let what = format!("{} did not allow it.", shown(&upstream.title));
    ErrorPage::bad("The account is not connected", what, OPEN_AGAIN)
}

fn expired() -> ErrorPage {
    let what = "It was begun in another browser or by another person, has already ended, or took too long. \
                Nothing was connected.";
    ErrorPage::bad("This connection has expired", what, OPEN_AGAIN)
}

const OPEN_AGAIN: &str = "Open your account page and connect again. Cookies must be allowed for this site. If \
                          this goes on, an administrator of the tenant can find the reason in the gateway's log.";
