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
    pages::{ErrorPage, ShownUpstream, redirect, shown},
    request::{BrowserRequest, StepRefusal, StepResult, not_found_page, unreadable},
};
use crate::{
    database::{ConnectionAt, oauth::Person},
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
    /// The upstreams that servers of the person need.
    pub(super) async fn shown_upstreams(
        &self,
        person: &Person,
    ) -> Result<Vec<ShownUpstream>, StepRefusal> {
        let needed = self.needed_upstreams(person);
        if needed.is_empty() {
            return Ok(Vec::new());
        }
        let kept = self.store()?.connections();
        let kept = kept.of_holder(self.tenant(), &person.subject).await?;
        let since = |name: &str| kept.iter().find(|known| known.upstream == name);
        let upstreams = needed
            .into_iter()
            .map(|(name, (upstream, servers))| ShownUpstream {
                name: name.to_owned(),
                title: shown(&upstream.title),
                servers,
                scopes: upstream.scopes.clone(),
                connected: since(name).map(|known| day(known.updated_ms)),
            });
        Ok(upstreams.collect())
    }

    /// The upstreams, each with the servers of the person that need it.
    fn needed_upstreams(&self, person: &Person) -> BTreeMap<&str, (&Arc<Upstream>, Vec<String>)> {
        let mut needed: BTreeMap<&str, (&Arc<Upstream>, Vec<String>)> = BTreeMap::new();
        let declared = &self.server.builtin.upstreams;
        let servers = self.server.tenant.servers.values();
        for server in servers.filter(|server| self.may_fill(person, server)) {
            let names = server
                .slots
                .values()
                .filter_map(|slot| slot.upstream.as_ref());
            for (name, upstream) in names.filter_map(|name| declared.get_key_value(name)) {
                let (_, servers) = needed.entry(name).or_insert((upstream, Vec::new()));
                if servers.last() != Some(&server.name) {
                    servers.push(server.name.clone());
                }
            }
        }
        needed
    }

    /// The upstream that a form names, if a server of the person needs it.
    fn named_upstream(&self, person: &Person, fields: &Form) -> Result<Arc<Upstream>, StepRefusal> {
        let name = fields.get("upstream").unwrap_or_default();
        let needed = self.needed_upstreams(person);
        let (upstream, _) = needed.get(name).ok_or_else(unknown)?;
        Ok(Arc::clone(upstream))
    }

    /// Redirects a person to an upstream.
    pub(super) async fn depart(&self, person: &Person, fields: &Form) -> StepResult {
        let upstream = self.named_upstream(person, fields)?;
        let browser = self.browser.as_ref().ok_or_else(expired)?;
        let (state, verifier) = (self.random()?, self.random()?);
        let callback = self.callback_of_upstream(&upstream);
        let departure = Departure {
            callback: &callback,
            state: &state,
            verifier: &verifier,
        };
        let client = &self.oauth.0.upstreams.client;
        let to = client.authorization_url(&upstream, &departure).await;
        let to = to.map_err(|error| failed(&upstream, &error))?;
        let pending = PendingConnection {
            upstream: upstream.name.clone(),
            verifier,
            holder: person.subject.clone(),
            authority: upstream.authority(),
        };
        let content = Zeroizing::new(serde_json::to_vec(&pending).unwrap_or_default());
        let (key, expires_ms) = (browser.login_key(&state), self.flow_expiry());
        let logins = self.store()?.logins();
        logins
            .add_trip(self.tenant(), &key, &content, expires_ms)
            .await?;
        Ok(redirect(StatusCode::SEE_OTHER, to.as_str()))
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
        let is_from = client.is_from(&upstream, fields.get("iss")).await;
        if !is_from.map_err(|error| failed(&upstream, &error))? {
            return Err(expired().into());
        }
        let Some(code) = fields.get("code") else {
            return Err(refused(&upstream).into());
        };
        let callback = self.callback_of_upstream(&upstream);
        let departure = Departure {
            callback: &callback,
            state,
            verifier: &pending.verifier,
        };
        let tokens = client
            .redeem(&upstream, &departure, code, self.now_ms())
            .await;
        let tokens = tokens.map_err(|error| failed(&upstream, &error))?;
        let at = self.connection_at(&upstream, &person);
        let (kept, author) = (self.store()?.connections(), self.author(&person));
        kept.put(at, &tokens, &author).await?;
        self.oauth.0.snapshot.refresh_issued().await?;
        let account = self.path(OauthEndpoint::Account);
        Ok(redirect(
            StatusCode::FOUND,
            &format!("{account}?done=connected"),
        ))
    }

    /// What this browser departed for, once.
    async fn pending(
        &self,
        name: &str,
        state: &str,
    ) -> Result<(Arc<Upstream>, PendingConnection), StepRefusal> {
        let browser = self.browser.as_ref().ok_or_else(expired)?;
        // Another cookie gives another key, so no browser can take over the connection of another one.
        let (key, logins) = (browser.login_key(state), self.store()?.logins());
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
        let (at, kept) = (
            self.connection_at(&upstream, person),
            self.store()?.connections(),
        );
        let known = kept.get(at).await?;
        let author = self.author(person);
        kept.remove(at, None, "upstream.disconnected", &author)
            .await?;
        self.oauth.0.snapshot.refresh_issued().await?;
        let tokens = known.map(|known| known.tokens);
        let tokens = tokens.filter(|tokens| tokens.authority == upstream.authority());
        if let Some(tokens) = tokens {
            self.oauth
                .0
                .upstreams
                .client
                .revoke(&upstream, &tokens)
                .await;
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
