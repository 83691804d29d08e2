//! Settings of stored data: location, master key, and retention.
//!
//! Not here: the database itself (`database`).

use std::{collections::BTreeMap, path::Path, time::Duration};

use url::Url;

use super::{
    document::Node,
    reader::{Wrong, nearest},
    sources::{Layers, SettingFile, twice},
};
use crate::base::{self, Secret};

/// Location, encryption and retention of stored data.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    /// The URL of PostgreSQL; none for a SQLite file in the data directory.
    pub(crate) sql_url: Option<Secret>,
    /// The master keys, the first in use; none for a key file in the data directory.
    pub(crate) master_key: Option<Secret>,
    /// The retention of audit records; zero keeps them for ever.
    pub(crate) audit: Duration,
    /// The API key of an operator, from the environment only.
    pub(crate) admin_key: Option<Secret>,
}

impl Storage {
    /// Reads `sql.url` (else `DATABASE_URL`), `master_key` and `audit.keep`.
    pub(crate) fn read(layers: &mut Layers, env: &BTreeMap<String, String>) -> Self {
        if let Some(url) = env.get("DATABASE_URL").filter(|url| !url.is_empty())
            && layers.is_default("sql.url")
            && !layers.run
        {
            layers.add("sql.url", Node::from_word("DATABASE_URL", url));
        }
        Self {
            sql_url: layers.leaf("sql.url", sql_url),
            master_key: layers.leaf("master_key", |node| Ok(Secret::of(node.text()?))),
            audit: layers.leaf("audit.keep", Node::duration),
            admin_key: admin_key(layers, env),
        }
    }
}

/// Parses a URL of PostgreSQL; none if empty.
pub(super) fn sql_url(node: &Node) -> Result<Option<Secret>, Wrong> {
    let text = node.text()?;
    let is_known =
        SCHEMES.iter().any(|scheme| text.starts_with(scheme)) && Url::parse(&text).is_ok();
    if !text.is_empty() && !is_known {
        // Without the text, which may contain a password.
        let what = "is no URL of PostgreSQL";
        let remedy = "write postgres://USER:PASSWORD@HOST/DATABASE, or \"\" for a file";
        return Err(Wrong::new(what, remedy));
    }
    let url = Url::parse(&text).ok();
    let mut names = url
        .iter()
        .flat_map(|url| url.query_pairs().map(|(name, _)| name));
    // The driver would log the value with every connection, and go on without it. The name may be a part of a password.
    if let Some(unknown) = names.find(|name| !is_parameter(name)) {
        let remedy = match nearest(&unknown, PARAMETERS.into_iter()) {
            Some(near) => format!("did you mean {near}?"),
            None => "leave it out; a ? in a password is written %3F".to_owned(),
        };
        return Err(Wrong::new(
            "has a parameter that PostgreSQL's URLs do not have",
            remedy,
        ));
    }
    Ok(Secret::of(text))
}

/// Whether the driver knows a parameter of a URL.
fn is_parameter(name: &str) -> bool {
    let is_option = name.starts_with("options[") && name.ends_with(']');
    is_option || PARAMETERS.contains(&name)
}

/// Returns `LOCKGATE_ADMIN_KEY`, or the content of the file in `LOCKGATE_ADMIN_KEY_FILE`.
fn admin_key(layers: &mut Layers, env: &BTreeMap<String, String>) -> Option<Secret> {
    let of = |name: &str| env.get(name).filter(|text| !text.is_empty());
    if let Some(key) = of("LOCKGATE_ADMIN_KEY") {
        if of("LOCKGATE_ADMIN_KEY_FILE").is_some() {
            let twice = twice("LOCKGATE_ADMIN_KEY");
            layers
                .mistakes
                .push(twice.at("LOCKGATE_ADMIN_KEY_FILE", ADMIN_KEY));
        }
        return Secret::of(key.trim().to_owned());
    }
    let file = of("LOCKGATE_ADMIN_KEY_FILE")?;
    let before = SettingFile::now(file);
    match base::text(Path::new(file), base::SETTING_MAX) {
        Ok(text) => {
            layers.files.insert(ADMIN_KEY.to_owned(), before);
            Secret::of(text.trim().to_owned())
        }
        Err(error) => {
            let wrong = Wrong::new(format!("cannot be read: {error}"), "name a readable file");
            let mistake = wrong.at("LOCKGATE_ADMIN_KEY_FILE", ADMIN_KEY);
            layers.mistakes.push(mistake);
            None
        }
    }
}

