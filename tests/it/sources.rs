//! The source of the crate as text: modules, imports and string literals, as `layers` needs it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::support::harness::package;

/// A path of names below the crate: `["hub", "session", "Session"]`.
pub(crate) type Names = Vec<String>;

/// One file below `src`, without its comments and its tests.
pub(crate) struct Source {
    /// The path below `src`, with slashes.
    pub(crate) path: String,
    /// The number of lines without tests, comments included.
    pub(crate) lines: usize,
    /// The code; comments, strings and inline tests are blank.
    pub(crate) code: String,
    /// The string literals of the code, without those of tests.
    pub(crate) strings: Vec<String>,
}

/// A mention of an item of this crate.
pub(crate) struct Import {
    /// The path as written, from the root of the crate.
    pub(crate) names: Names,
    /// True if a `pub use` of a door re-exports it.
    pub(crate) is_reexport: bool,
    /// True if it is in a `use` item.
    pub(crate) is_item: bool,
}

impl Source {
    fn read(root: &Path, path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let (mut code, literals) = blanked(&text);
        let tests = test_spans(&code);
        let lines = text.lines().count()
            - tests
                .iter()
                .map(|(from, to)| text[*from..*to].lines().count())
                .sum::<usize>();
        let is_tested = |at: usize| tests.iter().any(|(from, to)| (*from..*to).contains(&at));
        let strings = literals
            .into_iter()
            .filter(|(at, _)| !is_tested(*at))
            .map(|(_, literal)| literal)
            .collect();
        for (from, to) in &tests {
            code.replace_range(*from..*to, &" ".repeat(to - from));
        }
        let path = path.strip_prefix(root).unwrap().to_str().unwrap();
        Self {
            path: path.to_owned(),
            lines,
            code,
            strings,
        }
    }

    /// The folder, `""` for the root.
    pub(crate) fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// The path of its module.
    pub(crate) fn module(&self) -> Names {
        let path = self.path.strip_suffix(".rs").unwrap();
        let path = path.strip_suffix("/mod").unwrap_or(path);
        match path {
            "lib" | "main" => Vec::new(),
            path => path.split('/').map(str::to_owned).collect(),
        }
    }

    /// True if the file is the door of its folder.
    pub(crate) fn is_door(&self) -> bool {
        self.path.ends_with("/mod.rs") || self.path == "lib.rs"
    }
}

