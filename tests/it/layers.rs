//! The shape of the source: rooms, doors, imports without circles, and facts with one place.
//!
//! The table of rooms in `docs/architecture.md` is the rule: it is compared with the imports of the
//! source. `LAYERS_WRITE=1 cargo test layers::` writes it anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use crate::{
    sources::{Crate, Source, circles, sources},
    support::harness::package,
};

/// The maximum number of files of a room, including its door.
const FILES: usize = 14;

/// The maximum number of entries of `src`.
const ENTRIES: usize = 20;

/// The maximum number of lines of a file without its tests.
const LINES: usize = 700;

/// Outside crates, and the only places that may name them.
const PLACES: &[(&str, &[&str])] = &[
    ("axum::", &["http/", "oauth/"]),
    ("h2::", &["http/peers/connection.rs"]),
    ("hyper::", &["http/"]),
    ("hyper_util::", &["http/"]),
    ("http_body", &["http/", "oauth/"]),
    ("tower", &["http/"]),
    ("tokio_rustls::", &["http/listen/tls.rs"]),
    ("tokio::process", &[]),
    ("unsafe ", &["backend/linux/syscalls.rs", "base/memory.rs"]),
    (
        "unsafe_code",
        &["backend/linux/syscalls.rs", "base/memory.rs"],
    ),
    (
        "libc::",
        &[
            "backend/guard/supervisor.rs",
            "backend/linux/syscalls.rs",
            "backend/sandbox/seccomp.rs",
        ],
    ),
    ("landlock::", &["backend/sandbox/domain.rs"]),
    ("seccompiler::", &["backend/sandbox/seccomp.rs"]),
    ("clap::", &["cli/"]),
    ("clap_", &["cli/commands.rs"]),
    ("libmimalloc_sys::", &["base/memory.rs"]),
    ("foldhash::", &["base/table.rs"]),
    ("opentelemetry", &["telemetry/"]),
    ("async_trait::", &["telemetry/otlp.rs"]),
    ("prometheus", &["telemetry/metrics.rs"]),
    (
        "tracing_subscriber::",
        &["config/gateway.rs", "telemetry/logs/"],
    ),
    ("serde_saphyr::", &["config/document.rs"]),
    ("toml::", &["config/document.rs"]),
    ("anyhow::", &["cli/", "gateway/"]),
    ("argon2::", &["declare/password.rs"]),
    ("sqlx", &["database/"]),
    // The first two places name the room `state::redis`, not the crate.
    (
        "redis::",
        &["gateway/cluster.rs", "hub/core/stores.rs", "state/redis/"],
    ),
    ("notify::", &["snapshot/"]),
    ("jsonwebtoken::", &["auth/jose/", "oauth/tokens/"]),
    (
        "askama::",
        &["http/reply/page.rs", "oauth/browser/pages.rs"],
    ),
    ("oauth2::", &["oauth/providers/"]),
    (
        "reqwest::",
        &[
            "cli/doctor/",
            "cli/remote/",
            "cli/local/healthcheck.rs",
            "base/outbound.rs",
            "telemetry/otlp.rs",
        ],
    ),
];

/// Parts of paths that only URLs of a gateway contain.
const URLS: &[&str] = &["/t/", "/mcp", "/sse", "/messages", "/.well-known/"];

/// The places of such text, each with its reason.
const URL_PLACES: &[(&str, &str)] = &[
    ("endpoint.rs", "builds and reads them"),
    (
        "auth/external.rs",
        "documents of other authorization servers",
    ),
    ("oauth/providers/", "documents of identity providers"),
    ("cli/", "help texts show them to people"),
];

/// One row of the table: the size, the imports and the importers of a room.
#[derive(Default)]
struct Row {
    files: usize,
    lines: usize,
    imports: BTreeSet<String>,
    importers: BTreeSet<String>,
}

/// Imports from file to file, each with an imported path.
fn edges(read: &Crate) -> BTreeMap<(usize, usize), String> {
    let mut edges = BTreeMap::new();
    for (from, source) in read.sources.iter().enumerate() {
        for import in read
            .imports(source)
            .into_iter()
            .filter(|import| !import.is_reexport)
        {
            let to = read.defined(&import.names);
            // `lib.rs` re-exports the two functions that `main.rs` calls.
            if from != to && source.path != "lib.rs" && source.path != "main.rs" {
                edges
                    .entry((from, to))
                    .or_insert_with(|| import.names.join("::"));
            }
        }
    }
    edges
}

