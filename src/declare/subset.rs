//! Subset of a shared list: what one caller has of it, without copies of its items.
//!
//! Not here: who has what (`policy`, `identity`).

use std::sync::Arc;

/// Some items of a shared list, in its order. It takes a bit for each item of the list: each stream, call and session
/// keeps one.
#[derive(Clone, Debug)]
pub(crate) struct Subset<T> {
    all: Arc<[T]>,
    /// A bit for each item; none if all are members. A pointer alone, since most have none.
    members: Option<Arc<Vec<u64>>>,
}

impl<T> From<Arc<[T]>> for Subset<T> {
    fn from(all: Arc<[T]>) -> Self {
        Self { all, members: None }
    }
}

impl<T: PartialEq> PartialEq for Subset<T> {
    fn eq(&self, other: &Self) -> bool {
        let is_same = Arc::ptr_eq(&self.all, &other.all) && self.members == other.members;
        is_same || self.items().eq(other.items())
    }
}

impl<T: Eq> Eq for Subset<T> {}

impl<T> Subset<T> {
    /// The items of `all` for which `members`, which has an answer for each of them, says so.
    pub(crate) fn new(all: &Arc<[T]>, members: impl Iterator<Item = bool>) -> Self {
        let mut words = vec![0_u64; all.len().div_ceil(WORD)];
        let mut is_whole = true;
        for (at, is_member) in members.enumerate() {
            is_whole &= is_member;
            if let Some(word) = words.get_mut(at / WORD) {
                *word |= u64::from(is_member) << (at % WORD);
            }
        }
        if is_whole {
            return Self::from(Arc::clone(all));
        }
        Self {
            all: Arc::clone(all),
            members: Some(Arc::new(words)),
        }
    }

    /// The whole list.
    pub(crate) fn all(&self) -> &Arc<[T]> {
        &self.all
    }

    /// Its items.
    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        let all = self.all.iter().enumerate();
        let members = all.filter(move |(at, _)| self.has(*at));
        members.map(|(_, item)| item)
    }

    /// Reports whether the item at this place of the list is in it.
    fn has(&self, at: usize) -> bool {
        let is_set = |word: &u64| (word >> (at % WORD)) & 1 == 1;
        let members = self.members.as_ref();
        members.is_none_or(|words| words.get(at / WORD).is_some_and(is_set))
    }
}

/// Bits of a word.
const WORD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subset_has_its_items_in_order() {
        for length in [0_usize, 1, 63, 64, 65, 200] {
            let all: Arc<[usize]> = (0..length).collect();
            let of = |is_member: fn(usize) -> bool| {
                Subset::new(&all, all.iter().map(|item| is_member(*item)))
            };
            let (some, none) = (of(|item| item % 3 == 1), of(|_| false));
            let expected = (0..length).filter(|item| item % 3 == 1);
            assert!(some.items().copied().eq(expected), "{length}");
            assert_eq!(none.items().count(), 0);
            let whole = of(|_| true);
            assert!(whole.members.is_none() && whole.items().copied().eq(0..length));
            assert!(Arc::ptr_eq(some.all(), &all) && Arc::ptr_eq(whole.all(), &all));
            let alike: Arc<[usize]> = some.items().copied().collect();
            assert_eq!(Subset::from(alike), some);
            assert_eq!(none == whole, length == 0);
        }
    }
}
