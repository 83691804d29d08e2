//! Secrets of declared objects: passwords are hashed, null keeps a stored secret, and documents
//! show null.
//!
//! Not here: sealing (`vault`), and the parameters of password hashes (`declare`).

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::Value as Json;

use crate::{
    base::{Random, Secret},
    config::{Mistake, Wrong},
    database::pool::Error,
    declare::{
        Declared, Kind, Object, ObjectName, PASSWORD, PASSWORD_HASH, PLACE,
        password::{MAX_CONCURRENT, check_password, hash, is_hash_of},
    },
    manifest::interpolation::{escape, interpolate, is_closed},
};

/// Replaces every password in `wanted` by its hash; reads `stored` if there is a password. A stored
/// hash of the same password stays, so that applying a manifest again changes nothing.
///
/// Call it before the transaction begins, because hashing takes long and other writers wait.
pub(super) async fn hashed(
    random: &Random,
    mut wanted: Declared,
    stored: impl Future<Output = Result<Declared, Error>>,
) -> Result<Declared, Error> {
    let plain = wanted
        .0
        .iter()
        .filter(|(name, _)| name.kind() == Kind::User);
    let plain: Vec<_> = plain
        .filter_map(|(name, object)| Some((name.clone(), object.password()?)))
        .collect();
    if plain.is_empty() {
        return Ok(wanted);
    }
    let stored = stored.await?;
    let hashing = plain.into_iter().map(|(name, password)| {
        let old = stored.0.get(&name).and_then(Object::password_hash);
        async move {
            let tenant = name.owner().unwrap_or_default();
            let hash = kept_or_new(random, tenant, old, password).await?;
            Ok::<_, Error>((name, hash))
        }
    });
    // As many at once as there are turns; log-ins share them.
    let mut hashing = stream::iter(hashing).buffer_unordered(MAX_CONCURRENT);
    while let Some((name, hash)) = hashing.try_next().await? {
        if let Some(object) = wanted.0.get_mut(&name) {
            object.put_hash(&hash);
        }
    }
    Ok(wanted)
}

async fn kept_or_new(
    random: &Random,
    tenant: &str,
    old: Option<Secret>,
    password: Secret,
) -> Result<Secret, Error> {
    if let Some(old) = old
        && is_hash_of(tenant, &old, &password).await
    {
        return Ok(old);
    }
    let hashed = hash(random, tenant, password).await;
    hashed.map_err(|error| Error::Bug(error.to_string()))
}

/// Passwords of users.
impl Object {
    /// The declared plain-text password; none if it is invalid, which the reader reports.
    fn password(&self) -> Option<Secret> {
        let text = Self::plain(self.secret.0.get(PASSWORD)?)?;
        let is_lone = !self.secret.0.contains_key(PASSWORD_HASH);
        (is_lone && check_password(text.expose()).is_ok()).then_some(text)
    }

    fn password_hash(&self) -> Option<Secret> {
        Self::plain(self.secret.0.get(PASSWORD_HASH)?)
    }

    /// A text without references. One with a reference, which the reader reports, is never followed: an administrator of
    /// a tenant could have any file of the gateway as a password.
    fn plain(json: &Json) -> Option<Secret> {
        let text = json.as_str().filter(|text| is_closed(text))?;
        interpolate(text, &BTreeMap::new()).ok().map(Secret::new)
    }

    fn put_hash(&mut self, hash: &Secret) {
        self.secret.0.remove(PASSWORD);
        let text = escape(hash.expose());
        self.secret.0.insert(PASSWORD_HASH.to_owned(), text.into());
    }

    /// Treats a null password as the stored hash, unless another hash is given.
    pub(super) fn keep_password(&mut self) {
        let secret = &mut self.secret.0;
        match secret.get(PASSWORD).map(Json::is_null) {
            Some(true) => {
                secret.remove(PASSWORD);
                secret.entry(PASSWORD_HASH).or_insert(Json::Null);
            }
            Some(false) if secret.get(PASSWORD_HASH).is_some_and(Json::is_null) => {
                secret.remove(PASSWORD_HASH);
            }
            _ => {}
        }
    }
}

/// Secrets in documents of the administration API.
impl Object {
    /// Replaces null secrets by those of the stored object `kept`.
    ///
    /// # Errors
    ///
    /// Nulls without a stored secret.
    pub(super) fn keep_secrets(
        &mut self,
        name: &ObjectName,
        kept: Option<&Self>,
    ) -> Result<(), Vec<Mistake>> {
        self.keep_password();
        let mut missing = Vec::new();
        let mut keep = |value: &mut Json, old: Option<&Json>, key: String| match old {
            _ if !value.is_null() => {}
            Some(old) => *value = old.clone(),
            None => {
                let remedy = "write a value: null keeps what is stored";
                missing.push(Wrong::new("is null and not stored yet", remedy).at(PLACE, &key));
            }
        };
        for (member, value) in &mut self.secret.0 {
            let key = format!("{}.{member}", name.key());
            let old = kept.and_then(|kept| kept.secret.0.get(member));
            match value {
                Json::Object(inner) => {
                    for (part, value) in inner {
                        let old = old.and_then(|old| old.get(part));
                        keep(value, old, format!("{key}.{part}"));
                    }
                }
                value => keep(value, old, key),
            }
        }
        if missing.is_empty() {
            Ok(())
        } else {
            Err(missing)
        }
    }

    /// The members, with null for every secret.
    pub(crate) fn shown(&self) -> Json {
        let hidden = |value: &Json| match value {
            Json::Object(inner) => {
                let nulls = inner.keys().map(|part| (part.clone(), Json::Null));
                Json::Object(nulls.collect())
            }
            _ => Json::Null,
        };
        let mut shown = self.spec.clone();
        let secrets = self.secret.0.iter();
        shown.extend(secrets.map(|(member, value)| (member.clone(), hidden(value))));
        Json::Object(shown)
    }
}
