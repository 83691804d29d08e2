//! Interpolation of `${env:NAME}`, `${file:PATH}` and `${prepared}`.
//!
//! Inserted values never appear in messages. Not here: the keys with interpolated values.

use std::{collections::BTreeMap, path::Path};

use crate::base;
use crate::config::Wrong;
use crate::declare::STORE;

/// Inserts variables and files into `text`, and [`STORE`] for `${prepared}`; `$$` is `$`.
pub(crate) fn interpolate(text: &str, env: &BTreeMap<String, String>) -> Result<String, Wrong> {
    let mut out = String::with_capacity(text.len());
    let mut rest = without_nul(text)?;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        if let Some(behind) = behind.strip_prefix('$') {
            out.push('$');
            rest = behind;
        } else if let Some((inner, behind)) = behind
            .strip_prefix('{')
            .and_then(|inner| inner.split_once('}'))
        {
            if inner == "prepared" {
                out.push(STORE);
            } else {
                out.push_str(without_nul(&value_of(inner, env)?)?);
            }
            rest = behind;
        } else {
            return Err(Wrong::new("a $ alone", "write $$ for a $"));
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// A NUL stands for the prepared store here, and no program can receive one.
fn without_nul(text: &str) -> Result<&str, Wrong> {
    if text.contains(STORE) {
        return Err(Wrong::new("holds a NUL byte", "leave it out"));
    }
    Ok(text)
}

/// Inserts variables and files into `text`, and keeps it in the manifest's syntax: [`interpolate`]
/// of the result without an environment equals [`interpolate`] of `text` with `env`.
///
/// Other mistakes in `text` stay, for [`interpolate`] to find.
pub(crate) fn resolve(text: &str, env: &BTreeMap<String, String>) -> Result<String, Wrong> {
    let mut out = String::with_capacity(text.len());
    for piece in pieces(text) {
        match piece {
            Piece::Plain(plain) => out.push_str(plain),
            Piece::Open(inner) => out.push_str(&escape(without_nul(&value_of(inner, env)?)?)),
        }
    }
    Ok(out)
}

/// Reports whether `text` refers to no variable and no file.
pub(crate) fn is_closed(text: &str) -> bool {
    pieces(text).all(|piece| matches!(piece, Piece::Plain(_)))
}

/// The files that `text` refers to.
pub(crate) fn files(text: &str) -> impl Iterator<Item = &Path> {
    pieces(text).filter_map(|piece| match piece {
        Piece::Open(inner) => inner.strip_prefix("file:").map(Path::new),
        Piece::Plain(_) => None,
    })
}

/// A part of a text.
enum Piece<'a> {
    /// Literal text, including `$$` and `${prepared}`.
    Plain(&'a str),
    /// The inside of a `${env:…}` or `${file:…}`.
    Open(&'a str),
}

/// The parts of a text, split from left to right as [`interpolate`] does.
fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let open = rest
            .strip_prefix("${")
            .and_then(|inner| inner.split_once('}'))
            .filter(|(inner, _)| inner.starts_with("env:") || inner.starts_with("file:"));
        if let Some((inner, behind)) = open {
            rest = behind;
            return Some(Piece::Open(inner));
        }
        let first = if rest.starts_with("$$") { 2 } else { 1 };
        let next = rest.get(first..).and_then(|behind| behind.find('$'));
        let end = next.map_or(rest.len(), |next| first + next);
        // Never within a multi-byte character: the searched characters are ASCII.
        let end = if rest.starts_with('$') {
            end
        } else {
            rest.find('$').unwrap_or(rest.len())
        };
        let (plain, behind) = rest.split_at(end);
        rest = behind;
        (!plain.is_empty()).then_some(Piece::Plain(plain))
    })
}

/// Escapes `text`, so that [`interpolate`] returns it.
pub(crate) fn escape(text: &str) -> String {
    text.replace('$', "$$")
}

