//! Account page: the secrets that servers need of a person, the applications with access, and the log-ins;
//! a person changes and ends them there.
//!
//! A form is sealed for one browser, like those of a log-in, so that no other site and no other person's
//! page can send it. Not here: the log-in itself (`login`, `callback`), API keys (`own_keys`), and the page (`pages`).

use std::collections::BTreeMap;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use serde_json::json;
use uuid::Uuid;

use super::{
    flow::{Flow, FormKind},
    pages::{
        AccountPage, ErrorPage, FormTarget, NewKey, STYLE, ShownGrant, ShownLogin, ShownServer,
        ShownSlot, html, redirect, shown,
    },
    request::{BrowserRequest, StepRefusal, StepResult, fields_within, not_found_page},
};
use crate::{
    base::{Secret, hex, moment, sha256},
    database::{
        self, Author, HolderAt, Record,
        oauth::{GrantFilter, ListedGrant, Person, Revoked},
    },
    declare::{AllowedScopes, Holder, SECRET_MAX, Server, Slot, SlotForm, is_secret},
    endpoint::OauthEndpoint,
    oauth::{base::Form, server::Oauth},
};

/// GET: shows the page, or the log-in before it.
pub(crate) async fn show(State(oauth): State<Oauth>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let step = request.account(parts.uri.query().unwrap_or_default());
    request.respond(step.await, StatusCode::FOUND)
}

/// POST: handles a change.
pub(crate) async fn change(State(oauth): State<Oauth>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let step = async {
        let fields = fields_within(&parts, body, FORM).await?;
        request.change_account(&fields).await
    };
    request.respond(step.await, StatusCode::SEE_OTHER)
}

/// A change that was made, as the page says it.
const DONE: [(&str, &str); 9] = [
    (
        "set",
        "The secret is saved. Your next request to the server uses it.",
    ),
    ("removed", "The secret is removed."),
    (
        "connected",
        "The account is connected. Your next request to the server uses it.",
    ),
    ("disconnected", "The account is not connected any more."),
    ("revoked", "The application has no access any more."),
    ("ended", "The log-in is ended."),
    (
        "key-removed",
        "The API key is removed: nothing can use it any more.",
    ),
    (
        "key-again",
        "This form was sent before, and it counts once. A key is shown only in the first answer: if you did not see \
         it, remove it and make another one.",
    ),
    (
        "key-gone",
        "The API key is not here any more. Nothing was changed.",
    ),
];

impl BrowserRequest {
    async fn account(&self, query: &str) -> StepResult {
        let Some(person) = self.person().await? else {
            let browser = match &self.browser {
                Some(browser) => browser.clone(),
                None => Self::new_browser(&self.oauth.0.random)?,
            };
            let flow = Flow::for_account(&browser, self.flow_expiry());
            let mut response = self.login_page(None, &flow, None, StatusCode::OK)?;
            self.set_cookie(&mut response, &browser);
            return Ok(response);
        };
        let done = query.strip_prefix("done=");
        let done = DONE.into_iter().find(|(name, _)| Some(*name) == done);
        let done = done.map(|(_, text)| text);
        self.account_page(&person, done, None).await
    }

    /// The page, with a new value of an API key, which nothing shows again.
    pub(super) async fn account_page(
        &self,
        person: &Person,
        done: Option<&'static str>,
        new_key: Option<NewKey>,
    ) -> StepResult {
        let browser = self.browser.as_ref().ok_or_else(expired)?;
        let flow = Flow::for_account(browser, self.flow_expiry());
        let page = AccountPage {
            tenant: self.tenant(),
            person: shown(&person.title),
            done,
            action: &self.path(OauthEndpoint::Account),
            form: &self.seal(&flow, FormKind::Account)?,
            servers: self.shown_servers(person).await?,
            upstreams: self.shown_upstreams(person, None).await?,
            new_key,
            keys: self.shown_keys(person).await?,
            grants: self.shown_grants(person).await?,
            logins: self.shown_logins(person).await?,
            secret_max: SECRET_MAX,
            style: STYLE,
        };
        let target = if page.upstreams.is_empty() {
            FormTarget::Own
        } else {
            FormTarget::Onward
        };
        Ok(html(StatusCode::OK, &page, target))
    }

