//! The steps of every change of declared objects: judgement beside other writers, and one transaction.
//!
//! Not here: the operations (`repository`), and the edits themselves (`changes`).

use std::collections::BTreeMap;

use super::{
    changes::{Written, apart, edited, give_up_hashes, record, takes_hosts, write},
    removal,
    repository::{Objects, version_in},
    rows::{self, Loaded, Mark, Selection, Stored},
    slots,
};
use crate::{
    database::{
        pool::{Author, Error, Record, Transaction, audit},
        vault::Sealer,
    },
    declare::{Change, ChangeKind, Declared, Kind, When},
};

/// A change that is judged and not written yet.
struct Planned {
    /// The selected objects.
    before: Loaded,
    /// What it was judged by.
    basis: Basis,
    /// The most secrets of each tenant with which the judgement is the same.
    most_secrets: BTreeMap<String, u64>,
    /// It was judged by the hosts of other tenants as well.
    looks_at_hosts: bool,
    wanted: Declared,
    changes: Vec<Change>,
}

/// What a change is judged by but for secrets, in brief: while it stays equal, so does the judgement.
#[derive(PartialEq, Eq)]
struct Basis {
    mark: Mark,
    /// The number of other tenants, as far as it matters.
    others: usize,
}

impl Objects<'_> {
    /// The steps of every change: `edit` makes of the selected objects the wanted ones, with the
    /// differences. The tenants that change are checked as a whole, and the result is written with its
    /// audit records, or not at all.
    ///
    /// A tenant with many objects takes long to read and to check, while other writers would wait for the lock: that
    /// comes before it, and again if others have changed the same tenant meanwhile. Behind the last time a change of an
    /// operator is checked while they wait, since no tenant may put off its removal or a lower quota by changes of its
    /// own; so is one of a tenant with little to check. Another one fails with `Overtaken`.
    pub(super) async fn change(
        self,
        selection: Selection<'_>,
        when: When,
        author: &Author,
        mut edit: impl FnMut(&Loaded) -> Result<(Declared, Vec<Change>), Error>,
    ) -> Result<(Loaded, Vec<Change>), Error> {
        let tries = match selection {
            Selection::All => 1,
            _ => UNLOCKED,
        };
        let mut may_lock = self.is_operator;
        for _ in 0..tries {
            let unlocked = self.pool.snapshot().await?;
            let planned = Box::pin(self.planned(unlocked, selection, when, &mut edit));
            let (planned, unlocked) = planned.await?;
            if planned.changes.is_empty() {
                return Ok((planned.before, planned.changes));
            }
            // Its connection returns: another one is needed.
            drop(unlocked);
            let is_removal = |change: &Change| change.what == ChangeKind::Removed;
            if planned.changes.iter().any(is_removal) {
                // One that could not be written ends nothing. The keys may be newer than what was judged.
                let mut now = self.pool.snapshot().await?;
                self.vault.current_keys(&mut now).await?;
            }
            // The change is one that can be made, unless others change the same meanwhile.
            Box::pin(removal::begin(self.pool, &planned.changes, author)).await?;
            let mut transaction = self.pool.begin().await?;
            if planned.looks_at_hosts {
                // They are of all tenants, so that the basis does not tell of them.
                let planned = Box::pin(self.planned(transaction, selection, when, &mut edit));
                let (planned, transaction) = planned.await?;
                return self.write(transaction, planned, author).await;
            }
            if planned.holds(&mut transaction, selection).await? {
                return self.write(transaction, planned, author).await;
            }
            may_lock = self.is_operator || is_small(&planned.before);
        }
        if !may_lock {
            return Err(Error::Overtaken);
        }
        let locked = self.pool.begin().await?;
        let planned = Box::pin(self.planned(locked, selection, when, &mut edit));
        let (planned, transaction) = planned.await?;
        self.write(transaction, planned, author).await
    }

    /// What `edit` makes of the selected objects, as the transaction reads them, without a mistake.
    async fn planned(
        self,
        mut transaction: Transaction,
        selection: Selection<'_>,
        when: When,
        edit: &mut impl FnMut(&Loaded) -> Result<(Declared, Vec<Change>), Error>,
    ) -> Result<(Planned, Transaction), Error> {
        let basis = Basis::read(&mut transaction, selection).await?;
        let before = self.loaded(&mut transaction, selection).await?;
        let (wanted, changes) = edit(&before)?;
        let (mut looks_at_hosts, mut most_secrets) = (false, BTreeMap::new());
        if !changes.is_empty() {
            let after = edited(before.declared(), &wanted, &changes)?;
            let (changed, mut others) = apart(after, &changes);
            others.tenants += before.others;
            others.secrets = slots::counts(&mut transaction, selection).await?;
            // Another replica may just have given a host to another tenant.
            if let Selection::Tenant(tenant) = selection
                && changes.iter().any(takes_hosts(&changed))
            {
                rows::hosts(&mut transaction, tenant, &mut others).await?;
                looks_at_hosts = true;
            }
            let judged = self.judged_state(changed, others, when).await?;
            most_secrets = judged.most_secrets();
        }
        let planned = Planned {
            before,
            basis,
            most_secrets,
            looks_at_hosts,
            wanted,
            changes,
        };
        Ok((planned, transaction))
    }

    /// Writes a change with its audit records, in a transaction in which it is judged by what is there.
    async fn write(
        self,
        mut transaction: Transaction,
        planned: Planned,
        author: &Author,
    ) -> Result<(Loaded, Vec<Change>), Error> {
        let Planned {
            before: mut state,
            wanted,
            changes,
            ..
        } = planned;
        if changes.is_empty() {
            return Ok((state, changes));
        }
        let keys = self.vault.current_keys(&mut transaction).await?;
        let sealer = Sealer {
            keys: &keys,
            random: &self.vault.random,
        };
        let next = transaction.run(NEXT_VERSION, Vec::new()).await?;
        state.version = version_in(&next)?;
        let is_new =
            |one: &Change| one.name.kind() == Kind::Tenant && one.what == ChangeKind::Added;
        if changes.iter().any(is_new) {
            transaction.run_in_postgres(audit::CREATION).await?;
        }
        let now_ms = self.pool.now_ms();
        let mut written = Written::of(state);
        give_up_hashes(&mut transaction, &written, &changes).await?;
        for change in &changes {
            write(
                &mut transaction,
                &sealer,
                &mut written,
                change,
                &wanted,
                now_ms,
            )
            .await?;
        }
        let state = written.loaded();
        let records: Vec<Record> = changes
            .iter()
            .map(|change| record(change, author))
            .collect();
        audit::append(&mut transaction, now_ms, &records).await?;
        transaction.commit().await?;
        Ok((state, changes))
    }
}

