//! What is remembered of servers: a bounded number of entries, of which no tenant takes those of others.
//!
//! Not here: what is remembered (`failures`, and `opening` of the backend).

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

/// Entries by tenant and key. In place of one too many goes the oldest of the tenant that has most: tenants with few keep
/// theirs, and one alone may have them all.
#[derive(Debug)]
pub(crate) struct Remembered<K, V> {
    tenants: HashMap<String, HashMap<K, Entry<V>>>,
    /// The entries of all tenants, and the most of them.
    count: usize,
    most: usize,
    /// The number of the next entry.
    next: u64,
}

#[derive(Debug)]
struct Entry<V> {
    /// Grows from one entry to the next.
    number: u64,
    value: V,
}

impl<K: Eq + Hash + Clone, V> Remembered<K, V> {
    /// Nothing yet, and at most so many entries.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            tenants: HashMap::new(),
            count: 0,
            most,
            next: 0,
        }
    }

    /// The value of a key.
    pub(crate) fn get<Q>(&self, tenant: &str, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let entry = self.tenants.get(tenant)?.get(key)?;
        Some(&entry.value)
    }

    /// Remembers a value as the newest one, in place of an earlier one of its key.
    pub(crate) fn insert(&mut self, tenant: &str, key: K, value: V) {
        self.remove(tenant, &key);
        if self.count >= self.most {
            self.remove_one(tenant);
        }
        let number = self.next;
        self.next += 1;
        self.count += 1;
        let entries = self.tenants.entry(tenant.to_owned()).or_default();
        entries.insert(key, Entry { number, value });
    }

    /// Forgets the value of a key.
    pub(crate) fn remove<Q>(&mut self, tenant: &str, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let Some(entries) = self.tenants.get_mut(tenant) else {
            return;
        };
        if entries.remove(key).is_some() {
            self.count -= 1;
        }
        if entries.is_empty() {
            self.tenants.remove(tenant);
        }
    }

    /// Forgets the oldest entry of the tenant that has most; of several that of `tenant`, which wants one more.
    fn remove_one(&mut self, tenant: &str) {
        let largest = self.tenants.iter();
        let largest = largest.max_by_key(|(name, entries)| (entries.len(), *name == tenant));
        let found = largest.and_then(|(tenant, entries)| {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.number);
            oldest.map(|(key, _)| (tenant.clone(), key.clone()))
        });
        if let Some((tenant, key)) = found {
            self.remove(&tenant, &key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::remembered::*;

    /// Entries of one tenant were pushed out by those of another.
    #[test]
    fn the_oldest_of_the_largest_tenant_goes() {
        let mut all = Remembered::new(8);
        for one in 0..3 {
            all.insert("small", one, one);
        }
        for one in 0..100 {
            all.insert("large", one, one);
            // It is as new as the last one.
            all.insert("large", 0, one);
        }
        let kept = |all: &Remembered<i32, i32>, tenant: &str| -> Vec<i32> {
            let kept = (0..100).filter(|one| all.get(tenant, one).is_some());
            kept.collect()
        };
        assert_eq!(kept(&all, "small"), [0, 1, 2]);
        assert_eq!(kept(&all, "large"), [0, 96, 97, 98, 99]);
        assert_eq!(all.get("large", &0), Some(&99));
        // Others have as many before it has fewer than they.
        for one in 3..100 {
            all.insert("small", one, one);
        }
        assert_eq!(kept(&all, "large").len() + kept(&all, "small").len(), 8);
        assert_eq!(kept(&all, "large").len(), 4);
        for one in 0..100 {
            all.remove("large", &one);
        }
        assert_eq!((all.count, all.tenants.len()), (4, 1));
        // One alone has them all.
        for one in 0..100 {
            all.insert("small", one, one);
        }
        assert_eq!(kept(&all, "small").len(), 8);
    }
}