fn value_of(inner: &str, env: &BTreeMap<String, String>) -> Result<String, Wrong> {
    if let Some(name) = inner.strip_prefix("env:") {
        let value = env.get(name).cloned();
        return value.ok_or_else(|| {
            let what = format!("the variable {name} is not set");
            Wrong::new(what, "set it in the environment of lockgate")
        });
    }
    let Some(path) = inner.strip_prefix("file:") else {
        // Without the text, which may be a part of a password.
        return Err(Wrong::new(
            "an unknown ${…}",
            "write ${env:NAME}, ${file:PATH} or ${prepared}, or $$ for a $",
        ));
    };
    if !Path::new(path).is_absolute() {
        return Err(Wrong::new(
            format!("{path:?} is not absolute"),
            "write the whole path",
        ));
    }
    match base::text(Path::new(path), base::SETTING_MAX) {
        // Editors and `echo` add a newline at the end of files.
        Ok(text) => Ok(text
            .strip_suffix('\n')
            .map_or(text.as_str(), |line| {
                line.strip_suffix('\r').unwrap_or(line)
            })
            .to_owned()),
        Err(error) => {
            let what = format!("the file {path} cannot be read: {error}");
            Err(Wrong::new(what, "name a readable UTF-8 file"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::super::interpolation::*;

    fn env() -> BTreeMap<String, String> {
        BTreeMap::from([
            ("A".to_owned(), "1$2".to_owned()),
            ("E".to_owned(), String::new()),
        ])
    }

    #[test]
    fn puts_in_variables_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        fs::write(&file, "s3cret\n").unwrap();
        let by_file = format!("<${{file:{}}}>", file.display());
        let cases = [
            ("", ""),
            ("plain", "plain"),
            ("${env:A}", "1$2"),
            ("x${env:A}y${env:E}z", "x1$2yz"),
            ("$$", "$"),
            ("$${env:A}", "${env:A}"),
            ("$$$$x", "$$x"),
            ("${prepared}/x", "\0/x"),
            ("$${prepared}", "${prepared}"),
            (by_file.as_str(), "<s3cret>"),
        ];
        for (text, value) in cases {
            assert_eq!(interpolate(text, &env()).as_deref(), Ok(value), "{text}");
        }
    }

    #[test]
    fn says_which_files_are_named() {
        let text = "${file:/a} ${env:A}$${file:/b}$$${file:/c}${prepared}/${file:/d/e";
        assert_eq!(files(text).collect::<Vec<_>>(), ["/a", "/c"].map(Path::new));
    }

    #[test]
    fn refuses_what_it_cannot_put_in() {
        for text in [
            "$",
            "a$b",
            "${",
            "${env:A",
            "${A}",
            "${env:NOT_SET}",
            "${file:relative}",
            "${file:/nonexistent/x}",
            "${file:/dev/zero}",
            "${}",
            "$$$",
            "a\0b",
        ] {
            assert!(interpolate(text, &env()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn escaped_texts_come_back(text in "[^\0]*") {
            prop_assert_eq!(interpolate(&escape(&text), &env()), Ok(text));
        }

        #[test]
        fn never_panics(text in "[$a-z{}:ä]*") {
            drop(interpolate(&text, &env()));
            drop(resolve(&text, &env()));
        }

        /// `interpolate` after `resolve` gives the same text as `interpolate` alone, and needs no
        /// environment.
        #[test]
        fn putting_in_changes_no_meaning(parts in "(ä|x|[$]{1,3}|[$][{]env:A[}]|[$][{]env:E[}]|[$][{]prepared[}]|[{]|[}])*") {
            if let Ok(whole) = interpolate(&parts, &env()) {
                let closed = resolve(&parts, &env()).unwrap();
                prop_assert!(is_closed(&closed), "{}", closed);
                prop_assert_eq!(interpolate(&closed, &BTreeMap::new()), Ok(whole));
            }
        }
    }
}
