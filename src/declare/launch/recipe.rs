//! The preparation of a server: the command that fills its store, once before the first start.
//!
//! Pure. Not here: recipes for `npx` and `uvx` (`packages`), and running them (`backend/prepare`).

use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use super::{
    sandbox::{Confinement, Profile, Tcp},
    specification::{Digest, Home, Launch},
};
use crate::base::Sha256;

/// The placeholder for the path of the store, which is known only later. `${prepared}` in a
/// manifest becomes it. No other text of a specification can contain it, because no program can
/// receive a NUL.
pub(crate) const STORE: char = '\0';

/// The variable with the path of the store, for programs that run with one.
pub(crate) const VARIABLE: &str = "LOCKGATE_PREPARED";

/// The preparation of a server's store, and the start of its children from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// The command and its arguments, which run in the store.
    pub(crate) words: Vec<String>,
    /// Its environment besides that of every child: settings of the specification, which may be
    /// secrets.
    env: Secrets,
    /// The start of the children.
    pub(crate) start: Start,
}

/// Variables whose values are never printed.
#[derive(Clone, PartialEq, Eq)]
struct Secrets(BTreeMap<String, String>);

/// The start of children from a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// As specified.
    AsWritten,
    /// As `npx` would start the program.
    Npm {
        /// The package whose version is shown, and whose program runs if none is named.
        package: String,
        /// The program, if named.
        bin: Option<String>,
        /// Its arguments.
        args: Vec<String>,
    },
    /// As `uvx` would start the program.
    Uv {
        /// The program.
        bin: String,
        /// Its arguments.
        args: Vec<String>,
    },
}

impl Recipe {
    /// A recipe of these words and variables, with the settings of `launch`.
    pub(crate) fn new<'e>(
        words: Vec<String>,
        env: impl IntoIterator<Item = (&'e str, &'e str)>,
        launch: &Launch,
        start: Start,
    ) -> Self {
        let settings = launch.env.iter().filter(|(name, _)| is_setting(name));
        let mut all: BTreeMap<_, _> = settings
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        // Last, so that all files are stored in the store.
        let own = [("HOME", "\0"), ("TMPDIR", "\0/.tmp"), (VARIABLE, "\0")];
        all.extend(
            own.into_iter()
                .chain(env)
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        Self {
            words,
            env: Secrets(all),
            start,
        }
    }

    /// The digest that names the store: the command, its settings, the platform, and who may have filled it.
    ///
    /// A preparation has the walls of its server. What runs in profile `open`, or may write more than its store,
    /// meets what others left for it, and its store is of use only to its own tenant.
    pub(crate) fn digest(&self, tenant: &str, walls: &Confinement) -> Digest {
        let is_walled = walls.profile == Profile::Standard && walls.write.is_empty();
        let filler = if is_walled { ANYBODY } else { tenant };
        let mut digest = Sha256::new();
        let mut add = |text: &str| digest.add_part(text.as_bytes());
        [FORMAT, std::env::consts::OS, std::env::consts::ARCH, filler]
            .into_iter()
            .for_each(&mut add);
        add(&self.words.len().to_string());
        self.words.iter().for_each(|word| add(word));
        for (name, value) in &self.env.0 {
            add(name);
            add(value);
        }
        digest.finish()
    }

    /// The launch specification of the preparation for a server with the specification `launch`.
    pub(crate) fn launch(&self, launch: &Launch, store: &Path) -> Launch {
        let mut words = self.words.iter().map(|word| filled(word, store));
        let mut made = launch.clone();
        made.command = words.next().unwrap_or_default();
        made.args = words.collect();
        made.env = filled_all(&self.env.0, store);
        for (name, value) in RETRIES {
            // npm reads its variables in any case.
            if !made.env.keys().any(|own| own.eq_ignore_ascii_case(name)) {
                made.env.insert(name.to_owned(), value.to_owned());
            }
        }
        made.cwd = Some(store.to_owned());
        made.home = Home::Private;
        made.prepared = Some(store.to_owned());
        made.is_preparing = true;
        // Regardless of the server's sandbox: the preparation downloads it.
        made.confinement.tcp = Tcp::Any;
        made
    }

    /// The subject of the preparation, for operators; never an argument, which may be a secret.
    pub(crate) fn subject(&self) -> &str {
        match &self.start {
            Start::AsWritten => self.words.first().map_or("", String::as_str),
            // Its URL may contain a password.
            Start::Uv { bin, .. } if self.words.last().is_some_and(|word| is_url(word)) => bin,
            Start::Npm { .. } | Start::Uv { .. } => self.words.last().map_or("", String::as_str),
        }
    }
}

