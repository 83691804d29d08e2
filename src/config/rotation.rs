//! Secrets whose files have changed while the gateway runs.
//!
//! Not here: looking at the files, and what follows from a change (`gateway/rotation`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use url::Url;

use super::{
    cluster::{AUTHORITIES, Redis, authorities, redis_url},
    gateway::Config,
    reader::{Mistake, Wrong},
    sources::{SettingFile, file_node},
    storage::{ADMIN_KEY, sql_url},
};
use crate::base::{ContentDigest, Secret, content_digest};

/// A setting whose file has another content.
#[derive(Debug)]
pub(crate) enum Rotated {
    /// The operator's key.
    AdminKey(Secret),
    /// The URL of PostgreSQL, with other credentials.
    Sql(Secret),
    /// Redis, with other credentials or certificates.
    Redis(Redis),
    /// A setting that only a start takes over; its key.
    AtStart(String),
}

/// The settings in use that come from files.
pub(crate) struct RotatingSettings {
    files: BTreeMap<String, SettingFile>,
    /// The place of each key.
    places: BTreeMap<String, String>,
    sql_url: Option<Secret>,
    redis: Option<Redis>,
    admin_key: Option<Secret>,
}

impl RotatingSettings {
    /// Those of a configuration that was just read.
    pub(crate) fn of(config: &Config) -> Self {
        let keys = config.files.keys();
        Self {
            places: keys
                .map(|key| (key.clone(), config.place(key).to_owned()))
                .collect(),
            files: config.files.clone(),
            sql_url: config.storage.sql_url.clone(),
            redis: config.redis.clone(),
            admin_key: config.storage.admin_key.clone(),
        }
    }

    /// Their files, as they were when the settings were read.
    pub(crate) fn files(&self) -> impl Iterator<Item = (PathBuf, ContentDigest)> {
        let files = self.files.values();
        files.map(|file| (file.path.clone(), file.content))
    }

    /// Reads the settings in `file` again, and returns those that differ from the ones in use; they
    /// are in use from now on. A mistake changes nothing.
    pub(crate) fn read(&mut self, file: &Path) -> Vec<Result<Rotated, Mistake>> {
        let named = self.files.iter().filter(|(_, named)| named.path == file);
        let keys: Vec<String> = named.map(|(key, _)| key.clone()).collect();
        let read = keys.into_iter().map(|key| {
            let rotated = self.read_key(&key, file.to_str().unwrap_or_default());
            rotated
                .map_err(|wrong| wrong.at(self.place(&key), &key))
                .transpose()
        });
        read.flatten().collect()
    }

    fn place(&self, key: &str) -> &str {
        match key {
            ADMIN_KEY => "LOCKGATE_ADMIN_KEY_FILE",
            key => self.places.get(key).map_or("", String::as_str),
        }
    }

    fn read_key(&mut self, key: &str, file: &str) -> Result<Option<Rotated>, Wrong> {
        if key == AUTHORITIES {
            let Some(redis) = &mut self.redis else {
                return Ok(None);
            };
            let read = authorities(file)?;
            let is_new = read != redis.authorities;
            redis.authorities = read;
            return Ok(is_new.then(|| Rotated::Redis(redis.clone())));
        }
        let node = file_node(self.place(key), file)?;
        match (key, &mut self.redis) {
            ("sql.url", _) => {
                let is_new = replace(&mut self.sql_url, sql_url(&node)?)?;
                Ok(is_new.map(Rotated::Sql))
            }
            ("redis.url", Some(redis)) => {
                let mut url = Some(redis.url.clone());
                let is_new = replace(&mut url, redis_url(&node)?)?;
                Ok(is_new.map(|url| {
                    redis.url = url;
                    Rotated::Redis(redis.clone())
                }))
            }
            (ADMIN_KEY, _) => {
                let read = Secret::of(node.text()?.trim().to_owned()).ok_or_else(|| {
                    Wrong::new("is empty", "write a key that lockgate key new prints")
                })?;
                let is_new = self.admin_key.as_ref() != Some(&read);
                self.admin_key = Some(read.clone());
                Ok(is_new.then_some(Rotated::AdminKey(read)))
            }
            (other, _) => {
                let found = content_digest(Path::new(file));
                let known = self.files.get_mut(other);
                let before = known.map(|known| std::mem::replace(&mut known.content, found));
                Ok((before != Some(found)).then(|| Rotated::AtStart(other.to_owned())))
            }
        }
    }
}

/// Replaces a URL by one that differs in credentials only, and returns it if it differs at all.
fn replace(used: &mut Option<Secret>, read: Option<Secret>) -> Result<Option<Secret>, Wrong> {
    if *used == read {
        return Ok(None);
    }
    let is_same = match (&used, &read) {
        (Some(old), Some(new)) => server(old.expose()) == server(new.expose()),
        _ => false,
    };
    if !is_same {
        return Err(Wrong::new(
            "names another server than the one in use, and only credentials are taken over",
            "restart to change more than user and password",
        ));
    }
    used.clone_from(&read);
    Ok(read)
}

