//! The shape of the source (DESIGN section 7), read from its text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::Path,
};

use super::harness::package;

/// What each part may import; leaves import only leaves.
const TABLE: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("document", &[]),
    ("logs", &[]),
    ("outbound", &[]),
    ("hops", &[]),
    ("telemetry", &["hops", "logs"]),
    ("settings", &["document"]),
    ("address", &["settings", "document"]),
    ("separation", &["settings", "document"]),
    ("layers", &["settings", "document"]),
    ("keeping", &["document", "layers", "settings"]),
    ("issuing", &["document", "layers", "settings"]),
    ("listeners", &["address", "document", "layers", "settings"]),
    (
        "replicas",
        &["address", "document", "keeping", "layers", "settings"],
    ),
    (
        "config",
        &[
            "address",
            "document",
            "issuing",
            "keeping",
            "layers",
            "listeners",
            "replicas",
            "separation",
            "settings",
        ],
    ),
    ("protocol", &[]),
    (
        "control",
        &["protocol", "config", "document", "separation", "settings"],
    ),
    (
        "auth",
        &[
            "config",
            "control",
            "error",
            "outbound",
            "protocol",
            "telemetry",
        ],
    ),
    // `auth` stands above `store` in DESIGN; a record names its principal.
    ("store", &["auth", "config", "protocol"]),
    (
        "backend",
        &["config", "control", "error", "protocol", "telemetry"],
    ),
    (
        "hub",
        &[
            "auth",
            "backend",
            "config",
            "control",
            "error",
            "protocol",
            "store",
            "telemetry",
        ],
    ),
    // Never `backend`.
    (
        "http",
        &[
            "address",
            "auth",
            "config",
            "control",
            "document",
            "error",
            "hops",
            "hub",
            "protocol",
            "settings",
            "store",
            "telemetry",
        ],
    ),
    (
        "oauth",
        &[
            "address",
            "auth",
            "config",
            "control",
            "outbound",
            "settings",
            "telemetry",
        ],
    ),
    // What replicas share, opened.
    ("sharing", &["config", "control", "http", "hub", "store"]),
    // Builds the parts and hands them to each other.
    (
        "run",
        &[
            "auth",
            "backend",
            "config",
            "control",
            "http",
            "hub",
            "logs",
            "oauth",
            "outbound",
            "sharing",
            "telemetry",
        ],
    ),
    (
        "cli",
        &[
            "auth",
            "backend",
            "config",
            "control",
            "document",
            "http",
            "logs",
            "run",
            "settings",
            "telemetry",
        ],
    ),
    ("lib", &[]),
    ("main", &[]),
];

/// Words that may stand only below these paths.
const PLACES: &[(&str, &[&str])] = &[
    ("axum::", &["http/", "oauth/"]),
    ("h2::", &["http/peers.rs"]),
    ("hyper::", &["http/"]),
    ("hyper_util::", &["http/"]),
    ("http_body", &["http/", "oauth/"]),
    ("tower", &["http/"]),
    ("tokio_rustls::", &["http/accept.rs"]),
    ("tokio::process", &["backend/stdio.rs"]),
    ("unsafe ", &["backend/launch.rs"]),
    ("unsafe_code", &["backend/launch.rs"]),
    (
        "libc::",
        &[
            "backend/launch.rs",
            "backend/seccomp.rs",
            "backend/stdio.rs",
        ],
    ),
    ("landlock::", &["backend/confine.rs"]),
    ("seccompiler::", &["backend/seccomp.rs"]),
    ("clap::", &["cli/"]),
    ("mimalloc::", &["main.rs"]),
    ("opentelemetry", &["hops.rs", "telemetry.rs"]),
    ("prometheus", &["telemetry.rs"]),
    ("tracing_subscriber::", &["config.rs", "logs.rs"]),
    ("serde_saphyr::", &["document.rs"]),
    ("toml::", &["document.rs"]),
    ("anyhow::", &["cli/", "run.rs"]),
    ("argon2::", &["control/password.rs"]),
    (
        "arc_swap::",
        &[
            "control/change.rs",
            "control/clock.rs",
            "control/live.rs",
            "control/signing.rs",
            "control/store.rs",
            "http/tls.rs",
        ],
    ),
    (
        "base64::",
        &[
            "auth/jws.rs",
            "control/seal.rs",
            "control/signing.rs",
            "http/hop.rs",
            "oauth/authenticate.rs",
            "oauth/browser.rs",
            "oauth/flow.rs",
            "oauth/pages.rs",
            "oauth/secret.rs",
            "protocol/event.rs",
        ],
    ),
    ("sqlx", &["control/sql.rs"]),
    // Two name the module of that name.
    ("redis::", &["hub/stores.rs", "sharing.rs", "store/redis"]),
    ("notify::", &["control/keeper.rs"]),
    (
        "ipnet::",
        &["address.rs", "config.rs", "http/", "outbound.rs"],
    ),
    ("jsonwebtoken::", &["auth/jws.rs", "oauth/jose.rs"]),
    ("askama::", &["oauth/pages.rs"]),
    (
        "oauth2::",
        &["oauth/provider_oauth.rs", "oauth/provider_openid.rs"],
    ),
    (
        "moka::",
        &[
            "auth/builtin.rs",
            "auth/external.rs",
            "hub/place.rs",
            "oauth/cimd.rs",
            "oauth/provider_openid.rs",
        ],
    ),
    ("reqwest::", &["cli/", "outbound.rs"]),
];

