//! The documentation, compared with the source: contract, links, file names, recipes, mutants.
//!
//! A row of `docs/contract.md` has an identifier, a promise, and the tests that hold it:
//! `room::file::function` below `tests/it`, or `src::…` for a unit test. A row without a test
//! begins its last cell with a reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::support::harness::package;

/// The reasons that a row's last cell may begin with instead of a test.
const REASONS: [&str; 4] = ["bench:", "referee:", "limit:", "not yet:"];

/// One row of a table of the contract.
struct Row {
    id: String,
    held_by: String,
}

impl Row {
    /// The names of tests in its last cell.
    fn tests(&self) -> impl Iterator<Item = &str> {
        let quoted = self.held_by.split('`').skip(1).step_by(2);
        quoted.filter(|name| name.contains("::"))
    }

    fn has_reason(&self) -> bool {
        let reason = REASONS.iter().find(|one| self.held_by.starts_with(**one));
        reason.is_some_and(|reason| self.held_by.len() > reason.len() + 1)
    }
}

/// The rows whose table begins with `| id |`.
fn rows() -> Vec<Row> {
    let page = std::fs::read_to_string(package().join("docs/contract.md")).unwrap();
    let mut is_inside = false;
    let mut rows = Vec::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        match cells.as_slice() {
            [id, .., last] if line.starts_with('|') => {
                if is_inside && !id.starts_with("---") {
                    let (id, held_by) = ((*id).to_owned(), (*last).to_owned());
                    rows.push(Row { id, held_by });
                }
                is_inside |= *id == "id";
            }
            // The separator below a table's head has no spaces around its bars.
            _ => is_inside &= line.starts_with('|'),
        }
    }
    rows
}

/// All files below a folder with this extension.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|one| one == ending) {
            found.push(path);
        }
    }
    found
}

/// The paths of all test functions below a folder, with `prefix` before them.
fn tests_below(folder: &str, prefix: &str) -> BTreeSet<String> {
    let root = package().join(folder);
    let texts: BTreeMap<PathBuf, String> = files(&root, "rs")
        .into_iter()
        .map(|file| (file.clone(), std::fs::read_to_string(&file).unwrap()))
        .collect();
    let mut modules: BTreeMap<PathBuf, String> = texts
        .keys()
        .map(|file| (file.clone(), module(&root, file, prefix)))
        .collect();
    for (file, text) in &texts {
        for (path, name) in elsewhere(text) {
            let place = file.parent().unwrap().join(path).canonicalize().unwrap();
            modules.insert(place, format!("{}{name}::", module(&root, file, prefix)));
        }
    }
    let mut found = BTreeSet::new();
    for (file, text) in &texts {
        tests_of(text, &modules[file], &mut found);
    }
    found
}

/// The path of a file's module, with `::` at its end.
fn module(root: &Path, file: &Path, prefix: &str) -> String {
    let path = file.strip_prefix(root).unwrap().with_extension("");
    let mut module = prefix.to_owned();
    for part in path.iter().filter(|part| *part != "mod") {
        module += part.to_str().unwrap();
        module += "::";
    }
    module
}

/// The modules that a file includes with `#[path]`: path and name.
fn elsewhere(text: &str) -> Vec<(&str, &str)> {
    let mut lines = text.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let path = line.strip_prefix("#[path = \"");
        let path = path.and_then(|rest| rest.strip_suffix("\"]"));
        let name = lines.peek().and_then(|next| next.strip_prefix("mod "));
        let name = name.and_then(|rest| rest.strip_suffix(';'));
        found.extend(path.zip(name));
    }
    found
}

/// Adds the test functions of one file: those with an attribute, also in inner modules, and those
/// that `on_both!` lists.
fn tests_of(text: &str, module: &str, found: &mut BTreeSet<String>) {
    let mut inner: Vec<(usize, &str)> = Vec::new();
    let (mut is_test, mut is_listed) = (false, false);
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if code.starts_with('}') {
            inner.retain(|(outer, _)| *outer < indent);
            is_listed = false;
        } else if is_listed {
            found.extend(
                code.split_whitespace()
                    .map(|name| format!("{module}{name}")),
            );
        } else if let Some(name) = (code.strip_prefix("pub("))
            .and_then(|rest| rest.split_once(") "))
            .map_or(code, |(_, item)| item)
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(" {"))
        {
            inner.push((indent, name));
        } else if code.starts_with("on_both! {") {
            is_listed = true;
        } else if code.starts_with("#[test") || code.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, rest)) = code.split_once("fn ").filter(|_| is_test) {
            let name = rest.split('(').next().unwrap();
            let inner: String = inner.iter().map(|(_, name)| format!("{name}::")).collect();
            found.insert(format!("{module}{inner}{name}"));
            is_test = false;
        }
    }
}

