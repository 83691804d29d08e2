//! API keys that people make for themselves, on the account page: made, rotated and removed by their person.
//!
//! A key is for servers and scopes that the person chose among those that they may use; what the person may do counts at
//! each use all the same (`auth`). Its value is in one answer alone, to a form that counts once. Not here: the rest of
//! the page (`account`), and the check of a key.

use std::{collections::BTreeSet, time::Duration};

use http::StatusCode;
use uuid::Uuid;

use super::{
    account::{OPEN_AGAIN, day, unknown},
    flow::Flow,
    pages::{ErrorPage, KeyChoices, NewKey, ShownKey, ShownKeys, redirect, shown},
    request::{BrowserRequest, StepRefusal, StepResult, no_randomness},
};
use crate::{
    auth::api_key,
    base::Secret,
    database::oauth::{ListedOwnKey, NewOwnKey, OwnKeyAt, OwnKeyBounds, OwnKeyChange, Person},
    declare::{OWN_KEY, OwnKey, OwnKeyRules, Servers},
    endpoint::OauthEndpoint,
    oauth::base::Form,
};

impl BrowserRequest {
    /// The keys of a person; none if the tenant has none.
    pub(super) async fn shown_keys(
        &self,
        person: &Person,
    ) -> Result<Option<ShownKeys>, StepRefusal> {
        let Some(rules) = &self.server.builtin.own_keys else {
            return Ok(None);
        };
        let keys = self.store()?.own_keys();
        let listed = keys.list(self.tenant(), Some(&person.subject), "", LISTED);
        let listed = listed.await?;
        let has_room = listed.len() < usize::try_from(rules.max).unwrap_or(usize::MAX);
        let now_ms = self.now_ms();
        Ok(Some(ShownKeys {
            keys: listed
                .into_iter()
                .map(|listed| shown_key(listed, rules, now_ms))
                .collect(),
            choices: has_room.then(|| self.choices(person, rules)),
            max: rules.max,
        }))
    }

    fn choices(&self, person: &Person, rules: &OwnKeyRules) -> KeyChoices {
        let servers = self.usable(person);
        let mut scopes: Vec<String> = self.usable_scopes(person, &Servers::All);
        scopes.truncate(SCOPES);
        KeyChoices {
            more_servers: servers.len().saturating_sub(SERVERS),
            servers: servers
                .into_iter()
                .take(SERVERS)
                .map(str::to_owned)
                .collect(),
            scopes,
            lives: lives(rules.ttl),
            label_max: LABEL,
        }
    }

    /// The names of the servers that the person may use.
    fn usable(&self, person: &Person) -> Vec<&str> {
        let servers = self.server.tenant.servers.values();
        let usable = servers.filter(|server| self.allowed_to(person, server).is_some());
        usable.map(|server| server.name.as_str()).collect()
    }

    /// The scopes that the person may have for any of these servers.
    fn usable_scopes(&self, person: &Person, chosen: &Servers) -> Vec<String> {
        let tenant = &self.server.tenant;
        let mut scopes = BTreeSet::new();
        for server in tenant.servers.values() {
            let allowed = self.allowed_to(person, server);
            if let Some(allowed) = allowed.filter(|_| chosen.contains(&server.name)) {
                let all = tenant.scopes([server]).into_iter();
                scopes.extend(all.filter(|scope| allowed.include(&server.policy, scope)));
            }
        }
        scopes.into_iter().map(str::to_owned).collect()
    }

