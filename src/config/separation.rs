//! Children: the means of their separation, and the settings of all of them.
//!
//! Not here: the means that this machine supports (`backend/sandbox`).

use std::{collections::BTreeMap, fmt};

use super::{
    cluster::authorities,
    document::Node,
    reader::{Wrong, choice},
    sources::Layers,
};

/// The means that separates the processes of one child from those of another, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Separation {
    /// A separate uid and gid for each child, from `sandbox.uids`.
    Uid,
    /// A separate user, pid and mount namespace for each child.
    Namespace,
    /// A separate Landlock domain for each child, which prevents signals, ptrace and access to
    /// `/proc`.
    Landlock,
    /// None.
    None,
}

impl Separation {
    /// The word in `sandbox.separation`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Uid => "uid",
            Self::Namespace => "namespace",
            Self::Landlock => "landlock",
            Self::None => "none",
        }
    }

    /// Reads `sandbox.separation`; none is `auto`.
    pub(crate) fn read(node: &Node) -> Result<Option<Self>, Wrong> {
        choice(&node.text()?, &WORDS)
    }
}

impl fmt::Display for Separation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The user ids, and equal group ids, that are reserved for children of this gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uids {
    /// The first id; never 0.
    pub(crate) first: u32,
    /// The number of ids; at least one.
    pub(crate) count: u32,
}

impl Uids {
    /// Reads `sandbox.uids` (`"100000-165535"`); none if empty.
    pub(crate) fn read(node: &Node) -> Result<Option<Self>, Wrong> {
        let text = node.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |why: &str| Wrong::new(format!("{text:?} {why}"), UIDS_REMEDY);
        let (first, last) = text
            .split_once('-')
            .ok_or_else(|| wrong("is not a range"))?;
        let number = |text: &str| text.trim().parse::<u32>();
        let (Ok(first), Ok(last)) = (number(first), number(last)) else {
            return Err(wrong("is not a range"));
        };
        if first < MIN_UID || last == u32::MAX {
            return Err(wrong("has uids that may belong to somebody"));
        }
        match last.checked_sub(first) {
            Some(more) if more < MAX_UIDS => Ok(Some(Self {
                first,
                count: more + 1,
            })),
            Some(_) => Err(wrong("has more than a million uids")),
            None => Err(wrong("ends before it begins")),
        }
    }
}

/// Returns how many of `wanted` children can have a uid of their own, if each is to have one.
pub(crate) fn most_children(
    uids: Option<Uids>,
    separation: Option<Separation>,
    wanted: usize,
) -> usize {
    let has_uids = matches!(separation, None | Some(Separation::Uid));
    let uids = uids.filter(|_| has_uids);
    uids.map_or(wanted, |uids| wanted.min(uids.count as usize))
}

const WORDS: [(&str, Option<Separation>); 5] = [
    ("auto", None),
    ("uid", Some(Separation::Uid)),
    ("namespace", Some(Separation::Namespace)),
    ("landlock", Some(Separation::Landlock)),
    ("none", Some(Separation::None)),
];

const UIDS_REMEDY: &str = "write a range that nobody else uses, like \"100000-165535\"";

/// Lower ids belong to the system and its users (`login.defs`, `UID_MIN`).
const MIN_UID: u32 = 1000;

/// Each id takes one bit of memory.
const MAX_UIDS: u32 = 1 << 20;

/// The environment that all children share, and how much of the processors they take.
#[derive(Clone, Debug)]
pub(crate) struct Children {
    /// Variables and their values; those of `children.ca_file` come first.
    pub(crate) env: Vec<(String, String)>,
    /// Niceness above that of the gateway.
    pub(crate) nice: u8,
    /// Whether the gateway goes first (`SCHED_BATCH`).
    pub(crate) is_batch: bool,
}

impl Layers {
    /// Reads `children`; `own` is the environment of the gateway.
    pub(super) fn children(&mut self, own: &BTreeMap<String, String>) -> Children {
        let file = self.leaf("children.ca_file", |node| {
            let file = node.text()?;
            let is_there = authorities(&file)?.is_some();
            if is_there && !file.starts_with('/') {
                let remedy = "write the whole path: servers have other directories";
                return Err(Wrong::new(format!("{file:?} is not absolute"), remedy));
            }
            Ok(is_there.then_some(file))
        });
        let named = file.iter().flat_map(|file| {
            let named = CA_VARIABLES.iter();
            named.map(|name| ((*name).to_owned(), file.clone()))
        });
        let passed = self.leaf("children.env", |node| node.each(|text| passed(text, own)));
        let nice = self.leaf("children.nice", |node| {
            let nice = node.count(0)?;
            let nice = u8::try_from(nice).ok().filter(|nice| *nice <= MOST_NICE);
            nice.ok_or_else(|| Wrong::new("is no niceness", format!("write 0 to {MOST_NICE}")))
        });
        Children {
            env: named.chain(passed).collect(),
            nice: if self.run { 0 } else { nice },
            is_batch: self.leaf("children.batch", Node::flag),
        }
    }
}

/// A variable for children: `NAME=VALUE`, or NAME with the value of the gateway's own.
fn passed(text: &str, own: &BTreeMap<String, String>) -> Result<(String, String), Wrong> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, own.get(text).map(String::as_str)),
    };
    let remedy = "write NAME=VALUE, or the name of a variable that the gateway has";
    if name.is_empty() || text.contains('\0') {
        return Err(Wrong::new(format!("{text:?} names no variable"), remedy));
    }
    let unset = || Wrong::new(format!("{name} is not set"), remedy);
    let value = value.ok_or_else(unset)?.to_owned();
    Ok((name.to_owned(), value))
}

/// The variables by which servers find certificate authorities: OpenSSL and Rust, Node.js, Python's
/// requests, curl.
pub(crate) const CA_VARIABLES: [&str; 4] = [
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

/// The highest niceness (sched(7)).
const MOST_NICE: u8 = 19;

#[cfg(test)]
mod tests {
    use super::super::separation::*;

    #[test]
    fn ranges_of_uids() {
        let read = |text: &str| Uids::read(&Node::from_word("F", text));
        let uids = |first, count| Ok(Some(Uids { first, count }));
        assert_eq!(read("100000-165535"), uids(100_000, 65_536));
        assert_eq!(read("5000-5000"), uids(5000, 1));
        assert_eq!(read("1000 - 1048575"), uids(1000, 1_047_576));
        for wrong in [
            "5000",
            "0-5",
            "999-2000",
            "5-",
            "-5",
            "6000-5999",
            "1000-9999999",
            "x-y",
            "4294960000-4294967295",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_of_separation() {
        for (word, separation) in WORDS {
            let node = Node::from_word("F", word);
            assert_eq!(Separation::read(&node), Ok(separation));
            assert!(separation.is_none_or(|separation| separation.as_str() == word));
        }
        assert!(Separation::read(&Node::from_word("F", "userns")).is_err());
        assert!(Separation::Uid < Separation::None);
    }
}
