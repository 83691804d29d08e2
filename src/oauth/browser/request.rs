//! Browser request at a tenant, shared by all steps of a log-in.
//!
//! Not here: the parameters (`authorization_request`) and the steps (`authorize`, `login`,
//! `consent`, `callback`).

use std::{net::IpAddr, sync::Arc, time::Duration};

use aws_lc_rs::rand::SystemRandom;
use axum::{body::Body, response::Response};
use http::{StatusCode, header::SET_COOKIE, request::Parts};
use serde_json::json;

use super::{
    authorization_request::{
        AuthorizationRefusal, AuthorizationRequest, ClientRedirect, RequestParameters,
        with_consent_prompt,
    },
    cookie::{BrowserId, CookieJar, CookieKind},
    flow::{Flow, FormKind, Opened},
    pages::{ErrorPage, redirect},
};
use crate::endpoint::{self, OauthEndpoint};
use crate::{
    database::{self, Database, Record, oauth::Person},
    declare::{Provider, User},
    oauth::{
        base::{
            Form,
            posted::{collected, is_form},
            secret,
            throttle::account,
        },
        clients::{Client, ClientError, ClientSource},
        providers::Standing,
        server::{Attempt, AuthorizationServer, Oauth, StepKind, attempt},
    },
};

/// Request of a browser at a tenant.
pub(super) struct BrowserRequest {
    pub(crate) oauth: Oauth,
    pub(crate) server: AuthorizationServer,
    /// The browser, if its cookie is known.
    pub(crate) browser: Option<BrowserId>,
    /// What its trips to providers and upstreams are bound to.
    pub(super) trips: Option<BrowserId>,
    /// The client address.
    pub(crate) address: Option<IpAddr>,
    /// The time at which it began, in milliseconds since 1970: before anything was read for it.
    pub(super) begun_ms: i64,
    /// The attempt that it belongs to.
    pub(super) attempt: Attempt,
}

/// The refusal that a step ends with.
#[derive(Debug)]
pub(super) enum StepRefusal {
    /// An error page for the person.
    Page(ErrorPage),
    /// An error response for the client.
    Client(ClientRedirect, AuthorizationRefusal),
    /// The URL at which the flow begins again.
    Again(String),
}

impl From<ErrorPage> for StepRefusal {
    fn from(page: ErrorPage) -> Self {
        Self::Page(page)
    }
}

impl From<database::Error> for StepRefusal {
    fn from(failure: database::Error) -> Self {
        tracing::warn!(%failure, "a log-in finds no store");
        Self::Page(ErrorPage::away("The gateway cannot reach its store."))
    }
}

/// The result of a step.
pub(super) type StepResult = Result<Response, StepRefusal>;

impl BrowserRequest {
    /// Reads a request; `None` if its path belongs to no authorization server.
    pub(crate) fn of(oauth: &Oauth, parts: &Parts) -> Option<Self> {
        let server = AuthorizationServer::at(&oauth.0, parts.uri.path(), &parts.extensions)?;
        let jar = CookieJar::of(&server.tenant.name, server.site(&oauth.0).url);
        let browser = jar.browser(&parts.headers, CookieKind::LogIn);
        let trips = jar.browser(&parts.headers, CookieKind::Trips);
        Some(Self {
            trips: trips.or_else(|| browser.clone()),
            oauth: oauth.clone(),
            server,
            browser,
            address: attempt::address(&parts.extensions),
            begun_ms: oauth.0.clock.now_ms(),
            attempt: Attempt::default(),
        })
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.server.tenant.name
    }

    pub(crate) fn store(&self) -> Result<&Database, database::Error> {
        self.oauth.0.snapshot.database()
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.oauth.0.clock.now_ms()
    }

    /// Builds the path of an endpoint of this tenant, as the browser sees it.
    pub(crate) fn path(&self, endpoint: OauthEndpoint<'_>) -> String {
        self.below(&endpoint.path(self.tenant()))
    }

    /// Puts a path below the path of the public URL.
    fn below(&self, path: &str) -> String {
        let base = endpoint::base_path(self.server.site(&self.oauth.0).url);
        format!("{base}{path}")
    }

    /// Builds the URL at which a flow restarts with `query`.
    pub(crate) fn restart_url(&self, flow: &Flow, query: &str) -> String {
        if flow.is_account {
            return self.path(OauthEndpoint::Account);
        }
        let alias = OauthEndpoint::Authorize.alias();
        let path = match alias.filter(|_| flow.is_short) {
            Some(alias) => self.below(alias),
            None => self.path(OauthEndpoint::Authorize),
        };
        format!("{path}?{query}")
    }

