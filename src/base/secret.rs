//! Secrets of objects as others meet them: not shown, and kept where nothing is put in their place.

use serde_json::Value as Json;

use crate::config::{Mistake, Wrong};
use crate::declare::{Object, ObjectName, PLACE};

impl Object {
    /// Puts what `kept` has of it in the place of secrets that are null.
    ///
    /// # Errors
    ///
    /// Nulls for which nothing is kept.
    pub(crate) fn keep_secrets(
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

    /// Its members as anybody may see them who may see it at all: secrets are null.
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