impl Launch {
    /// The launch specification of a child from a store; `program` if the recipe found one.
    pub(crate) fn prepared(&self, recipe: &Recipe, program: Option<&str>, store: &Path) -> Self {
        let mut made = self.clone();
        made.env = filled_all(&self.env, store);
        let args = match &recipe.start {
            Start::AsWritten => &self.args,
            Start::Npm { args, .. } => args,
            Start::Uv { args, .. } => {
                // Python was compiled at the installation, and nothing can be written there.
                made.env
                    .entry("PYTHONDONTWRITEBYTECODE".to_owned())
                    .or_insert_with(|| "1".to_owned());
                args
            }
        };
        made.env.insert(VARIABLE.to_owned(), filled("\0", store));
        made.command = program.map_or_else(|| filled(&self.command, store), str::to_owned);
        made.args = args.iter().map(|arg| filled(arg, store)).collect();
        made.cwd = self.cwd.as_deref().map(|cwd| filled_path(cwd, store));
        made.prepared = Some(store.to_owned());
        made
    }

    /// Reports whether the specification refers to the store.
    pub(crate) fn has_store(&self) -> bool {
        let cwd = self.cwd.as_ref().map(|cwd| cwd.as_os_str().as_bytes());
        let mut texts = self.args.iter().chain(self.env.values());
        self.command.contains(STORE)
            || texts.any(|text| text.contains(STORE))
            || cwd.is_some_and(|cwd| cwd.contains(&0))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Reports whether a requirement is the URL of a repository; other kinds have no recipe.
pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("git+")
}

/// Inserts the path of the store into a text.
fn filled(text: &str, store: &Path) -> String {
    if text.contains(STORE) {
        text.replace(STORE, &store.to_string_lossy())
    } else {
        text.to_owned()
    }
}

fn filled_all(texts: &BTreeMap<String, String>, store: &Path) -> BTreeMap<String, String> {
    let pair = |(name, value): (&String, &String)| (name.clone(), filled(value, store));
    texts.iter().map(pair).collect()
}

fn filled_path(path: &Path, store: &Path) -> PathBuf {
    let mut filled = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            0 => filled.extend_from_slice(store.as_os_str().as_bytes()),
            other => filled.push(*other),
        }
    }
    OsString::from_vec(filled).into()
}

/// Reports whether a variable of the specification configures an installer. The preparation gets
/// only these, and its digest includes them. A token of the server is none of them.
fn is_setting(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let known = [
        "PATH",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "NODE_EXTRA_CA_CERTS",
    ];
    let families = ["NPM_CONFIG_", "UV_", "PIP_"];
    known.contains(&name.as_str()) || families.iter().any(|family| name.starts_with(family))
}

/// How npm tries a registry again that does not answer, unless the server's `env` says otherwise. By its own
/// defaults it fails after more than a minute, or after five for one that is silent. What is installed does
/// not depend on it, so the digest does not include it.
const RETRIES: [(&str, &str); 4] = [
    ("npm_config_fetch_retries", "2"),
    ("npm_config_fetch_retry_mintimeout", "1000"),
    ("npm_config_fetch_retry_maxtimeout", "5000"),
    ("npm_config_fetch_timeout", "30000"),
];

/// The version of the store format, which is part of the digest. Stores of version 1 were shared whatever their walls.
const FORMAT: &str = "lockgate-prepared-2";
/// The filler of a store that all tenants share; no tenant has this name.
const ANYBODY: &str = "";

#[cfg(test)]
mod tests {
    use crate::config::Format;
    use crate::manifest::reader;

    use super::super::recipe::*;

    fn server(keys: &str) -> Result<(Launch, Option<Recipe>), Vec<String>> {
        let text = format!("tenants: {{a: {{auth: {{mode: none}}, servers: {{x: {{{keys}}}}}}}}}");
        let read = reader::parse("F", &text, Format::Yaml, &BTreeMap::new());
        match read {
            Ok(manifest) => {
                let (_, server) = manifest.catalog.find("a", "x").unwrap();
                Ok((server.launch.clone(), server.recipe.clone()))
            }
            Err(mistakes) => Err(mistakes.iter().map(ToString::to_string).collect()),
        }
    }