    /// Makes the response to a step.
    pub(crate) fn respond(&self, step: StepResult, redirect_status: StatusCode) -> Response {
        match step {
            Ok(response) => response,
            Err(StepRefusal::Page(page)) => {
                self.tell(StepKind::Refused, &format!("{}: {}", page.title, page.what));
                page.page(self.tenant())
            }
            Err(StepRefusal::Client(back, refusal)) => {
                let reason = format!("{}: {}", refusal.error, refusal.description);
                self.tell(StepKind::Refused, &reason);
                redirect(redirect_status, &back.refusal_url(&refusal))
            }
            Err(StepRefusal::Again(url)) => redirect(redirect_status, &url),
        }
    }

    /// Keeps a step of the attempt. Only a refusal is worth one without a client, as on the way to the account page.
    pub(super) fn tell(&self, step: StepKind, reason: &str) {
        if step != StepKind::Refused && !self.attempt.has_client() {
            return;
        }
        let state = &self.oauth.0;
        self.attempt
            .tell(state, &self.server, self.address, step, reason);
    }

    /// Sets the cookie that identifies the browser.
    pub(super) fn set_cookie(&self, response: &mut Response, browser: &BrowserId) {
        let age = self.oauth.0.config.oauth.login;
        self.set_cookie_of(response, browser, CookieKind::LogIn, age);
    }

    /// Redirects to a provider or an upstream, from where only a browser with the cookie of `trips` can return.
    pub(super) fn send_off(&self, trips: &BrowserId, to: &str) -> Response {
        let mut response = redirect(StatusCode::SEE_OTHER, to);
        let age = self.oauth.0.config.oauth.flow;
        self.set_cookie_of(&mut response, trips, CookieKind::Trips, age);
        response
    }

    fn set_cookie_of(
        &self,
        response: &mut Response,
        browser: &BrowserId,
        kind: CookieKind,
        age: Duration,
    ) {
        let jar = CookieJar::of(self.tenant(), self.server.site(&self.oauth.0).url);
        let cookie = jar.cookie(browser, kind, age);
        response.headers_mut().append(SET_COOKIE, cookie);
    }

    /// Generates a browser identity.
    pub(super) fn new_browser(random: &SystemRandom) -> Result<BrowserId, StepRefusal> {
        BrowserId::new(random).ok_or_else(no_randomness)
    }

    /// Parses an authorization request. Until client and redirect URI are known to belong together,
    /// no error is sent to the redirect URI.
    pub(crate) async fn read(&self, query: &str) -> Result<AuthorizationRequest, StepRefusal> {
        let form = Form::parse(query).map_err(|_| unreadable())?;
        self.attempt.asked(&form);
        let (client, uri, sent) = self.find_client(&form).await?;
        let redirect = ClientRedirect {
            uri,
            sent,
            // A repeated `state` cannot be echoed; the refusal goes without it.
            state: form
                .get("state")
                .filter(|_| form.count("state") == 1)
                .map(str::to_owned),
            issuer: self.server.issuer.clone(),
        };
        let site = self.server.site(&self.oauth.0);
        match RequestParameters::read(&form, site, &self.server.tenant) {
            Ok(parameters) => {
                self.attempt.server(&parameters.resource.server);
                Ok(AuthorizationRequest {
                    digest: parameters.digest(&redirect, &client.digest),
                    client,
                    redirect,
                    parameters,
                })
            }
            Err(refusal) => Err(self.refuse(&client, redirect, refusal).await),
        }
    }

    /// Parses the authorization request of a flow; none of a flow to the account page.
    pub(super) async fn read_flow(
        &self,
        flow: &Flow,
    ) -> Result<Option<AuthorizationRequest>, StepRefusal> {
        if flow.is_account {
            return Ok(None);
        }
        self.read(&flow.query).await.map(Some)
    }