    /// The servers that the person may use and that need secrets of theirs.
    async fn shown_servers(&self, person: &Person) -> Result<Vec<ShownServer>, StepRefusal> {
        let kept = self.store()?.secrets();
        let kept = kept.of_holder(self.tenant(), &person.subject).await?;
        let set: BTreeMap<_, _> = kept
            .iter()
            .map(|secret| {
                (
                    (secret.server.as_str(), secret.name.as_str()),
                    secret.updated_ms,
                )
            })
            .collect();
        let servers = self.server.tenant.servers.values();
        let servers = servers.filter(|server| self.may_fill(person, server));
        let servers = servers.filter(|server| own_slots(server).next().is_some());
        let servers = servers.map(|server| {
            let slots = own_slots(server).map(|(name, slot)| ShownSlot {
                id: format!("{}.{name}", server.name),
                name: name.clone(),
                title: shown(slot.title.as_deref().unwrap_or(name)),
                help: slot.help.clone(),
                is_file: slot.form == SlotForm::File,
                set: set.get(&(&*server.name, &**name)).copied().map(day),
            });
            ShownServer {
                name: server.name.clone(),
                slots: slots.collect(),
            }
        });
        Ok(servers.collect())
    }

    /// Reports whether the person may use the server, by any client, and it needs a secret of theirs.
    pub(super) fn may_fill(&self, person: &Person, server: &Server) -> bool {
        self.allowed_to(person, server).is_some() && server.has_slots(Holder::Principal)
    }