/// Lines of a file without its tests.
const LINES: usize = 500;

/// A source file: its path below `src`, its lines without tests, and its code without comments.
struct Source {
    path: String,
    lines: usize,
    code: String,
}

impl Source {
    fn read(root: &Path, path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let text = text.split("\n#[cfg(test)]\n").collect::<Vec<_>>();
        // Tests stand last; a gated item before them is followed by more of the program.
        let is_tests = |part: &&&str| {
            let mut lines = part.lines().skip_while(|line| {
                line.starts_with("#[") || line.starts_with(' ') || line.starts_with(")]")
            });
            lines
                .next()
                .is_some_and(|line| line.starts_with("mod tests {"))
        };
        let kept: Vec<&str> = text
            .iter()
            .take_while(|part| !is_tests(part))
            .copied()
            .collect();
        let kept = kept.join("\n");
        Self {
            path: path
                .strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned(),
            lines: kept.lines().count(),
            code: kept
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .fold(String::new(), |code, line| code + line + "\n"),
        }
    }

    /// The part that it belongs to.
    fn part(&self) -> &str {
        let first = self.path.split('/').next().unwrap();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// The parts that it names behind `crate::`.
    fn imports(&self) -> BTreeSet<String> {
        let word = |text: &str| {
            let end = text.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
            text[..end.unwrap_or(text.len())].to_owned()
        };
        let mut found = BTreeSet::new();
        for (at, matched) in self.code.match_indices("crate::") {
            let rest = &self.code[at + matched.len()..];
            let Some(group) = rest.strip_prefix('{') else {
                found.insert(word(rest));
                continue;
            };
            let (mut depth, mut begins) = (0, true);
            for (at, letter) in group.char_indices() {
                match letter {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' => begins |= depth == 0,
                    _ if letter.is_whitespace() => {}
                    _ if begins => {
                        found.insert(word(&group[at..]));
                        begins = false;
                    }
                    _ => {}
                }
            }
        }
        found.remove(self.part());
        found
    }
}

fn sources() -> Vec<Source> {
    let root = package().join("src");
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(&root).unwrap().flatten() {
        if entry.path().is_dir() {
            for inner in std::fs::read_dir(entry.path()).unwrap().flatten() {
                // No code: what askama makes pages of.
                if inner.path().ends_with("oauth/templates") {
                    continue;
                }
                assert!(
                    !inner.path().is_dir(),
                    "{} is too deep",
                    inner.path().display()
                );
                sources.push(inner.path());
            }
        } else {
            sources.push(entry.path());
        }
    }
    sources.retain(|path| path.extension().is_some_and(|kind| kind == "rs"));
    sources.retain(|path| !path.to_str().unwrap().ends_with("_tests.rs"));
    assert!(sources.len() > 30);
    sources
        .iter()
        .map(|path| Source::read(&root, path))
        .collect()
}

#[test]
fn imports_follow_the_table() {
    let table: BTreeMap<_, _> = TABLE.iter().copied().collect();
    let mut wrong = String::new();
    for source in sources() {
        let Some(allowed) = table.get(source.part()) else {
            writeln!(wrong, "{} is not in the table", source.path).unwrap();
            continue;
        };
        for import in source.imports() {
            if !allowed.contains(&&*import) && source.part() != "lib" {
                writeln!(wrong, "{} imports {import}", source.path).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn the_table_has_no_circle() {
    let mut left: BTreeMap<_, _> = TABLE.iter().copied().collect();
    while !left.is_empty() {
        let before = left.len();
        let names: BTreeSet<&str> = left.keys().copied().collect();
        left.retain(|_, imports| imports.iter().any(|import| names.contains(import)));
        assert!(left.len() < before, "{left:?}");
    }
}

#[test]
fn outside_crates_stay_in_their_places() {
    let mut wrong = String::new();
    for source in sources() {
        for (word, places) in PLACES {
            let is_whole = |at: usize| {
                !source.code[..at].ends_with(|before: char| {
                    before.is_alphanumeric() || matches!(before, '_' | ':' | '.' | '"' | '-')
                })
            };
            let mut found = source.code.match_indices(word);
            let is_there = found.any(|(at, _)| is_whole(at));
            if is_there && !places.iter().any(|place| source.path.starts_with(place)) {
                writeln!(wrong, "{word} in {}", source.path).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn files_are_short() {
    let mut wrong = String::new();
    for source in sources() {
        if source.lines > LINES {
            writeln!(wrong, "{} has {} lines", source.path, source.lines).unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
