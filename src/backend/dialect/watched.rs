//! Watched resources by their URIs, and those among them that an update of a resource is told to.
//!
//! An update is looked up by the beginnings of its URI: its cost is that of the URI, however many resources
//! are watched. Not here: the rule behind it (`protocol::is_subscribed`).

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, Hasher, RandomState},
};

use bytes::Bytes;

/// A value for each raw URI, in its canonical spelling.
#[derive(Default)]
pub(crate) struct Watched<V> {
    values: HashMap<Key, V>,
    /// The hash of the keys.
    state: RandomState,
    /// The length of the longest URI so far.
    longest: usize,
    /// The bytes that the entries take.
    bytes: usize,
}

/// A URI, or the beginning of one that stands for the URI that ends there.
struct Key {
    /// The hash of the text up to its end.
    hash: u64,
    text: Bytes,
    /// The end of the URI, without its closing quote.
    end: usize,
    /// Whether a closing quote follows: a value that is no string has none.
    is_closed: bool,
}

/// The bytes that an entry takes besides its URI.
const ENTRY: usize = 128;

impl Key {
    fn parts(&self) -> (u64, bool, &[u8]) {
        (self.hash, self.is_closed, &self.text[..self.end])
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.hash);
    }
}

impl<V> Watched<V> {
    /// Whether nothing is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The bytes that it takes.
    pub(crate) fn size(&self) -> usize {
        self.bytes
    }

    /// The URIs, in order.
    pub(crate) fn uris(&self) -> Vec<&[u8]> {
        let mut uris: Vec<&[u8]> = self.values.keys().map(|key| &*key.text).collect();
        uris.sort_unstable();
        uris
    }

    /// The value of a URI.
    pub(crate) fn get(&self, uri: &[u8]) -> Option<&V> {
        self.values.get(&self.key(uri))
    }

    /// The value of a URI.
    pub(crate) fn get_mut(&mut self, uri: &[u8]) -> Option<&mut V> {
        let key = self.key(uri);
        self.values.get_mut(&key)
    }

    /// The value of a URI, which is watched from now on.
    pub(crate) fn or_default(&mut self, uri: &[u8]) -> &mut V
    where
        V: Default,
    {
        let key = self.key(uri);
        self.longest = self.longest.max(uri.len());
        self.values.entry(key).or_insert_with(|| {
            self.bytes += uri.len() + ENTRY;
            V::default()
        })
    }

    /// Removes a URI; its value.
    pub(crate) fn remove(&mut self, uri: &[u8]) -> Option<V> {
        let key = self.key(uri);
        let value = self.values.remove(&key)?;
        self.bytes -= uri.len() + ENTRY;
        Some(value)
    }

    /// Removes those for which this is true; their URIs.
    pub(crate) fn extract(&mut self, mut is_one: impl FnMut(&[u8], &mut V) -> bool) -> Vec<Bytes> {
        let removed = self
            .values
            .extract_if(|key, value| is_one(&key.text, value));
        let removed: Vec<Bytes> = removed.map(|(key, _)| key.text).collect();
        let sizes = removed.iter().map(|uri| uri.len() + ENTRY);
        self.bytes -= sizes.sum::<usize>();
        removed
    }

    /// The values of the URIs to which an update of this one belongs: itself, and those that end before or
    /// behind one of its slashes.
    pub(crate) fn told<'w>(&'w self, uri: &'w Bytes) -> impl Iterator<Item = &'w V> {
        let longest = self.longest;
        let (stem, is_closed) = stem(uri);
        let beginnings = self.beginnings(stem);
        beginnings
            .take_while(move |(end, _)| *end <= longest)
            .filter_map(move |(end, hash)| {
                self.values.get(&Key {
                    hash,
                    text: uri.clone(),
                    end,
                    is_closed: is_closed || end < stem.len(),
                })
            })
    }

    fn key(&self, uri: &[u8]) -> Key {
        let (stem, is_closed) = stem(uri);
        let whole = self.beginnings(stem).last();
        Key {
            hash: whole.map_or(0, |(_, hash)| hash),
            text: Bytes::copy_from_slice(uri),
            end: stem.len(),
            is_closed,
        }
    }

    /// The ends and hashes of the beginnings that end before or behind a slash, and of the whole. Each is the
    /// hash of the one before it and what follows, so that all cost no more than the last.
    fn beginnings(&self, stem: &[u8]) -> impl Iterator<Item = (usize, u64)> {
        let mut hasher = self.state.build_hasher();
        let segments = stem.split_inclusive(|byte| *byte == b'/');
        let parts = segments.flat_map(|segment| {
            let name = segment.strip_suffix(b"/").unwrap_or(segment);
            [name, &segment[name.len()..]]
        });
        let parts = parts.filter(|part| !part.is_empty());
        parts.scan(0, move |end, part| {
            hasher.write(part);
            *end += part.len();
            Some((*end, hasher.finish()))
        })
    }
}

/// A raw URI without its closing quote, and whether it has one.
fn stem(uri: &[u8]) -> (&[u8], bool) {
    let stem = uri.strip_suffix(b"\"");
    stem.map_or((uri, false), |stem| (stem, true))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::watched::*;
    use crate::protocol::is_subscribed;

    fn spelled(uri: &str) -> Box<[u8]> {
        serde_json::to_vec(uri).unwrap().into()
    }

    proptest! {
        /// The rule is that of all who pass updates on: this is a faster way to the same.
        #[test]
        fn an_update_is_told_to_those_that_watch_it(
            held in prop::collection::vec("[ab\"/]{0,6}", 0..24), uri in "[ab\"/]{0,8}",
            gone in 0..8_usize,
        ) {
            let mut held: Vec<Box<[u8]>> = held.iter().map(|uri| spelled(uri)).collect();
            let (uri, number) = (spelled(&uri), Box::<[u8]>::from(&b"5"[..]));
            held.extend([number.clone(), uri.clone()]);
            let mut watched = Watched::<Box<[u8]>>::default();
            for one in &held {
                watched.or_default(one).clone_from(one);
            }
            let left = held.split_off(gone.min(held.len()));
            for one in &held {
                watched.remove(one);
            }
            for one in &left {
                watched.or_default(one).clone_from(one);
            }
            for uri in [uri, number] {
                let mut expected: Vec<&[u8]> =
                    left.iter().map(|one| &**one).filter(|one| is_subscribed(one, &uri)).collect();
                expected.sort_unstable();
                expected.dedup();
                let uri = Bytes::from(uri);
                let mut told: Vec<&[u8]> = watched.told(&uri).map(|one| &**one).collect();
                told.sort_unstable();
                prop_assert_eq!(told, expected);
            }
            watched.extract(|_, _| true);
            prop_assert_eq!((watched.is_empty(), watched.size()), (true, 0));
        }
    }
}