/// The room of a file: its folder, or the file itself at the root.
fn room(source: &Source) -> String {
    match source.folder() {
        "" => source.path.clone(),
        folder => folder.to_owned(),
    }
}

fn rows(read: &Crate) -> BTreeMap<String, Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for source in &read.sources {
        let row = rows.entry(room(source)).or_default();
        row.files += 1;
        row.lines += source.lines;
    }
    for (from, to) in edges(read).into_keys() {
        let (from, to) = (room(&read.sources[from]), room(&read.sources[to]));
        if from != to {
            rows.get_mut(&from).unwrap().imports.insert(to.clone());
            rows.get_mut(&to).unwrap().importers.insert(from);
        }
    }
    rows
}

fn table(rows: &BTreeMap<String, Row>) -> String {
    let mut text =
        String::from("| room | files | lines | imports | imported by |\n|---|---|---|---|---|\n");
    let names = |rooms: &BTreeSet<String>| rooms.iter().cloned().collect::<Vec<_>>().join(", ");
    for (room, row) in rows {
        let (imports, importers) = (names(&row.imports), names(&row.importers));
        // Rounded to hundreds, so that few edits change the page.
        let lines = match (row.lines + 50) / 100 {
            0 => "< 50".to_owned(),
            hundreds => (hundreds * 100).to_string(),
        };
        writeln!(
            text,
            "| {room} | {} | {lines} | {imports} | {importers} |",
            row.files
        )
        .unwrap();
    }
    text
}

#[test]
fn rooms_import_what_the_architecture_shows() {
    let (read, page) = (Crate::read(), package().join("docs/architecture.md"));
    let (rows, text) = (
        rows(&Crate::read()),
        std::fs::read_to_string(&page).unwrap(),
    );
    let table = table(&rows);
    println!("{table}");
    let begin = text.find("| room | files |").expect("the table of rooms");
    let end = begin
        + text[begin..]
            .find("\n\n")
            .map_or(text.len() - begin, |at| at + 1);
    if std::env::var_os("LAYERS_WRITE").is_some() {
        std::fs::write(&page, format!("{}{table}{}", &text[..begin], &text[end..])).unwrap();
        return;
    }
    let mut wrong = String::new();
    let mut shown = BTreeMap::new();
    for line in text[begin..end].lines().skip(2) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let imports: BTreeSet<String> = cells[4]
            .split(", ")
            .filter(|room| !room.is_empty())
            .map(str::to_owned)
            .collect();
        shown.insert(cells[1].to_owned(), imports);
    }
    for (from, to) in edges(&read).into_keys() {
        let (from, to) = (&read.sources[from], &read.sources[to]);
        let (room_of, other) = (room(from), room(to));
        let is_shown = shown
            .get(&room_of)
            .is_some_and(|imports| imports.contains(&other));
        if room_of != other && !is_shown {
            writeln!(wrong, "{} imports {}: not in the table", from.path, to.path).unwrap();
        }
    }
    for (room, imports) in &shown {
        match rows.get(room) {
            None => writeln!(wrong, "the table shows {room}, which does not exist").unwrap(),
            Some(row) => {
                for import in imports.difference(&row.imports) {
                    writeln!(
                        wrong,
                        "the table lets {room} import {import}, which it does not"
                    )
                    .unwrap();
                }
            }
        }
    }
    for room in rows.keys().filter(|room| !shown.contains_key(*room)) {
        writeln!(wrong, "the table lacks {room}").unwrap();
    }
    assert!(
        wrong.is_empty(),
        "\n{wrong}`LAYERS_WRITE=1 cargo test layers::` writes the table anew"
    );
}