    /// Makes a key.
    pub(super) async fn make_key(&self, person: &Person, form: &Flow, fields: &Form) -> StepResult {
        let rules = self.rules()?;
        let servers = self.chosen_servers(person, fields)?;
        let scopes: Vec<&str> = fields.names("scope.").collect();
        let usable = self.usable_scopes(person, &servers);
        if !scopes
            .iter()
            .all(|scope| usable.iter().any(|one| one == scope))
        {
            return Err(unknown().into());
        }
        let (label, life) = (label(fields)?, life(fields, rules)?);
        let (text, hash) = new_value()?;
        let now_ms = self.now_ms();
        let new = NewOwnKey {
            label: label.clone(),
            auth_ms: person.auth_ms,
            key: OwnKey {
                name: format!("{OWN_KEY}{}", Uuid::now_v7().simple()),
                subject: person.subject.clone(),
                groups: person.groups.as_slice().into(),
                scopes: scopes.into_iter().map(str::to_owned).collect(),
                servers,
                hash,
                previous: None,
                since_ms: now_ms,
                expires_ms: now_ms.saturating_add(millis(life)),
            },
        };
        let bounds = OwnKeyBounds {
            person: rules.max,
            tenant: self.server.tenant.quotas.tenant.objects,
        };
        let (keys, once) = (self.store()?.own_keys(), form.once("make-key"));
        let (once, author) = ((&once, form.expires_ms), self.author(person));
        let made = keys.add(self.tenant(), new, bounds, once, &author).await?;
        self.changed_key(person, made, text).await
    }

    /// Gives a key another value.
    pub(super) async fn rotate_key(
        &self,
        person: &Person,
        form: &Flow,
        fields: &Form,
    ) -> StepResult {
        let rules = self.rules()?;
        let at = self.named_key(person, fields)?;
        let (text, hash) = new_value()?;
        let once = form.once(&format!("rotate-key {}", at.name));
        let (once, author) = ((&once, form.expires_ms), self.author(person));
        let keys = self.store()?.own_keys();
        let rotated = keys.rotate(at, &hash, rules, once, &author).await?;
        self.changed_key(person, rotated, text).await
    }

    /// Removes a key.
    pub(super) async fn remove_key(
        &self,
        person: &Person,
        fields: &Form,
    ) -> Result<&'static str, StepRefusal> {
        let (at, author) = (self.named_key(person, fields)?, self.author(person));
        if !self.store()?.own_keys().remove(at, &author).await? {
            return Ok("key-gone");
        }
        self.oauth.0.snapshot.refresh_issued().await?;
        Ok("key-removed")
    }

    /// The answer to a change, which has the value of the key in its body alone.
    async fn changed_key(&self, person: &Person, change: OwnKeyChange, text: Secret) -> StepResult {
        let listed = match change {
            OwnKeyChange::Done(listed) => listed,
            OwnKeyChange::Again => return Ok(self.done("key-again")),
            OwnKeyChange::Gone => return Ok(self.done("key-gone")),
            OwnKeyChange::PersonFull => {
                let what = "You have as many API keys as you may have. Nothing was made.";
                return Err(full(what, "Remove one that is not used any more.").into());
            }
            OwnKeyChange::TenantFull => {
                let what = "All people here together have as many API keys as they may have. Nothing was made.";
                return Err(full(what, "The operators of this gateway can make room.").into());
            }
        };
        // It is stored: a failure here must not lose the only answer with the value.
        if let Err(failure) = self.oauth.0.snapshot.refresh_issued().await {
            tracing::warn!(%failure, "an API key is stored and not served yet");
        }
        let new = NewKey {
            label: shown(&listed.label),
            text,
            overlap: overlap(&listed.key, self.now_ms()),
        };
        self.account_page(person, None, Some(new)).await
    }

    fn done(&self, done: &str) -> axum::response::Response {
        let page = self.path(OauthEndpoint::Account);
        redirect(StatusCode::SEE_OTHER, &format!("{page}?done={done}"))
    }

    fn rules(&self) -> Result<&OwnKeyRules, StepRefusal> {
        let rules = self.server.builtin.own_keys.as_ref();
        Ok(rules.ok_or_else(unknown)?)
    }

    /// The key of the person that a form names.
    fn named_key<'f>(
        &'f self,
        person: &'f Person,
        fields: &'f Form,
    ) -> Result<OwnKeyAt<'f>, StepRefusal> {
        let name = fields.get("key").filter(|name| !name.contains('\0'));
        Ok(OwnKeyAt {
            tenant: self.tenant(),
            name: name.ok_or_else(unknown)?,
            subject: Some(&person.subject),
        })
    }

    /// The servers that a form names, all of which the person may use.
    fn chosen_servers(&self, person: &Person, fields: &Form) -> Result<Servers, StepRefusal> {
        if fields.get("all-servers").is_some() {
            return Ok(Servers::All);
        }
        let chosen: BTreeSet<&str> = fields.names("server.").collect();
        if chosen.is_empty() {
            let what = "No server is chosen that the key is for. Nothing was made.";
            return Err(ErrorPage::bad("This key cannot be made", what, OPEN_AGAIN).into());
        }
        let usable = self.usable(person);
        if !chosen.iter().all(|server| usable.contains(server)) {
            return Err(unknown().into());
        }
        Ok(Servers::Named(
            chosen.into_iter().map(str::to_owned).collect(),
        ))
    }
}