    /// The scopes that the person may have for the server, by any client; `None` if they may not use it.
    pub(super) fn allowed_to<'s>(
        &self,
        person: &Person,
        server: &'s Server,
    ) -> Option<AllowedScopes<'s>> {
        let builtin = &self.server.builtin;
        let known = builtin.subject(&person.subject, &person.groups).ok()?;
        server.scopes_of(&person.subject, known.groups(&person.groups), None)
    }

    async fn shown_grants(&self, person: &Person) -> Result<Vec<ShownGrant>, StepRefusal> {
        let mut grants = Vec::new();
        // A client has a grant for each log-in: it is read once.
        let mut titles = BTreeMap::new();
        for listed in self.grants_of(person).await? {
            let grant = listed.grant;
            let known: Option<&String> = titles.get(&grant.client_id);
            let client = match known {
                Some(title) => title.clone(),
                None => shown(&self.client_title(&grant.client_id).await?),
            };
            titles.insert(grant.client_id, client.clone());
            grants.push(ShownGrant {
                id: grant.id.to_string(),
                client,
                server: grant.resource,
                scopes: grant.scope.split(' ').map(str::to_owned).collect(),
                since: day(listed.created_ms),
                used: day(listed.used_ms),
            });
        }
        Ok(grants)
    }

    async fn grants_of(&self, person: &Person) -> Result<Vec<ListedGrant>, StepRefusal> {
        let filter = GrantFilter {
            subject: Some(&person.subject),
            ..GrantFilter::default()
        };
        Ok(self
            .store()?
            .grants()
            .newest(self.tenant(), filter, LISTED)
            .await?)
    }

    /// The name of a client for people; of a client by its document, the URL.
    async fn client_title(&self, id: &str) -> Result<String, StepRefusal> {
        if let Some(client) = self.server.builtin.clients.get(id) {
            return Ok(client.title.clone());
        }
        let registered = self.store()?.clients().get(self.tenant(), id).await?;
        let name = registered.and_then(|client| {
            let metadata: serde_json::Value = serde_json::from_str(&client.metadata).ok()?;
            Some(metadata["client_name"].as_str()?.to_owned())
        });
        Ok(name.unwrap_or_else(|| id.to_owned()))
    }

    async fn shown_logins(&self, person: &Person) -> Result<Vec<ShownLogin>, StepRefusal> {
        let logins = self.store()?.logins();
        let all = logins
            .of_subject(self.tenant(), &person.subject, LISTED)
            .await?;
        let own = self.browser.as_ref().map(|browser| browser.hash().to_vec());
        let login = |(browser, known): (Vec<u8>, Person)| ShownLogin {
            id: hex(&sha256(&browser)),
            by: known
                .provider
                .as_deref()
                .map_or("a password".to_owned(), shown),
            since: day(known.auth_ms),
            is_here: Some(&browser) == own.as_ref(),
        };
        Ok(all.into_iter().map(login).collect())
    }

    async fn change_account(&self, fields: &Form) -> StepResult {
        let form = self.open_form(fields, FormKind::Account);
        let form = form.map_err(|_| expired())?;
        let page = self.path(OauthEndpoint::Account);
        let Some(person) = self.person().await? else {
            return Ok(redirect(StatusCode::SEE_OTHER, &page));
        };
        self.draw_write()?;
        let done = match fields.get("do") {
            Some("set") => self.set_secret(&person, fields).await?,
            Some("remove") => self.remove_secret(&person, fields).await?,
            Some("revoke") => self.revoke_grant(&person, fields).await?,
            Some("connect") => {
                let upstream = self.named_upstream(&person, fields)?;
                let departed = self.depart(&person, &upstream, None).await?;
                return departed.map_err(StepRefusal::from);
            }
            Some("make-key") => return self.make_key(&person, &form, fields).await,
            Some("rotate-key") => return self.rotate_key(&person, &form, fields).await,
            Some("remove-key") => self.remove_key(&person, fields).await?,
            Some("disconnect") => self.disconnect(&person, fields).await?,
            Some("end") => self.end_login(&person, fields).await?,
            _ => return Err(unknown().into()),
        };
        Ok(redirect(
            StatusCode::SEE_OTHER,
            &format!("{page}?done={done}"),
        ))
    }

    /// The slot that a form names, of a server that the person may use.
    fn slot<'f>(
        &'f self,
        person: &'f Person,
        fields: &'f Form,
    ) -> Result<(HolderAt<'f>, &'f str), StepRefusal> {
        let named = fields.get("server").zip(fields.get("secret"));
        let (server, name) = named.ok_or_else(unknown)?;
        let found = self.server.tenant.servers.get(server);
        let found = found.filter(|server| self.may_fill(person, server));
        let mut slots = found.into_iter().flat_map(|server| own_slots(server));
        if !slots.any(|(slot, _)| slot == name) {
            return Err(unknown().into());
        }
        let of = HolderAt {
            tenant: self.tenant(),
            server,
            holder: Some(&person.subject),
        };
        Ok((of, name))
    }

    async fn set_secret(
        &self,
        person: &Person,
        fields: &Form,
    ) -> Result<&'static str, StepRefusal> {
        let (of, name) = self.slot(person, fields)?;
        // A form has line ends of its own (HTML, "multipart and urlencoded form data").
        let value = fields
            .get("value")
            .unwrap_or_default()
            .replace("\r\n", "\n");
        if !is_secret(&value) {
            let what = format!(
                "It is empty, longer than {SECRET_MAX} bytes, or not a text. Nothing was saved."
            );
            return Err(ErrorPage::bad("This secret cannot be saved", what, OPEN_AGAIN).into());
        }
        let (store, value) = (self.store()?, Secret::new(value));
        let quota = self.server.tenant.quotas.tenant.objects;
        let author = self.author(person);
        let value = (&value, Some(person.auth_ms));
        let put = store.secrets().put(of, name, value, quota, &author).await;
        put.map_err(|failure| match failure {
            database::Error::Invalid(_) => {
                let what =
                    "As many are stored as permitted. Ask an administrator. Nothing was saved.";
                ErrorPage::bad("This secret cannot be saved", what, OPEN_AGAIN).into()
            }
            // The person or the server may have been removed just now.
            database::Error::NotFound => unknown().into(),
            failure => StepRefusal::from(failure),
        })?;
        self.oauth.0.snapshot.refresh_issued().await?;
        Ok("set")
    }

    async fn remove_secret(
        &self,
        person: &Person,
        fields: &Form,
    ) -> Result<&'static str, StepRefusal> {
        let (of, name) = self.slot(person, fields)?;
        let store = self.store()?;
        store
            .secrets()
            .remove(of, name, &self.author(person))
            .await?;
        self.oauth.0.snapshot.refresh_issued().await?;
        Ok("removed")
    }

    async fn revoke_grant(
        &self,
        person: &Person,
        fields: &Form,
    ) -> Result<&'static str, StepRefusal> {
        let id = fields.get("grant").and_then(|id| Uuid::try_parse(id).ok());
        let (store, id) = (self.store()?, id.ok_or_else(unknown)?);
        let own = store.grants();
        let own = own.of_subject(self.tenant(), &person.subject, id);
        // The same page for the grant of somebody else and for none, so that it tells nothing of others.
        let grant = own.await?.ok_or_else(unknown)?;
        let target = format!("grant {}/{}", self.tenant(), grant.id);
        let mut detail = self.author(person).detail;
        detail.insert("why".to_owned(), json!("its person revoked it"));
        detail.insert("client".to_owned(), json!(grant.client_id));
        let (tenant, detail) = (Some(self.tenant()), detail.into());
        let record = Record::new(tenant, "grant.revoked", &person.subject, &target, detail);
        // The record is written before the grant ends.
        store.audit().append(&[record]).await?;
        let ended = Revoked::Access(grant.id);
        store.revocations().revoke(self.tenant(), &ended).await?;
        self.oauth.0.snapshot.refresh_issued().await?;
        Ok("revoked")
    }

    async fn end_login(&self, person: &Person, fields: &Form) -> Result<&'static str, StepRefusal> {
        let (logins, id) = (self.store()?.logins(), fields.get("login"));
        let all = logins
            .of_subject(self.tenant(), &person.subject, LISTED)
            .await?;
        let mut browsers = all.into_iter().map(|(browser, _)| browser);
        let named = browsers.find(|browser| Some(&*hex(&sha256(browser))) == id);
        let named = named.and_then(|browser| <[u8; 32]>::try_from(browser).ok());
        let browser = named.ok_or_else(unknown)?;
        logins.log_out(self.tenant(), &browser).await?;
        let target = format!("tenant {}", self.tenant());
        self.audit("login.ended", &person.subject, target, json!({}))
            .await;
        Ok("ended")
    }

    pub(super) fn author(&self, person: &Person) -> Author {
        let mut author = Author::named(&person.subject);
        let address = self.address.map(|address| address.to_string());
        author.detail.insert("address".to_owned(), json!(address));
        author
    }
}

