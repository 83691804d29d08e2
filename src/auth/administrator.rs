//! Administrators: operators, who see every tenant, and administrators of one tenant.
//!
//! Both present an API key with the scope `admin`; an operator's key belongs to no tenant. Not
//! here: the administration operations (`http/admin`).

use std::{fs, io, path::Path, sync::Arc};

use aws_lc_rs::rand::SystemRandom;

use super::{
    api_key,
    denials::{Caller, Denial},
    principals::by_key,
    request::Credential,
    verifier::Verifier,
};
use crate::{
    base::private_file,
    database::{self, Author, Expected},
    declare::{ApiKey, Catalog, Document, Kind, Object, ObjectName, OperatorKeys, Tenant},
    snapshot::CurrentSnapshot,
    telemetry::Denied,
};

/// An administrator.
#[derive(Clone, Debug)]
pub(crate) struct Administrator {
    /// The actor in audit records.
    pub(crate) actor: String,
    /// The digest of its key.
    key: [u8; 32],
    /// The visible tenants; none for an operator. There is more than one only if several tenants
    /// declare the same key, and the request names none of them.
    tenants: Option<Vec<String>>,
}

impl Administrator {
    /// Reports whether this is an operator.
    pub(crate) fn is_operator(&self) -> bool {
        self.tenants.is_none()
    }

    /// Reports whether the objects of `tenant` are visible.
    pub(crate) fn sees(&self, tenant: &str) -> bool {
        let mut own = self.tenants.iter().flatten();
        self.is_operator() || own.any(|own| own == tenant)
    }

    /// The only visible tenants.
    pub(crate) fn tenants(&self) -> Option<&[String]> {
        self.tenants.as_deref()
    }
}

/// The reason why a request may not administrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdministratorRefusal {
    /// No credential.
    NoToken,
    /// An invalid credential.
    BadToken,
    /// A key that is not known here, and may be stored in a database that cannot be read.
    NotRead,
    /// The scope is missing.
    NoScope,
}

impl Verifier {
    /// Waits for a short time until reported denials are in the audit trail.
    pub(crate) async fn settle(&self) {
        self.0.denials.settle().await;
    }

    /// The refusal of a key that is not known here, while the database cannot be read.
    fn not_read(&self) -> Option<AdministratorRefusal> {
        let is_cut_off = self.0.asked.is_cut_off();
        is_cut_off.then_some(AdministratorRefusal::NotRead)
    }

    /// Reports whether the key of an administrator makes one still: the body of a request may come long after its head.
    pub(crate) fn is_still(
        &self,
        (catalog, operators): (&Catalog, &OperatorKeys),
        administrator: &Administrator,
    ) -> bool {
        let (now, hash) = (self.0.now(), administrator.key);
        let Some(tenants) = &administrator.tenants else {
            return operators.get(&hash).is_some_and(|key| key.holds(now));
        };
        tenants.iter().all(|tenant| {
            let tenant = catalog.tenants.get(tenant);
            let found = tenant.and_then(|tenant| api_key::find(tenant, hash, now));
            found.is_some_and(|(_, key)| is_admin(&key))
        })
    }