    /// Refuses a request that its sender may have made wrong on purpose: at the client, or on a page if nobody is
    /// logged in and no operator declared the client. Anybody can register a client to have people redirected to
    /// its URI (RFC 9700, section 4.11.2).
    pub(super) async fn refuse(
        &self,
        client: &Client,
        back: ClientRedirect,
        refusal: AuthorizationRefusal,
    ) -> StepRefusal {
        if client.kind == ClientSource::Declared {
            return StepRefusal::Client(back, refusal);
        }
        match self.person().await {
            Ok(Some(_)) => StepRefusal::Client(back, refusal),
            Ok(None) => {
                let what = format!(
                    "The application asks for something that it cannot get: {} ({}). You are not logged in, so \
                     nothing was sent to it.",
                    refusal.description, refusal.error
                );
                ErrorPage::bad(NO_ANSWER, what, TELL_MAKERS).into()
            }
            Err(failure) => failure,
        }
    }

    /// Finds the client; returns it with its redirect URI and the redirect URI as sent.
    async fn find_client(
        &self,
        parameters: &Form,
    ) -> Result<(Client, String, String), StepRefusal> {
        for name in ["client_id", "redirect_uri"] {
            if parameters.count(name) > 1 {
                let what = format!("The request has more than one {name}.");
                return Err(ErrorPage::bad(NO_ANSWER, what, TELL_MAKERS).into());
            }
        }
        let Some(id) = parameters.get("client_id") else {
            let what = "The request does not say which application asks: client_id is missing.";
            return Err(ErrorPage::bad(NO_ANSWER, what, TELL_MAKERS).into());
        };
        let clients = self.server.clients(&self.oauth.0, self.address);
        let found = clients.find(id).await;
        let client = found.map_err(|error| match error {
            ClientError::Unknown => {
                let what = "The application is not known here, or not any more: its client_id \
                            is neither registered nor declared.";
                ErrorPage::bad("Unknown application", what, REGISTER_AGAIN)
            }
            ClientError::Document(why) => {
                let what = "The document that describes the application cannot be used: ";
                ErrorPage::bad("Unknown application", format!("{what}{why}."), TELL_MAKERS)
            }
            ClientError::Away(why) => {
                let page = ErrorPage::away(format!(
                    "The gateway cannot fetch the document that describes the application: {why}."
                ));
                if self.oauth.0.documents.are_reachable() {
                    page
                } else {
                    ErrorPage {
                        remedy: GIVE_A_WAY_OUT,
                        ..page
                    }
                }
            }
            ClientError::Unavailable(failure) => {
                tracing::warn!(%failure, "a client cannot be looked up");
                ErrorPage::away("The gateway cannot look up the application.")
            }
        })?;
        let sent = parameters.get("redirect_uri");
        let uri = match (sent, client.redirect_uris.as_slice()) {
            (Some(sent), _) => client.matches(sent).then(|| sent.to_owned()),
            // OAuth 2.1, section 2.3.1: optional if only one is registered.
            (None, [only]) => Some(only.clone()),
            (None, _) => None,
        };
        self.attempt.client(&client.title);
        let uri = uri.ok_or_else(|| {
            let what = "The answer is to go to an address (redirect_uri) that the application \
                        has not registered. Nothing was sent there.";
            ErrorPage::bad("Wrong return address", what, REGISTER_AGAIN)
        })?;
        let sent = sent.unwrap_or_default().to_owned();
        Ok((client, uri, sent))
    }

    /// Returns the person who is logged in in this browser, unless the log-in has become invalid.
    pub(super) async fn person(&self) -> Result<Option<Person>, StepRefusal> {
        let Some(browser) = &self.browser else {
            return Ok(None);
        };
        let person = self
            .store()?
            .logins()
            .logged_in(self.tenant(), &browser.hash())
            .await?;
        let builtin = &self.server.builtin;
        let person = person.filter(|person| match &person.provider {
            None => builtin
                .users
                .get(&person.subject)
                .is_some_and(|user| !user.disabled && password_digest(user) == person.password),
            Some(provider) => {
                let provider = builtin.providers.get(provider);
                provider.is_some_and(|known| known.still_admits(&person.subject, &person.groups))
            }
        });
        let Some(person) = person else {
            return Ok(None);
        };
        self.attempt.subject(&person.subject);
        self.standing(person).await
    }

    /// Returns the person, as the identity provider knows them now; `None` if it lets them in no more.
    async fn standing(&self, mut person: Person) -> Result<Option<Person>, StepRefusal> {
        let Some(of) = self.server.standing_of(&person.subject) else {
            return Ok(Some(person));
        };
        match self.oauth.0.standings.ask(of).await? {
            Standing::Good(groups) => {
                person.groups = groups.unwrap_or(person.groups);
                Ok(Some(person))
            }
            Standing::Ended => Ok(None),
            Standing::Unknown => {
                let what = "The identity provider, which has to be asked about you again, does not answer.";
                Err(ErrorPage::away(what).into())
            }
        }
    }