impl Planned {
    /// Whether the judgement holds of what is there now. Secrets are set beside changes, some each second: their number
    /// is compared with the quota, and is no reason to judge all objects again.
    async fn holds(
        &self,
        transaction: &mut Transaction,
        selection: Selection<'_>,
    ) -> Result<bool, Error> {
        if Basis::read(transaction, selection).await? != self.basis {
            return Ok(false);
        }
        let secrets = slots::counts(transaction, selection).await?;
        let is_within = |(tenant, count): (&String, &u64)| {
            let most = self.most_secrets.get(tenant);
            most.is_none_or(|most| count <= most)
        };
        Ok(secrets.iter().all(is_within))
    }
}

impl Basis {
    /// What changes of the selected objects are judged by but for secrets, from indexes alone.
    async fn read(transaction: &mut Transaction, selection: Selection<'_>) -> Result<Self, Error> {
        Ok(Self {
            mark: rows::mark(transaction, selection).await?,
            others: rows::others(transaction, selection).await?.min(SEVERAL),
        })
    }
}

/// Whether these objects are read and checked in so short a time that other writers may wait for it.
fn is_small(state: &Loaded) -> bool {
    let mut objects = state.objects.iter();
    let less = |left: u64, stored: &Stored| left.checked_sub(stored.object.bytes());
    objects.len() <= FEW && objects.try_fold(FEW_BYTES, less).is_some()
}

/// How often a change is checked beside other writers of its tenant, before an operator's is while they wait. That of a
/// whole manifest is once, because any writer is in its way.
const UNLOCKED: u32 = 3;
/// The most objects of a tenant that an administrator of it may have checked while other writers wait.
const FEW: usize = 100;
/// What these count at most, together.
const FEW_BYTES: u64 = 256 << 10;
/// The number of other tenants from which on more make no difference: only one tenant needs no separation from others,
/// and one may be removed.
const SEVERAL: usize = 2;

const NEXT_VERSION: &str = "
    UPDATE changes
       SET version = version + 1
    RETURNING version";