/// The name of the operator's key among the files of settings.
pub(super) const ADMIN_KEY: &str = "admin key";
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
/// The parameters that sqlx knows (`PgConnectOptions`), beside `options[NAME]`.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];

#[cfg(test)]
mod tests {
    use super::super::storage::*;

    fn read(env: &[(&str, &str)], set: &[&str]) -> (Storage, Vec<String>) {
        let pairs = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let env: BTreeMap<String, String> = pairs.collect();
        let mut layers = Layers::new(false);
        layers.add_env(&env);
        for set in set {
            layers.add_set(set);
        }
        let storage = Storage::read(&mut layers, &env);
        let mistakes = layers.mistakes.iter().map(ToString::to_string);
        (storage, mistakes.collect())
    }

    fn url(env: &[(&str, &str)], set: &[&str]) -> Option<String> {
        let (storage, mistakes) = read(env, set);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        storage.sql_url.map(|url| url.expose().to_owned())
    }

    #[test]
    fn the_usual_variable_names_the_database_where_nothing_else_does() {
        let usual = ("DATABASE_URL", "postgres://usual/x");
        assert_eq!(url(&[], &[]), None);
        assert_eq!(url(&[usual], &[]).as_deref(), Some("postgres://usual/x"));
        let own = ("LOCKGATE_SQL__URL", "postgresql://own/x");
        assert_eq!(
            url(&[usual, own], &[]).as_deref(),
            Some("postgresql://own/x")
        );
        assert_eq!(url(&[usual], &["sql.url="]), None);
    }

    #[test]
    fn what_cannot_be_used_is_a_mistake() {
        let of = |env: &[(&str, &str)]| read(env, &[]).1;
        assert_eq!(
            of(&[("LOCKGATE_SQL__URL", "postgres://h:99999/x")]).len(),
            1
        );
        let file = ("LOCKGATE_ADMIN_KEY_FILE", "/nonexistent");
        let said = of(&[("LOCKGATE_ADMIN_KEY", "lgk_x"), file]);
        assert!(
            said[0].contains("is set, and LOCKGATE_ADMIN_KEY is too"),
            "{said:?}"
        );
        assert_eq!(of(&[("LOCKGATE_ADMIN_KEY", ""), file]).len(), 1);
    }

    #[test]
    fn a_parameter_that_the_driver_would_log_is_a_mistake() {
        let of = |url: &str| read(&[("LOCKGATE_SQL__URL", url)], &[]).1;
        let known = "postgres://u@h/d?sslmode=require&password=p&options[search_path]=x&options=-c";
        assert_eq!(of(known), [""; 0]);
        for (url, remedy) in [
            (
                "postgres://u@h/d?sslmode=require&pasword=s3cret",
                "did you mean password?",
            ),
            ("postgres://u:1?s3cret@h/d", "%3F"),
        ] {
            let said = of(url).join("\n");
            assert!(said.starts_with("LOCKGATE_SQL__URL: sql.url: "), "{said}");
            assert!(said.contains(remedy) && !said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn secrets_are_read_and_not_shown() {
        let (storage, mistakes) = read(
            &[
                ("LOCKGATE_MASTER_KEY", "s3cret"),
                ("DATABASE_URL", "mysql://u:s3cret@h"),
            ],
            &["audit.keep=1d"],
        );
        assert_eq!(mistakes.len(), 1);
        assert!(!format!("{storage:?}{mistakes:?}").contains("s3cret"));
        assert_eq!(storage.master_key.unwrap().expose(), "s3cret");
        assert_eq!(storage.audit, Duration::from_hours(24));
    }
}
