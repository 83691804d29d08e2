//! The list of files in `docs/files.md`: written from the source, so that it is never out of date.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
};

use crate::support::harness::package;

/// What a reader may search for in one file.
struct Listed {
    /// The first sentence of the file.
    purpose: String,
    /// Its constants that are times, sizes, numbers, defaults or columns, each with what it says.
    bounds: Vec<String>,
}

/// All files below `folder`, without tests and without doors, which hold no logic.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() && stem != "tests" {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && !["mod", "tests", "lib"].contains(&stem)
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

impl Listed {
    fn read(text: &str) -> Self {
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let purpose = text.lines().map_while(|line| line.strip_prefix("//! "));
        let mut bounds = Vec::new();
        let mut said = Vec::new();
        for line in text.lines() {
            let code = line.trim_start();
            if let Some(words) = code.strip_prefix("/// ") {
                said.push(words);
                continue;
            }
            if let Some(name) = bound(code) {
                bounds.push(format!("`{name}`: {}", sentence(said.iter().copied())));
            }
            said.clear();
        }
        Self {
            purpose: sentence(purpose),
            bounds,
        }
    }
}

/// The name of a constant that is listed.
fn bound(code: &str) -> Option<&str> {
    let (before, rest) = code.split_once("const ")?;
    if !["", "pub(super) ", "pub(crate) "].contains(&before) {
        return None;
    }
    let (name, rest) = rest.split_once(": ")?;
    let kind = rest.split(" =").next()?;
    let is_number = ["Duration", "usize", "u8", "u16", "u32", "u64", "i64", "f64"].contains(&kind);
    let is_listed = is_number || name.starts_with("DEFAULT") || name == "COLUMNS";
    (is_listed && name.len() > 1).then_some(name)
}

/// The first sentence of some lines, without its full stop.
fn sentence<'l>(lines: impl Iterator<Item = &'l str>) -> String {
    let all = lines.collect::<Vec<_>>().join(" ");
    let first = all.split(". ").next().unwrap();
    first.trim_end_matches('.').replace('|', "\\|")
}

/// The page as the source has it.
fn page() -> String {
    let root = package().join("src");
    let mut rooms: BTreeMap<String, Vec<(String, Listed)>> = BTreeMap::new();
    for path in files(&root) {
        let text = std::fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let room = path.rsplit_once('/').map_or("", |(room, _)| room);
        let listed = (path.to_owned(), Listed::read(&text));
        rooms.entry(room.to_owned()).or_default().push(listed);
    }
    let mut page = "# Files\n\nWhat each file of `src` is for, with its constants that bound \
        something. Settings are elsewhere:\n`src/config/config.default.toml` has those of the gateway, \
        and [manifest.schema.json](manifest.schema.json) the keys of the\nmanifest.\n\n\
        `FILES_WRITE=1 cargo test --test it file_list::` writes this page anew.\n"
        .to_owned();
    for (room, files) in rooms {
        let room = if room.is_empty() { "src" } else { &room };
        write!(page, "\n## {room}\n\n").unwrap();
        for (path, listed) in files {
            assert!(!listed.purpose.is_empty(), "{path} says nothing of itself");
            writeln!(page, "- `{path}`: {}", listed.purpose).unwrap();
            for bound in listed.bounds {
                writeln!(page, "  - {}", bound.trim_end_matches(": ")).unwrap();
            }
        }
    }
    page
}

#[test]
fn the_page_of_files_is_current() {
    let file = package().join("docs/files.md");
    let current = page();
    if std::env::var_os("FILES_WRITE").is_some() {
        return std::fs::write(file, current).unwrap();
    }
    let shown = std::fs::read_to_string(file).unwrap();
    assert_eq!(
        shown, current,
        "FILES_WRITE=1 cargo test --test it file_list:: writes it anew"
    );
}