    /// Returns the expiry of a flow that starts now, in milliseconds since 1970.
    pub(super) fn flow_expiry(&self) -> i64 {
        let lasts = i64::try_from(self.oauth.0.config.oauth.flow.as_millis());
        self.now_ms().saturating_add(lasts.unwrap_or(i64::MAX))
    }

    /// Returns the provider with this name.
    pub(crate) fn provider(&self, name: &str) -> Option<&Arc<Provider>> {
        self.server.builtin.providers.get(name)
    }

    /// Reports whether any user has a password.
    pub(super) fn has_passwords(&self) -> bool {
        let mut users = self.server.builtin.users.values();
        users.any(|user| user.password.is_some())
    }

    /// Writes an audit record of a person's action and waits until it is stored, before the
    /// response.
    pub(crate) async fn audit(
        &self,
        kind: &str,
        actor: &str,
        target: String,
        more: serde_json::Value,
    ) {
        let mut detail = json!({"address": self.address.map(|address| address.to_string())});
        if let (Some(detail), serde_json::Value::Object(more)) = (detail.as_object_mut(), more) {
            detail.extend(more);
        }
        let audit = &self.oauth.0.audit;
        let tenant = Some(self.tenant());
        audit.add(Record::new(tenant, kind, actor, &target, detail));
        audit.flush().await;
    }

    /// Seals a flow for a hidden field.
    pub(super) fn seal(&self, flow: &Flow, page: FormKind) -> Result<String, StepRefusal> {
        flow.seal(self.store()?, self.tenant(), page)
            .ok_or_else(no_randomness)
    }

    /// Draws a log-in, a decision or a code from the budget of the address, before it is stored.
    pub(super) fn draw_write(&self) -> Result<(), ErrorPage> {
        let state = &self.oauth.0;
        let (account, bound) = (account(self.address), state.config.oauth.writes);
        let drawn = state.writes.spend(&("address", account), bound);
        let what =
            "There were too many log-ins and decisions from your address in the last minute.";
        drawn.map_err(|retry| too_many(what, retry))
    }

    /// Draws a code from the budget of its person, whose browsers and applications may be at many addresses.
    pub(super) fn draw_code(&self, person: &Person) -> Result<(), ErrorPage> {
        let state = &self.oauth.0;
        let by = ("codes", self.tenant(), &person.subject);
        let drawn = state.writes.spend(&by, state.config.oauth.writes);
        let what = "Applications were connected to you too many times in the last minute.";
        drawn.map_err(|retry| too_many(what, retry))
    }

    /// Gives back what [`Self::draw_write`] took, because nothing is stored.
    pub(super) fn refund_write(&self) {
        let writes = &self.oauth.0.writes;
        writes.refund(&("address", account(self.address)));
    }

    /// Takes the decision of a flow, once, before anything of it is stored.
    pub(super) async fn take_decision(&self, flow: &Flow) -> Result<(), StepRefusal> {
        self.draw_write()?;
        if flow.decide(self.store()?, self.tenant()).await? {
            return Ok(());
        }
        let what = "It was already answered, and the first answer counts. If you were not sent on then, it is lost: \
                    connect again.";
        Err(ErrorPage::bad("This page has expired", what, RECONNECT).into())
    }

    /// Gives back what [`Self::take_decision`] took, because nothing came of it: the page is good for another try, if
    /// the database can be told.
    pub(super) async fn give_back_decision(&self, flow: &Flow) {
        self.refund_write();
        if let Ok(store) = self.store() {
            // Else the person has to connect again, as the page then says.
            let _ = flow.undecide(store, self.tenant()).await;
        }
    }

