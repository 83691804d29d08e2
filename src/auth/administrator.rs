//! Who may administrate: operators, who see every tenant, and administrators of one.
//!
//! Both prove it by an API key with the scope `admin`: an operator's belongs to no tenant. Not
//! here: what may be administrated (`http/admin`).

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use aws_lc_rs::rand::SystemRandom;

use super::{
    access::{Credential, Verifier},
    api_key,
    denials::{Caller, Denial},
    principals::{API_KEY_ISSUER, Principal},
};
use crate::{
    database::{Author, Expected, Failure},
    declare::{Catalog, Document, Kind, Object, ObjectName, OperatorKeys},
    snapshot::Live,
    telemetry::Denied,
};

/// Somebody who may administrate.
#[derive(Clone, Debug)]
pub(crate) struct Administrator {
    /// Who it is, for the audit trail.
    pub(crate) actor: String,
    /// The only tenant that it sees; none sees all.
    tenant: Option<String>,
}

impl Administrator {
    /// Whether it is an operator.
    pub(crate) fn is_operator(&self) -> bool {
        self.tenant.is_none()
    }

    /// Whether what belongs to `tenant` exists for it.
    pub(crate) fn sees(&self, tenant: &str) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// The only tenant that it sees.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdministratorRefusal {
    /// There were no credentials.
    NoToken,
    /// They are worth nothing here.
    BadToken,
    /// They lack the scope.
    NoScope,
}

impl Verifier {
    /// Waits until the denials that were reported are on record, but not for long.
    pub(crate) async fn settle(&self) {
        self.0.denials.settle().await;
    }

    /// Whom a credential shows, if that is somebody who may administrate.
    ///
    /// # Errors
    ///
    /// Why not; it has been reported.
    pub(crate) fn administrator(
        &self,
        catalog: &Catalog,
        operators: &OperatorKeys,
        credential: Credential<'_>,
        from: Option<std::net::IpAddr>,
    ) -> Result<Administrator, AdministratorRefusal> {
        let deny = |why, who, tenant: &str, reason, detail| {
            self.0.denials.report(Denial {
                who,
                tenant: tenant.into(),
                server: "".into(),
                route: "admin",
                reason,
                detail,
            });
            Err(why)
        };
        let (none, bad) = (Denied::NoToken, Denied::BadToken);
        let at = Caller::At(from);
        let text = match credential {
            Credential::None => {
                return deny(AdministratorRefusal::NoToken, at, "", none, "no token");
            }
            Credential::Malformed => {
                return deny(AdministratorRefusal::BadToken, at, "", bad, "malformed");
            }
            Credential::Bearer(text) => text,
        };
        let now = self.0.now();
        let hash = api_key::hash_of(text);
        if let Some(key) = hash
            .and_then(|hash| operators.get(&hash))
            .filter(|key| key.holds(now))
        {
            return Ok(Administrator {
                actor: format!("operator:{}", key.name),
                tenant: None,
            });
        }
        let found = catalog
            .tenants
            .values()
            .find_map(|tenant| Some((tenant, api_key::find(tenant, text, now)?.1)));
        let Some((tenant, key)) = found else {
            return deny(
                AdministratorRefusal::BadToken,
                at,
                "",
                bad,
                "no key known here",
            );
        };
        if !key.scopes.iter().any(|scope| scope == ADMIN_SCOPE) {
            let (issuer, subject) = (Some(API_KEY_ISSUER), Some(key.subject.as_str()));
            let who = Principal::new(&tenant.name, issuer, subject, Some(&key.name));
            let (who, reason) = (Caller::Known(who), Denied::NoGrant);
            return deny(
                AdministratorRefusal::NoScope,
                who,
                &tenant.name,
                reason,
                "no scope admin",
            );
        }
        Ok(Administrator {
            actor: format!("key:{}/{}", tenant.name, key.name),
            tenant: Some(tenant.name.clone()),
        })
    }
}

/// Sees to it that somebody can get in: with the key that was `given`, or, where no operator has
/// one that holds, with a new one in `{data_dir}/admin.key` that only its owner may read.
///
/// # Errors
///
/// Those of the store; `Bug` if the file cannot be written, and nobody can get in.
pub(crate) async fn ensure_operator(
    live: &Live,
    given: Option<&str>,
    data_dir: &Path,
) -> Result<(), Failure> {
    let (store, snapshot) = (live.store()?, live.snapshot());
    let author = Author::named("start");
    let now = u64::try_from(live.clock().now_ms() / 1000).unwrap_or(0);
    if let Some(given) = given {
        let known = api_key::hash_of(given).and_then(|hash| snapshot.operator_keys.get(&hash));
        if !known.is_some_and(|key| key.holds(now)) {
            // One that has ended holds again, by its own name: no two keys have one text.
            let name = known.map_or("environment", |key| &key.name);
            let name = ObjectName::operator_key(name);
            store
                .put(&name, key_object(given), Expected::Any, &author)
                .await?;
            live.refresh().await?;
        }
        return Ok(());
    }
    let is_open = |keys: &OperatorKeys| keys.values().any(|key| key.holds(now));
    if is_open(&snapshot.operator_keys) {
        return Ok(());
    }
    let name = ObjectName::operator_key("first");
    let before = store.get(&name).await?;
    // Whoever was faster than this is seen now, whoever is from here on by its version.
    live.refresh().await?;
    if is_open(&live.snapshot().operator_keys) {
        return Ok(());
    }
    let expected = before.map_or(Expected::Absent, |before| Expected::Version(before.version));
    let file = data_dir.join("admin.key");
    let key = key_file(&file)
        .map_err(|error| Failure::Bug(format!("cannot write {}: {error}", file.display())))?;
    match store.put(&name, key_object(&key), expected, &author).await {
        // Another replica was faster: its file has the key.
        Err(Failure::Conflict) => _ = fs::remove_file(&file),
        other => {
            other?;
            tracing::info!(event = "admin.key", file = %file.display(), "an operator's API key");
        }
    }
    live.refresh().await
}

fn key_object(key: &str) -> Object {
    let hash = ("hash".to_owned(), api_key::fingerprint(key).into());
    Object::new(Kind::ApiKey, Document::from_iter([hash]))
}

/// The key in a file; a new one where there is none that could be one.
fn key_file(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if api_key::hash_of(text.trim()).is_some() => {
            return Ok(text.trim().to_owned());
        }
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let random = SystemRandom::new();
    let key = api_key::generate(&random).map_err(|_| io::Error::other("no randomness"))?;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(format!("{key}\n").as_bytes())?;
    file.sync_all()?;
    Ok(key)
}

/// The scope of those who administrate.
pub(crate) const ADMIN_SCOPE: &str = "admin";