    /// The digest of the store of a server of this tenant.
    fn digest_for(tenant: &str, keys: &str) -> Digest {
        let (launch, recipe) = server(keys).unwrap();
        recipe.unwrap().digest(tenant, &launch.confinement)
    }

    #[test]
    fn the_place_of_the_store_is_put_in() {
        let (launch, recipe) = server(
            "command: \"${prepared}/x\", args: [\"-d${prepared}\", \"$${prepared}\"], \
             env: {A: \"${prepared}:${prepared}\"}, cwd: \"${prepared}/y\", prepare: [z, \"${prepared}\"]",
        )
        .unwrap();
        let recipe = recipe.unwrap();
        let store = Path::new("/s");
        let made = launch.prepared(&recipe, None, store);
        assert_eq!(made.command, "/s/x");
        assert_eq!(made.args, ["-d/s", "${prepared}"]);
        assert_eq!((&*made.env["A"], &*made.env[VARIABLE]), ("/s:/s", "/s"));
        assert_eq!(made.cwd.as_deref(), Some(Path::new("/s/y")));
        assert_eq!(
            (made.prepared.as_deref(), made.is_preparing),
            (Some(store), false)
        );
        let first = recipe.launch(&launch, store);
        assert_eq!(
            (&*first.command, &*first.args),
            ("z", &["/s".to_owned()][..])
        );
        assert_eq!(first.env["TMPDIR"], "/s/.tmp");
        assert_eq!(first.env["npm_config_fetch_retry_mintimeout"], "1000");
        assert_eq!(first.cwd.as_deref(), Some(store));
        assert!(first.is_preparing && !first.env.contains_key("A"));
    }

    #[test]
    fn retries_of_npm_are_those_of_the_server_if_it_has_some() {
        let name = "NPM_CONFIG_FETCH_RETRIES";
        let (launch, recipe) = server(&format!(
            "command: npx, args: [x@1], env: {{{name}: \"9\"}}"
        ))
        .unwrap();
        let env = recipe.unwrap().launch(&launch, Path::new("/s")).env;
        let retries = |own: &&String| own.to_lowercase() == "npm_config_fetch_retries";
        assert_eq!(env.keys().filter(retries).collect::<Vec<_>>(), [name]);
        assert_eq!(env[name], "9");
        assert_eq!(env["npm_config_fetch_timeout"], "30000");
    }

    #[test]
    fn the_digest_is_of_what_decides_what_is_in_the_store() {
        let of = |keys: &str| digest_for("a", keys);
        let same = of("command: npx, args: [x@1, a], env: {TOKEN: b}");
        assert_eq!(
            of("command: npx, args: [-y, x@1, c], limits: {files: 9}"),
            same
        );
        for other in [
            "command: npx, args: [x@2]",
            "command: npx, args: [x@1], env: {NPM_CONFIG_REGISTRY: r}",
            "command: /usr/bin/npx, args: [x@1]",
            "command: x, prepare: [npm, install, x@1]",
        ] {
            assert_ne!(of(other), same, "{other}");
        }
        assert_ne!(
            of("command: x, prepare: [a, bc]"),
            of("command: x, prepare: [ab, c]")
        );
    }

    /// In profile `open` an installer met what another tenant had left for it, and its store served everybody.
    #[test]
    fn a_store_that_was_filled_behind_weaker_walls_serves_its_tenant_alone() {
        let of = |tenant: &str, walls: &str| {
            digest_for(tenant, &format!("command: npx, args: [x@1]{walls}"))
        };
        let (standard, open) = ("", ", sandbox: {profile: open}");
        let (reads, writes) = (", sandbox: {read: [/r]}", ", sandbox: {write: [/w]}");
        assert_eq!(of("a", standard), of("b", standard));
        assert_eq!(of("a", standard), of("b", reads));
        for weaker in [open, writes] {
            assert_eq!(of("a", weaker), of("a", weaker));
            assert_ne!(of("a", weaker), of("b", weaker), "{weaker}");
            assert_ne!(of("a", weaker), of("a", standard), "{weaker}");
        }
    }
}