#[test]
fn every_test_of_the_contract_exists() {
    let mut known = tests_below("tests/it", "");
    known.extend(tests_below("src", "src::"));
    let rows = rows();
    let named: Vec<&str> = rows.iter().flat_map(Row::tests).collect();
    assert!(named.len() > 200, "{} names read", named.len());
    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| !known.contains(**name))
        .collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

#[test]
fn every_mutant_fits_the_source_and_selects_a_test() {
    let stories = tests_below("tests/it", "");
    let units = tests_below("src", "");
    let table = std::fs::read_to_string(package().join("tests/mutants.jsonl")).unwrap();
    let (mut wrong, mut names) = (Vec::new(), BTreeSet::new());
    for line in table.lines().filter(|line| line.starts_with('{')) {
        let mutant: BTreeMap<String, String> = serde_json::from_str(line).unwrap();
        if !names.insert(mutant["name"].clone()) {
            wrong.push(format!("{}: twice", mutant["name"]));
        }
        let source = std::fs::read_to_string(package().join(&mutant["file"])).unwrap_or_default();
        let count = source.matches(&mutant["old"]).count();
        if count != 1 {
            wrong.push(format!("{}: found {count} times", mutant["name"]));
        }
        let (kind, filter) = mutant["test"].rsplit_once(' ').unwrap();
        let known = match kind {
            "--lib" => &units,
            "--test it" => &stories,
            // `scripts/mutants` refuses the whole table.
            _ => {
                wrong.push(format!("{}: tests of {kind}", mutant["name"]));
                continue;
            }
        };
        // Modules that `on_both!` makes.
        let name = filter
            .replace("on_sqlite::", "")
            .replace("on_postgres::", "");
        if !known.iter().any(|test| test.contains(&name)) {
            wrong.push(format!("{}: no test {filter}", mutant["name"]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn identifiers_of_the_contract_are_unique() {
    let mut count = BTreeMap::<String, u32>::new();
    for row in rows() {
        *count.entry(row.id).or_default() += 1;
    }
    count.retain(|_, count| *count > 1);
    assert!(count.is_empty(), "identifiers that come twice: {count:?}");
}

#[test]
fn every_promise_has_a_test_or_a_reason() {
    let rows = rows();
    let bare = |row: &&Row| row.tests().next().is_none() && !row.has_reason();
    let bare: Vec<&str> = rows
        .iter()
        .filter(bare)
        .map(|row| row.id.as_str())
        .collect();
    assert!(
        bare.is_empty(),
        "name a test, or begin with one of {REASONS:?}: {bare:?}"
    );
}

/// Every page of the documentation.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&package().join("docs"), "md");
    let front = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "helm/lockgate/README.md",
    ];
    pages.extend(front.map(|name| package().join(name)));
    pages
}

#[test]
fn files_that_pages_name_exist() {
    let folders = ["src/", "tests/", "docs/", "scripts/", "deploy/", "helm/"];
    let is_part = |one: char| one.is_alphanumeric() || "/._-".contains(one);
    let mut missing = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for word in text.split(|one| !is_part(one)) {
            let path = word.trim_matches(['.', '/']);
            let is_path = folders.iter().any(|folder| word.starts_with(folder));
            if is_path && !package().join(path).exists() {
                missing.push(format!("{}: {word}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn recipes_of_contributing_fit_the_source() {
    let text = std::fs::read_to_string(package().join("CONTRIBUTING.md")).unwrap();
    let mut wrong = Vec::new();
    let diffs = text.split("```diff\n").skip(1);
    for diff in diffs.filter_map(|rest| rest.split("```").next()) {
        let (mut file, mut source) = ("", String::new());
        for line in diff.lines() {
            if let Some(path) = line.strip_prefix("--- ") {
                (file, source) = (path, std::fs::read_to_string(package().join(path)).unwrap());
            } else if let Some(old) = line.strip_prefix([' ', '-'])
                && !source.lines().any(|one| one == old)
            {
                wrong.push(format!("{file}: {old}"));
            }
        }
    }
    assert!(wrong.is_empty(), "lines that are not there: {wrong:#?}");
}

#[test]
fn links_of_all_pages_lead_somewhere() {
    let mut dead = Vec::new();
    for page in &pages() {
        let text = std::fs::read_to_string(page).unwrap();
        for target in links(&text) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => page.clone(),
                file => page.with_file_name(file),
            };
            let is_there = file.exists()
                && (heading.is_empty()
                    || headings(&std::fs::read_to_string(&file).unwrap()).contains(heading));
            if !is_there {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// The relative targets of links in a page.
fn links(page: &str) -> Vec<&str> {
    let behind = page.split("](").skip(1);
    let targets = behind.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets
        .filter(|target| !target.contains("://") && !target.contains(' '))
        .collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn headings(page: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut found = BTreeSet::new();
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            let text = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = text
                .chars()
                .filter(|one| one.is_alphanumeric() || " -_".contains(*one));
            found.insert(kept.map(|one| if one == ' ' { '-' } else { one }).collect());
        }
    }
    found
}