/// The slots that a person fills by a value; the others by a connection.
fn own_slots(server: &Server) -> impl Iterator<Item = (&String, &Slot)> {
    let slots = server.slots.iter();
    slots.filter(|(_, slot)| slot.holder == Holder::Principal && slot.token.is_none())
}

/// A time for people: to the minute.
pub(super) fn day(ms: i64) -> String {
    let text = moment(ms);
    let (day, time) = text.split_once('T').unwrap_or((&text, ""));
    format!("{day} {} UTC", time.get(..5).unwrap_or_default())
}

fn expired() -> ErrorPage {
    let what = "It is too old, was opened in another browser, or its form was changed. Nothing was changed.";
    ErrorPage::bad("This page has expired", what, OPEN_AGAIN)
}

pub(super) fn unknown() -> ErrorPage {
    let what = "What the form names is not here, or not any more. Nothing was changed.";
    ErrorPage::bad("This form cannot be read", what, OPEN_AGAIN)
}

pub(super) const OPEN_AGAIN: &str =
    "Open your account page again. Cookies must be allowed for this site.";
/// The most grants, and log-ins, of a page.
const LISTED: usize = 100;
/// The largest form in bytes: each byte of a secret may be written by three, and the sealed flow.
const FORM: usize = 3 * SECRET_MAX + (4 << 10);