/// A URL without its credentials; none for an invalid one.
fn server(url: &str) -> Option<Url> {
    let mut url = Url::parse(url).ok()?;
    // Fails without a host, which has no credentials before it either.
    _ = url.set_username("");
    _ = url.set_password(None);
    let others = url.query_pairs().filter(|(name, _)| {
        let name: &str = name;
        !matches!(name, "user" | "username" | "pass" | "password")
    });
    let mut others: Vec<_> = others
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    others.sort();
    url.set_query(Some(&others.join("&")));
    Some(url)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{Sources, rotation::*};

    struct Rotating {
        folder: tempfile::TempDir,
        settings: RotatingSettings,
    }

    fn rotating(files: &[(&str, &str)]) -> Rotating {
        let folder = tempfile::tempdir().unwrap();
        let mut sources = Sources::default();
        sources.set.push("data_dir=/nowhere".to_owned());
        for (variable, text) in files {
            let file = folder.path().join(variable);
            fs::write(&file, text).unwrap();
            let name = format!("LOCKGATE_{variable}_FILE");
            sources.env.insert(name, file.display().to_string());
        }
        let config = Config::load(&sources).unwrap();
        let settings = RotatingSettings::of(&config);
        Rotating { folder, settings }
    }

    impl Rotating {
        /// What a new content of the file of a variable changes.
        fn write(&mut self, variable: &str, text: &str) -> String {
            let file = self.folder.path().join(variable);
            fs::write(&file, text).unwrap();
            let read = self.settings.read(&file);
            let shown = read.iter().map(|one| match one {
                Ok(Rotated::AdminKey(key)) => format!("key {}", key.expose()),
                Ok(Rotated::Sql(url)) => format!("sql {}", url.expose()),
                Ok(Rotated::Redis(redis)) => format!("redis {}", redis.url.expose()),
                Ok(Rotated::AtStart(key)) => format!("start {key}"),
                Err(mistake) => mistake.to_string(),
            });
            shown.collect()
        }
    }

    #[test]
    fn credentials_are_taken_over_and_other_servers_are_not() {
        let of = |before: &str, after: &str| {
            let mut rotating = rotating(&[("SQL__URL", before)]);
            let first = rotating.write("SQL__URL", after);
            let again = rotating.write("SQL__URL", after);
            assert!(again.is_empty() || again == first, "{again}");
            first
        };
        let (old, new) = (
            "postgres://u:1@h/d?sslmode=disable\n",
            "postgres://v:2@h/d?sslmode=disable",
        );
        assert_eq!(of(old, old), "");
        assert_eq!(of(old, new), format!("sql {new}"));
        assert_eq!(
            of(
                "postgres://h/d?user=a&host=/x",
                "postgres://h/d?host=/x&user=b&password=c"
            ),
            "sql postgres://h/d?host=/x&user=b&password=c"
        );
        for wrong in [
            "postgres://u:1@i/d",
            "postgres://u:1@h/e",
            "postgres://u:1@h:1/d",
            "postgres://u:1@h/d?sslmode=require",
            "",
            "mysql://u:s3cret@h/d",
        ] {
            let said = of("postgres://u:1@h/d", wrong);
            assert!(
                said.starts_with("LOCKGATE_SQL__URL_FILE: sql.url: "),
                "{said}"
            );
            assert!(!said.contains("s3cret"));
        }
    }

    #[test]
    fn each_secret_is_read_as_at_the_start() {
        let mut read = rotating(&[
            ("REDIS__URL", "redis://:a@h:1/2"),
            ("SQL__URL", "postgres://h/d"),
            ("ADMIN_KEY", "lgk_1\n"),
            ("MASTER_KEY", "one"),
            ("AUDIT__KEEP", "1d"),
        ]);
        assert_eq!(
            read.write("REDIS__URL", "redis://u:b@h:1/2\n"),
            "redis redis://u:b@h:1/2"
        );
        assert!(
            read.write("REDIS__URL", "redis://u:b@h:1/3")
                .contains("redis.url: names another")
        );
        assert_eq!(read.write("REDIS__URL", "redis://u:b@h:1/2"), "");
        assert_eq!(read.write("ADMIN_KEY", "lgk_1 \n"), "");
        assert_eq!(read.write("ADMIN_KEY", "lgk_2\n"), "key lgk_2");
        assert!(read.write("ADMIN_KEY", "").contains("is empty"));
        for (variable, key, [first, second]) in [
            ("MASTER_KEY", "master_key", ["one", "two"]),
            ("AUDIT__KEEP", "audit.keep", ["1d", "2d"]),
        ] {
            assert_eq!(read.write(variable, first), "");
            assert_eq!(read.write(variable, second), format!("start {key}"));
            assert_eq!(read.write(variable, second), "");
        }
    }
}