    /// The administrator with this credential; `tenant` is the one that the request names.
    ///
    /// A tenant may declare a key whose hash it knows from another. What the key may do in one tenant
    /// does not depend on the other.
    ///
    /// # Errors
    ///
    /// The reason why there is none; it has been reported.
    pub(crate) fn administrator(
        &self,
        (catalog, operators): (&Catalog, &OperatorKeys),
        credential: Credential<'_>,
        tenant: Option<&str>,
        from: Option<std::net::IpAddr>,
    ) -> Result<Administrator, AdministratorRefusal> {
        let deny = |why, who, tenant: &str, reason, detail| {
            self.0.denials.report(Denial {
                who,
                tenant: tenant.into(),
                server: "".into(),
                route: "admin",
                reason,
                user: None,
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
            Credential::Malformed | Credential::Bound { .. } | Credential::Asserted(_) => {
                return deny(AdministratorRefusal::BadToken, at, "", bad, "malformed");
            }
            Credential::Bearer(text) => text,
        };
        let now = self.0.now();
        let no_key = || {
            deny(
                AdministratorRefusal::BadToken,
                at,
                "",
                bad,
                "no key known here",
            )
        };
        let Some(hash) = api_key::digest(text) else {
            return no_key();
        };
        if let Some(key) = operators.get(&hash).filter(|key| key.holds(now)) {
            return Ok(Administrator {
                actor: format!("operator:{}", key.name),
                key: hash,
                tenants: None,
            });
        }
        let found = keys_with(catalog, hash, tenant, now);
        let Some((first, key)) = found.first() else {
            return self.not_read().map_or_else(no_key, Err);
        };
        let mut own = found.iter().filter(|(_, key)| is_admin(key)).peekable();
        let Some((tenant, key)) = own.peek() else {
            let (who, reason) = (Caller::Known(by_key(first, key)), Denied::NoGrant);
            let why = AdministratorRefusal::NoScope;
            return deny(why, who, &first.name, reason, "no scope admin");
        };
        Ok(Administrator {
            actor: format!("key:{}/{}", tenant.name, key.name),
            key: hash,
            tenants: Some(own.map(|(tenant, _)| tenant.name.clone()).collect()),
        })
    }
}

fn is_admin(key: &ApiKey) -> bool {
    key.scopes.iter().any(|scope| scope == ADMIN_SCOPE)
}

/// The valid keys with the digest `hash`, each with its tenant: that of `tenant` alone if it has one.
fn keys_with<'c>(
    catalog: &'c Catalog,
    hash: [u8; 32],
    tenant: Option<&str>,
    now: u64,
) -> Vec<(&'c Arc<Tenant>, Arc<ApiKey>)> {
    let of = |tenant: &'c Arc<Tenant>| Some((tenant, api_key::find(tenant, hash, now)?.1));
    let named = tenant.and_then(|tenant| catalog.tenants.get(tenant));
    if let Some(named) = named.and_then(of) {
        return vec![named];
    }
    let mut found: Vec<_> = catalog.tenants.values().filter_map(of).collect();
    found.sort_by_key(|(tenant, _)| tenant.name.as_str());
    found
}

/// Ensures that an operator can log in: with the `given` key or, if no operator has a valid key,
/// with a new one in `{data_dir}/admin.key`, readable by its owner only.
///
/// # Errors
///
/// Those of the store; `Bug` if the file cannot be written.
pub(crate) async fn ensure_operator(
    current: &CurrentSnapshot,
    given: Option<&str>,
    data_dir: &Path,
) -> Result<(), database::Error> {
    let (store, snapshot) = (current.database()?, current.load());
    let author = Author::named("start");
    let now = u64::try_from(current.clock().now_ms() / 1000).unwrap_or(0);
    if let Some(given) = given {
        let known = api_key::hash_of(given).and_then(|hash| snapshot.operator_keys.get(&hash));
        if !known.is_some_and(|key| key.holds(now)) {
            // An expired key becomes valid again under its own name: each key has one object.
            let name = known.map_or("environment", |key| &key.name);
            let object = ObjectName::operator_key(name);
            store
                .objects()
                .put(&object, key_object(given), Expected::Any, &author)
                .await?;
            if !snapshot.operator_keys.is_empty() {
                tracing::warn!(
                    event = "operator.key",
                    name,
                    "admin_key was no valid key of an operator, and is one again"
                );
            }
            refresh(current).await?;
        }
        return Ok(());
    }
    let is_open = |keys: &OperatorKeys| keys.values().any(|key| key.holds(now));
    if is_open(&snapshot.operator_keys) {
        return Ok(());
    }
    let name = ObjectName::operator_key("first");
    let before = store.objects().get(&name).await?;
    // A refresh shows concurrent writers up to here; the expected version detects later ones.
    refresh(current).await?;
    if is_open(&current.load().operator_keys) {
        return Ok(());
    }
    let expected = before.map_or(Expected::Absent, |before| {
        Expected::Versions(vec![before.shown_version()])
    });
    let file = data_dir.join("admin.key");
    let key = key_file(&file).map_err(|error| {
        database::Error::Bug(format!("cannot write {}: {error}", file.display()))
    })?;
    match store
        .objects()
        .put(&name, key_object(&key), expected, &author)
        .await
    {
        // Another replica was faster, and its file has the key.
        Err(database::Error::Conflict) => _ = fs::remove_file(&file),
        other => {
            other?;
            tracing::info!(event = "admin.key", file = %file.display(), "an operator's API key");
        }
    }
    refresh(current).await
}

/// Reads the keys of operators again, also where a tenant cannot be served: an operator has to mend that.
async fn refresh(current: &CurrentSnapshot) -> Result<(), database::Error> {
    match current.refresh().await {
        Err(database::Error::Invalid(_)) if current.is_loaded() => Ok(()),
        refreshed => refreshed,
    }
}

fn key_object(key: &str) -> Object {
    let hash = ("hash".to_owned(), api_key::fingerprint(key).into());
    Object::new(Kind::ApiKey, Document::from_iter([hash]))
}

/// Reads the key in a file, or writes a new one if there is no valid key.
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
    private_file::write_new(path, &format!("{key}\n"))?;
    Ok(key)
}

/// The scope of administrators.
pub(crate) const ADMIN_SCOPE: &str = "admin";