fn shown_key(listed: ListedOwnKey, rules: &OwnKeyRules, now_ms: i64) -> ShownKey {
    let key = listed.key;
    let ends_ms = key.ends_ms(rules);
    ShownKey {
        overlap: overlap(&key, now_ms),
        label: shown(&listed.label),
        servers: key.servers.names().into_iter().flatten().cloned().collect(),
        scopes: key.scopes.to_vec(),
        since: day(listed.created_ms),
        used: listed.used_ms.map(day),
        ends: day(ends_ms),
        has_ended: ends_ms <= now_ms,
        name: key.name,
    }
}

/// The end of the value before the last rotation, as long as that is good.
fn overlap(key: &OwnKey, now_ms: i64) -> Option<String> {
    let (_, until_ms) = key.previous?;
    (now_ms < until_ms).then(|| day(until_ms))
}

/// A value and its hash.
fn new_value() -> Result<(Secret, [u8; 32]), StepRefusal> {
    let random = aws_lc_rs::rand::SystemRandom::new();
    let text = api_key::generate(&random).map_err(|_| no_randomness())?;
    let hash = api_key::hash_of(&text).ok_or_else(no_randomness)?;
    Ok((Secret::new(text), hash))
}

/// What the person calls the key.
fn label(fields: &Form) -> Result<String, StepRefusal> {
    let label = fields.get("label").unwrap_or_default().trim();
    let is_long = label.chars().nth(LABEL).is_some();
    if shown(label).is_empty() || is_long || label.chars().any(char::is_control) {
        let what = format!(
            "Its label is empty, longer than {LABEL} letters, or not a text. Nothing was made."
        );
        return Err(ErrorPage::bad("This key cannot be made", what, OPEN_AGAIN).into());
    }
    Ok(label.to_owned())
}

/// How long the key is good.
fn life(fields: &Form, rules: &OwnKeyRules) -> Result<Duration, StepRefusal> {
    let seconds = fields.get("life").and_then(|life| life.parse().ok());
    let life = seconds.map(Duration::from_secs);
    let life = life.filter(|life| !life.is_zero() && *life <= rules.ttl);
    Ok(life.ok_or_else(unknown)?)
}

/// The lives to choose from, the longest first.
fn lives(ttl: Duration) -> Vec<(u64, String)> {
    let shorter = LIVES.into_iter().filter(|life| *life < ttl);
    let all = [ttl].into_iter().chain(shorter);
    all.map(|life| (life.as_secs().max(1), lasting(life)))
        .collect()
}

/// A duration for people.
fn lasting(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [
        (86_400, "day"),
        (3600, "hour"),
        (60, "minute"),
        (1, "second"),
    ];
    let exact = units
        .into_iter()
        .find(|(unit, _)| seconds.is_multiple_of(*unit));
    let (unit, name) = exact.unwrap_or((1, "second"));
    match seconds / unit {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}

fn full(what: &str, remedy: &'static str) -> ErrorPage {
    ErrorPage {
        status: StatusCode::CONFLICT,
        ..ErrorPage::bad("There is no room for this key", what, remedy)
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The most keys of a page: more than a person may have.
const LISTED: usize = 100;
/// The most servers, and scopes, of a form: a form has at most 100 parameters.
const SERVERS: usize = 50;
const SCOPES: usize = 40;
/// The most letters of a label.
const LABEL: usize = 60;
/// Lives that are offered where the tenant allows a longer one.
const LIVES: [Duration; 5] = [
    Duration::from_hours(365 * 24),
    Duration::from_hours(90 * 24),
    Duration::from_hours(30 * 24),
    Duration::from_hours(7 * 24),
    Duration::from_hours(24),
];