/// Every file below `src` except tests.
pub(crate) fn sources() -> Vec<Source> {
    let root = package().join("src");
    let mut folders = vec![root.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    let is_test = |path: &Path| {
        let path = path.strip_prefix(&root).unwrap().to_str().unwrap();
        path.contains("tests/") || path.ends_with("tests.rs")
    };
    found.retain(|path| !is_test(path));
    assert!(found.len() > 150, "the source is somewhere else");
    found.iter().map(|path| Source::read(&root, path)).collect()
}

/// The crate: its files by module.
pub(crate) struct Crate {
    pub(crate) sources: Vec<Source>,
    /// The index of a file by its module.
    modules: BTreeMap<Names, usize>,
    /// The re-exports of doors: (door, name) to the re-exported path.
    reexports: BTreeMap<(Names, String), Names>,
}

impl Crate {
    pub(crate) fn read() -> Self {
        let sources = sources();
        let modules = sources
            .iter()
            .enumerate()
            .filter(|(_, source)| source.path != "main.rs")
            .map(|(index, source)| (source.module(), index))
            .collect();
        let mut read = Self {
            sources,
            modules,
            reexports: BTreeMap::new(),
        };
        let mut reexports = BTreeMap::new();
        for source in &read.sources {
            for import in read.imports(source) {
                if import.is_reexport {
                    let name = import.names.last().unwrap().clone();
                    reexports.insert((source.module(), name), import.names);
                }
            }
        }
        read.reexports = reexports;
        read
    }

    /// The file of the longest module in a path as written, and the names behind it.
    pub(crate) fn written<'a>(&self, names: &'a [String]) -> (usize, &'a [String]) {
        let module = |length: &usize| self.modules.get(&names[..*length]);
        let length = (0..=names.len())
            .rev()
            .find(|length| module(length).is_some());
        let length = length.expect("the root is a module");
        (self.modules[&names[..length]], &names[length..])
    }

    /// The file that defines the item of a path, behind all doors.
    pub(crate) fn defined(&self, names: &[String]) -> usize {
        let mut names = names.to_vec();
        for _ in 0..8 {
            let (at, rest) = self.written(&names);
            let module = names[..names.len() - rest.len()].to_vec();
            let Some(next) = rest
                .first()
                .and_then(|first| self.reexports.get(&(module, first.clone())))
            else {
                return at;
            };
            let next: Names = next.iter().chain(&rest[1..]).cloned().collect();
            if next == names {
                return at;
            }
            names = next;
        }
        panic!("{names:?} is passed on in a circle");
    }

    /// The items of this crate that a file mentions: its `use` items, paths in its code, and paths
    /// that begin with the name of an imported module.
    pub(crate) fn imports(&self, source: &Source) -> Vec<Import> {
        let here = source.module();
        let code = &source.code;
        let mut found = Vec::new();
        let mut modules: BTreeMap<String, Names> = BTreeMap::new();
        let mut rest = code.clone();
        for (at, statement, is_public) in uses(code) {
            rest.replace_range(at..at + statement.len(), &" ".repeat(statement.len()));
            for (names, alias) in leaves(&statement["use".len()..statement.len() - 1]) {
                let Some(names) = self.absolute(&here, names) else {
                    continue;
                };
                if self.modules.contains_key(&names) {
                    modules.insert(
                        alias.unwrap_or_else(|| names.last().unwrap().clone()),
                        names.clone(),
                    );
                }
                found.push(Import {
                    names,
                    is_reexport: is_public && source.is_door(),
                    is_item: true,
                });
            }
        }
        for names in paths(&rest) {
            let names = match modules.get(&names[0]) {
                Some(module) => module.iter().chain(&names[1..]).cloned().collect(),
                None => match self.absolute(&here, names) {
                    Some(names) => names,
                    None => continue,
                },
            };
            found.push(Import {
                names,
                is_reexport: false,
                is_item: false,
            });
        }
        found
    }

    /// A path from the root of the crate; `None` for a path of another crate.
    fn absolute(&self, here: &[String], names: Names) -> Option<Names> {
        let mut base = match names[0].as_str() {
            "crate" => Vec::new(),
            "self" => here.to_vec(),
            "super" => here[..here.len() - 1].to_vec(),
            first => {
                let child: Names = here.iter().cloned().chain([first.to_owned()]).collect();
                let is_child = !here.is_empty() && self.modules.contains_key(&child);
                return is_child.then(|| here.iter().cloned().chain(names).collect());
            }
        };
        let mut rest = &names[1..];
        while rest.first().is_some_and(|name| name == "super") {
            base.pop();
            rest = &rest[1..];
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }
}

/// Sets of nodes that reach each other.
pub(crate) fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(next) = open.pop() {
            for to in edges.get(next).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        edges.keys().map(|node| (node, reach(node))).collect();
    let circle = |node: &&String| -> BTreeSet<String> {
        let back = |other: &&String| reached.get(other).is_some_and(|set| set.contains(*node));
        reached[*node].iter().filter(back).cloned().collect()
    };
    let found: BTreeSet<BTreeSet<String>> = edges
        .keys()
        .map(|node| circle(&node))
        .filter(|circle| !circle.is_empty())
        .collect();
    found.into_iter().collect()
}

/// The text with comments and literals blank, of the same length, and the string literals with
/// their places.
fn blanked(text: &str) -> (String, Vec<(usize, String)>) {
    let bytes = text.as_bytes();
    let (mut kept, mut literals) = (text.as_bytes().to_vec(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").unwrap() + 2
        } else if !word && is_raw(rest) {
            let hashes = rest[1..]
                .trim_start_matches('r')
                .bytes()
                .take_while(|byte| *byte == b'#')
                .count();
            let close = format!("\"{}", "#".repeat(hashes));
            let open = rest.find('"').unwrap() + 1;
            let length = open + rest[open..].find(&close).unwrap() + close.len();
            literals.push((at, rest[open..length - close.len()].to_owned()));
            length
        } else if rest.starts_with('"') {
            let mut end = 1;
            while rest.as_bytes()[end] != b'"' {
                end += if rest.as_bytes()[end] == b'\\' { 2 } else { 1 };
            }
            literals.push((at, rest[1..end].to_owned()));
            end + 1
        } else if rest.starts_with('\'') {
            letter(rest)
        } else {
            at += 1;
            while !text.is_char_boundary(at) {
                at += 1;
            }
            continue;
        };
        for byte in &mut kept[at..at + length] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at += length;
    }
    (String::from_utf8(kept).unwrap(), literals)
}

/// True if a raw string begins here.
fn is_raw(rest: &str) -> bool {
    let begins = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'));
    begins.is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
}

/// The length of a character literal; 1 for the quote of a lifetime.
fn letter(rest: &str) -> usize {
    let mut letters = rest[1..].char_indices();
    match letters.next() {
        Some((_, '\\')) => {
            1 + rest[1..]
                .char_indices()
                .skip(2)
                .find(|(_, it)| *it == '\'')
                .unwrap()
                .0
                + 1
        }
        Some((_, first)) if rest[1 + first.len_utf8()..].starts_with('\'') => first.len_utf8() + 2,
        _ => 1,
    }
}

/// The inline test modules of a file, attribute included.
fn test_spans(code: &str) -> Vec<(usize, usize)> {
    let gate = "#[cfg(test)]";
    let begins = code.match_indices(gate).filter_map(|(at, _)| {
        let rest = &code[at + gate.len()..];
        let before = rest.split('{').next()?;
        let words: Vec<&str> = before.split_whitespace().collect();
        let is_module = words.contains(&"mod") && !before.contains(';');
        is_module.then(|| (at, at + gate.len() + before.len()))
    });
    begins
        .map(|(at, open)| (at, open + closed(&code[open..])))
        .collect()
}

/// The length of the block in braces that begins here.
fn closed(code: &str) -> usize {
    let mut depth = 0;
    for (at, letter) in code.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// The `use` items, with their places, and whether they are public.
fn uses(code: &str) -> Vec<(usize, &str, bool)> {
    let is_word = |at: usize| !code[..at].ends_with(char::is_alphanumeric);
    let words = code.match_indices("use ").filter(|(at, _)| is_word(*at));
    let items = words.filter_map(|(at, _)| {
        let before = code[..at].rsplit(['\n', ';', '}']).next().unwrap().trim();
        let is_public = before.starts_with("pub");
        let end = at + code[at..].find(';')?;
        (before.is_empty() || is_public).then(|| (at, &code[at..=end], is_public))
    });
    items.collect()
}

/// The paths of a `use` tree, with their aliases; a glob names its module.
fn leaves(tree: &str) -> Vec<(Names, Option<String>)> {
    fn walk(tree: &str, prefix: &[String], found: &mut Vec<(Names, Option<String>)>) {
        let tree = tree.trim().trim_start_matches("::");
        if let Some((head, group)) = tree.split_once('{') {
            let mut prefix = prefix.to_vec();
            prefix.extend(
                head.split("::")
                    .map(str::trim)
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned),
            );
            let group = group.trim_end().strip_suffix('}').unwrap();
            let (mut depth, mut from) = (0, 0);
            for (at, letter) in group.char_indices().chain([(group.len(), ',')]) {
                match letter {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        if !group[from..at].trim().is_empty() {
                            walk(&group[from..at], &prefix, found);
                        }
                        from = (at + 1).min(group.len());
                    }
                    _ => {}
                }
            }
            return;
        }
        let (path, alias) = match tree.split_once(" as ") {
            Some((path, alias)) => (path, Some(alias.trim().to_owned())),
            None => (tree, None),
        };
        let mut names = prefix.to_vec();
        names.extend(path.split("::").map(|name| name.trim().to_owned()));
        if names.len() > 1 && matches!(names.last().unwrap().as_str(), "self" | "*") {
            names.pop();
        }
        found.push((names, alias));
    }
    let mut found = Vec::new();
    walk(tree, &[], &mut found);
    found
}

/// The paths of two names and more in code without `use` items.
fn paths(code: &str) -> Vec<Names> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("::") {
        let begin = rest[..at]
            .rfind(|letter| !is_name(letter))
            .map_or(0, |before| before + 1);
        let first = &rest[begin..at];
        let mut names = vec![first.to_owned()];
        let mut tail = &rest[at..];
        while let Some(next) = tail.strip_prefix("::") {
            let end = next.find(|letter| !is_name(letter)).unwrap_or(next.len());
            if end == 0 {
                tail = next;
                break;
            }
            names.push(next[..end].to_owned());
            tail = &next[end..];
        }
        if !first.is_empty()
            && names.len() > 1
            && !first.starts_with(|it: char| it.is_ascii_digit())
        {
            found.push(names);
        }
        rest = tail;
    }
    found
}