    /// Opens the flow of a submitted form. That of another browser counts for nothing. A log-in and a consent begin
    /// again, as by a link, since the browser may be the same: of several tabs one has logged in, and with that changed
    /// the cookie. The consent page follows in any case, so that it tells who is logged in by then.
    pub(crate) fn open_form(&self, fields: &Form, page: FormKind) -> Result<Flow, StepRefusal> {
        let text = fields.get("form");
        let browser = self.browser.as_ref();
        let now_ms = self.now_ms();
        let store = self.store()?;
        let open = |text| Flow::open(store, self.tenant(), page, text, browser, now_ms);
        match text.and_then(open) {
            Some(Opened::Here(flow)) => Ok(flow),
            Some(Opened::Elsewhere(flow)) if page != FormKind::Account => {
                let query = with_consent_prompt(&flow.query);
                Err(StepRefusal::Again(self.restart_url(&flow, &query)))
            }
            Some(Opened::Elsewhere(_)) | None => {
                let what = "It is too old, was opened in another browser, or its form was changed. \
                            Nothing was allowed by it.";
                Err(ErrorPage::bad("This page has expired", what, RECONNECT).into())
            }
        }
    }
}

/// Makes the response for a path that belongs to no authorization server.
pub(super) fn not_found_page(oauth: &Oauth) -> Response {
    if !oauth.0.snapshot.is_complete() {
        let what = "The database of the gateway cannot be read at this moment.";
        return ErrorPage::away(what).page("Lockgate");
    }
    let page = ErrorPage {
        status: StatusCode::NOT_FOUND,
        title: "Nothing here",
        what: "There is no log-in at this address.".to_owned(),
        remedy: "Check the address of the server in your application.",
        retry: None,
    };
    page.page("Lockgate")
}

/// Reads the text of a submitted form.
pub(super) async fn text(parts: &Parts, body: Body) -> Result<String, ErrorPage> {
    text_within(parts, body, FORM).await
}

async fn text_within(parts: &Parts, body: Body, max: usize) -> Result<String, ErrorPage> {
    if parts.uri.query().is_some() || !is_form(&parts.headers) {
        return Err(unreadable());
    }
    let bytes = collected(body, max).await.map_err(|_| unreadable())?;
    String::from_utf8(bytes.into()).map_err(|_| unreadable())
}

/// Reads the fields of a submitted form, none of which may be repeated.
pub(super) async fn fields(parts: &Parts, body: Body) -> Result<Form, ErrorPage> {
    fields_within(parts, body, FORM).await
}

/// The same of a form of at most `max` bytes.
pub(super) async fn fields_within(
    parts: &Parts,
    body: Body,
    max: usize,
) -> Result<Form, ErrorPage> {
    let text = text_within(parts, body, max).await?;
    let form = Form::parse(&text).map_err(|_| unreadable())?;
    let is_good = form.repeated(&[]).is_none();
    is_good.then_some(form).ok_or_else(unreadable)
}

/// Computes the digest of a user's password hash, which is stored with a log-in.
pub(super) fn password_digest(user: &User) -> Option<[u8; 32]> {
    let hash = user.password.as_ref()?;
    Some(secret::hash(hash.expose()))
}

pub(super) fn unreadable() -> ErrorPage {
    let what = "The request's parameters cannot be read.";
    ErrorPage::bad(NO_ANSWER, what, TELL_MAKERS)
}

/// Makes the error page for a provider that is no longer declared.
pub(super) fn provider_gone() -> ErrorPage {
    let what = "This identity provider is not configured any more.";
    ErrorPage::bad("Unknown identity provider", what, RECONNECT)
}

fn too_many(what: &str, retry: Duration) -> ErrorPage {
    ErrorPage {
        status: StatusCode::TOO_MANY_REQUESTS,
        title: "Too many log-ins",
        what: what.to_owned(),
        remedy: "Wait a minute, then connect again from your application.",
        retry: Some(retry.as_secs().max(1)),
    }
}

pub(super) fn no_randomness() -> StepRefusal {
    tracing::error!("the system has no randomness");
    ErrorPage::away("The gateway cannot make what it needs for this.").into()
}

const NO_ANSWER: &str = "This request cannot be answered";
const TELL_MAKERS: &str =
    "This is a mistake of the application that sent you here: tell its makers.";
const GIVE_A_WAY_OUT: &str = "Wait a moment and try again from your application. If this goes on, the operators of \
                        this gateway can give it a way out (outbound.proxy) or turn such documents off \
                        (auth.documents); then remove the connection in your application and add it again.";
const REGISTER_AGAIN: &str = "Remove the connection in your application and add it again, so that it \
                        registers anew. If an operator of this gateway declared the application, \
                        they can correct its declaration.";
pub(super) const RECONNECT: &str = "Go back to your application and connect again. Cookies must be \
                                allowed for this site.";
/// Maximum size of a form in bytes: the sealed flow of the longest query, and a person's input.
const FORM: usize = 32 << 10;