#[test]
fn nothing_imports_in_a_circle() {
    let read = Crate::read();
    let (mut files, mut rooms) = (BTreeMap::new(), BTreeMap::new());
    let mut between = BTreeMap::new();
    for ((from, to), shown) in edges(&read) {
        let (from, to) = (&read.sources[from], &read.sources[to]);
        files
            .entry(from.path.clone())
            .or_insert_with(BTreeSet::new)
            .insert(to.path.clone());
        between.insert(
            (from.path.clone(), to.path.clone()),
            format!("{} imports {shown} of {}", from.path, to.path),
        );
        if room(from) != room(to) {
            rooms
                .entry(room(from))
                .or_insert_with(BTreeSet::new)
                .insert(room(to));
            let text: &mut String = between.entry((room(from), room(to))).or_default();
            writeln!(text, "{} imports {shown} of {}", from.path, to.path).unwrap();
        }
    }
    let mut wrong = String::new();
    for (kind, graph) in [("files", files), ("rooms", rooms)] {
        for circle in circles(&graph) {
            writeln!(wrong, "a circle of {} {kind}:", circle.len()).unwrap();
            for ((from, to), text) in &between {
                if circle.contains(from) && circle.contains(to) {
                    writeln!(wrong, "  {}", text.trim_end().replace('\n', "\n  ")).unwrap();
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn types_are_imported_from_doors() {
    let read = Crate::read();
    let mut wrong = String::new();
    for source in &read.sources {
        for import in read
            .imports(source)
            .into_iter()
            .filter(|import| !import.is_reexport)
        {
            let (at, rest) = read.written(&import.names);
            let file = &read.sources[at];
            let is_type = rest.first().is_some_and(|name| {
                name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
            });
            let is_inside =
                file.is_door() || file.folder().is_empty() || file.folder() == source.folder();
            if import.is_item && is_type && !is_inside {
                writeln!(
                    wrong,
                    "{} imports {} past the door",
                    source.path,
                    import.names.join("::")
                )
                .unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn doors_hold_no_logic() {
    let mut wrong = String::new();
    for source in sources()
        .iter()
        .filter(|source| source.path.ends_with("/mod.rs"))
    {
        let code = source.code.replace("#[cfg(test)]", "");
        let items = [
            "fn ", "struct ", "enum ", "impl ", "trait ", "const ", "static ",
        ];
        let has_item = items.iter().find(|item| {
            code.split_whitespace()
                .any(|word| format!("{word} ") == **item)
        });
        if let Some(item) = has_item {
            writeln!(
                wrong,
                "{} holds more than modules and names: {item}",
                source.path
            )
            .unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn rooms_are_small_and_two_storeys_high() {
    let root = package().join("src");
    let entries = std::fs::read_dir(&root).unwrap().count();
    let mut wrong = String::new();
    if entries > ENTRIES {
        writeln!(
            wrong,
            "src has {entries} entries, at most {ENTRIES} are wanted"
        )
        .unwrap();
    }
    for (room, row) in rows(&Crate::read()) {
        if row.files > FILES {
            writeln!(
                wrong,
                "{room} has {} files, at most {FILES} are wanted",
                row.files
            )
            .unwrap();
        }
        if room.matches('/').count() > 1 {
            writeln!(wrong, "{room} is too deep").unwrap();
        }
    }
    for source in sources().iter().filter(|source| source.lines > LINES) {
        writeln!(
            wrong,
            "{} has {} lines, at most {LINES} are wanted",
            source.path, source.lines
        )
        .unwrap();
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn outside_crates_stay_in_their_places() {
    let mut wrong = String::new();
    for source in sources() {
        for (word, places) in PLACES {
            let is_whole = |at: usize| {
                !source.code[..at].ends_with(|before: char| {
                    before.is_alphanumeric() || matches!(before, '_' | ':' | '.' | '-')
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
fn urls_are_built_in_one_place() {
    let mut wrong = String::new();
    for source in sources() {
        if URL_PLACES
            .iter()
            .any(|(place, _)| source.path.starts_with(place))
        {
            continue;
        }
        for literal in &source.strings {
            let is_part = |url: &&&str| {
                let mut found = literal.match_indices(**url);
                found.any(|(at, _)| {
                    let next = literal[at + url.len()..].chars().next();
                    url.ends_with('/')
                        || !next.is_some_and(|next| next.is_alphanumeric() || next == '.')
                })
            };
            if let Some(url) = URLS.iter().find(is_part) {
                writeln!(wrong, "{url} in {:?} of {}", literal, source.path).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
