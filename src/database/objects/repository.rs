//! The repository of declared objects: reads, checks and changes.
//!
//! Every change passes [`Objects::apply`], [`Objects::put`] or [`Objects::delete`]: the tenants that
//! change are checked as a whole and written with their audit records, in one transaction. Not here:
//! the statements (`rows`), and the snapshot that requests read (`snapshot`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::task::{JoinError, spawn_blocking};

use super::{
    changes::{apart, edited},
    rows::{self, Loaded, Marks, RowError, Selection, Stored, declared},
    secrets::hashed,
    slots,
};
use crate::{
    config::{Mistake, Wrong},
    database::{
        pool::{Author, Error, Pool, Row, Transaction},
        vault::Vault,
    },
    declare::{
        Catalog, Change, ChangeKind, Declared, Kind, Object, ObjectName, PLACE, Prune, When,
        difference::{difference, with_members},
    },
    manifest::{Manifest, Others},
};

/// Finds every mistake in a state.
pub(crate) type Judge = Arc<dyn Fn(&Manifest, When) -> Vec<Mistake> + Send + Sync>;

/// The version of an object that a change expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Any version, or no object (no condition).
    Any,
    /// No object (`If-None-Match: *`).
    Absent,
    /// Any version of an existing object (`If-Match: *`).
    Present,
    /// One of these versions as they are shown (`If-Match` with their `ETag`s).
    Versions(Vec<i64>),
}

/// A written object.
#[derive(Debug)]
pub(crate) struct Put {
    /// The object as it is stored now.
    pub(crate) stored: Stored,
    /// The change of it; none if it is as it was.
    pub(crate) change: Option<ChangeKind>,
}

/// A page of a list of objects.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// The objects, by name.
    pub(crate) objects: Vec<Stored>,
    /// What they count at most.
    pub(crate) bytes: u64,
    /// There are others behind them.
    pub(crate) is_more: bool,
}

/// What has changed in a declared state since another.
#[derive(Debug)]
pub(crate) struct Newer {
    /// The changed tenants with their objects, and the API keys of operators.
    pub(crate) loaded: Loaded,
    /// The marks of all tenants.
    pub(crate) marks: Marks,
}

/// Stored tenants, each judged alone.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    /// Those that can be served here, but for the servers in `walled`.
    pub(crate) catalog: Catalog,
    /// Those that cannot, by name.
    pub(crate) refused: Vec<String>,
    /// One can be read, and is refused for settings or for what this machine has, which its administrators did not choose.
    pub(crate) is_judged: bool,
    /// The servers in `catalog` whose children cannot be started here as they are declared, each with its tenant.
    pub(crate) walled: Vec<(String, String)>,
}

/// What a manifest has changed tenant by tenant.
#[derive(Debug, Default)]
pub(crate) struct AppliedApart {
    /// The changes.
    pub(crate) changes: Vec<Change>,
    /// Every mistake in the tenants that stay as they were.
    pub(crate) mistakes: Vec<Mistake>,
    /// Those tenants, and those that are left after a `failure`.
    pub(crate) stayed: BTreeSet<String>,
    /// The database went away on the way.
    pub(crate) failure: Option<Error>,
}

/// The declared objects of a database.
#[derive(Clone, Copy)]
pub(crate) struct Objects<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) vault: &'a Vault,
    pub(crate) judge: &'a Judge,
    /// It is for operators and their manifests, whose changes are made however often others change the same.
    pub(crate) is_operator: bool,
}

impl Objects<'_> {
    /// Reads the whole declared state, with the number of the last change.
    ///
    /// # Errors
    ///
    /// `Unavailable`, `Invalid` (a master key is missing), `Bug` (a row was written by another
    /// program).
    pub(crate) async fn load(self) -> Result<Loaded, Error> {
        let mut transaction = self.pool.snapshot().await?;
        self.loaded(&mut transaction, Selection::All).await
    }

    /// Reads the tenants that are not as in `known`, and the API keys of operators. The change of a
    /// tenant with few objects does not take the time of reading all of another's.
    ///
    /// # Errors
    ///
    /// Those of [`Self::load`].
    pub(crate) async fn newer(self, known: &Marks) -> Result<Newer, Error> {
        let mut transaction = self.pool.snapshot().await?;
        let marks = rows::marks(&mut transaction).await?;
        let changed = marks
            .iter()
            .filter(|(tenant, mark)| known.get(*tenant) != Some(mark));
        let changed: Vec<&str> = changed.map(|(tenant, _)| tenant.as_str()).collect();
        if changed.len() > FEW {
            let loaded = self.loaded(&mut transaction, Selection::All).await?;
            return Ok(Newer { loaded, marks });
        }
        let mut loaded = self.loaded(&mut transaction, Selection::Operators).await?;
        loaded.others = marks.len() - changed.len();
        for tenant in changed {
            let selection = Selection::Tenant(tenant);
            let objects = self.selected(&mut transaction, selection).await?;
            loaded.objects.extend(objects);
        }
        Ok(Newer { loaded, marks })
    }

    /// The number of the last change, by one cheap query.
    pub(crate) async fn version(self) -> Result<i64, Error> {
        let rows = self.pool.read(VERSION, Vec::new()).await?;
        version_in(&rows)
    }

    /// The state `loaded` as a manifest, if it can be served here.
    ///
    /// # Errors
    ///
    /// `Invalid` with every mistake.
    pub(crate) async fn judged(self, loaded: &Loaded, when: When) -> Result<Manifest, Error> {
        let (declared, others) = (loaded.declared(), of_number(loaded.others));
        self.judged_state(declared, others, when).await
    }

    /// The tenants of the state `loaded`, each judged alone.
    ///
    /// # Errors
    ///
    /// `Bug`.
    pub(crate) async fn judged_apart(self, loaded: &Loaded) -> Result<Apart, Error> {
        let mut apart: BTreeMap<String, Declared> = BTreeMap::new();
        for (name, object) in loaded.declared().0 {
            if let Some(owner) = name.owner() {
                let tenant = apart.entry(owner.to_owned()).or_default();
                tenant.0.insert(name, object);
            }
        }
        let others = loaded.others + apart.len().saturating_sub(1);
        let mut judged = Apart::default();
        for (tenant, declared) in apart {
            let others = of_number(others);
            let (manifest, mistakes) = match self.weighed(declared, others, When::Serving).await {
                Ok(weighed) => weighed,
                Err(Error::Invalid(_)) => {
                    judged.refused.push(tenant);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            judged.is_judged |= !mistakes.is_empty();
            match servers_of(&tenant, &mistakes) {
                Some(servers) => {
                    judged.catalog.tenants.extend(manifest.catalog.tenants);
                    let named = servers.into_iter();
                    let named = named.map(|server| (tenant.clone(), server));
                    judged.walled.extend(named);
                }
                None => judged.refused.push(tenant),
            }
        }
        Ok(judged)
    }

    /// Changes the stored state to that of a manifest, in one transaction, and returns the changes;
    /// writes nothing if there are none.
    ///
    /// # Errors
    ///
    /// `Invalid` with every mistake in the resulting state; `Unavailable`.
    pub(crate) async fn apply(
        self,
        wanted: &Declared,
        prune: Prune,
        author: &Author,
    ) -> Result<Vec<Change>, Error> {
        self.apply_to(Selection::All, wanted, prune, author).await
    }

    /// As [`Self::apply`], or, if the manifest is right by itself and does not fit to what is stored, tenant by tenant:
    /// what the administrators of one have stored stops no other. A manifest that is tried again changes those tenants
    /// alone that stayed as they were: what administrators of the others have changed since is theirs.
    ///
    /// # Errors
    ///
    /// Those of [`Self::apply`]: `Invalid` if the manifest is wrong whatever is stored. One after the first change is in
    /// the result.
    pub(crate) async fn apply_apart(
        self,
        wanted: &Declared,
        prune: Prune,
        (author, stayed): (&Author, Option<&BTreeSet<String>>),
    ) -> Result<AppliedApart, Error> {
        let mut done = AppliedApart::default();
        let tenants = match stayed {
            Some(stayed) => stayed.clone(),
            None => match self.apply(wanted, prune, author).await {
                Err(Error::Invalid(found)) => {
                    self.check_alone(wanted, found).await?;
                    self.differing(wanted, prune).await?
                }
                // Of a bug one tenant may be the reason: its rows were written by another program, for instance.
                Err(Error::Bug(_)) => self.differing(wanted, prune).await?,
                applied => {
                    done.changes = applied?;
                    return Ok(done);
                }
            },
        };
        let mut left = tenants.iter();
        while let Some(tenant) = left.next() {
            let own = wanted.0.iter();
            let own = own.filter(|(name, _)| name.owner() == Some(tenant.as_str()));
            let own = Declared(own.map(|(name, one)| (name.clone(), one.clone())).collect());
            let part = Selection::Tenant(tenant);
            match self.apply_to(part, &own, prune, author).await {
                Ok(changes) => {
                    done.changes.extend(changes);
                    continue;
                }
                Err(Error::Invalid(found)) => done.mistakes.extend(found),
                Err(failure @ Error::Unavailable(_)) => {
                    done.stayed.extend(left.by_ref().cloned());
                    done.failure = Some(failure);
                }
                Err(failure) => done.mistakes.push(failed(tenant, &failure)),
            }
            done.stayed.insert(tenant.clone());
        }
        Ok(done)
    }

    /// The objects of a kind after `after`, ordered by name. `tenant` owns them; none selects
    /// operators' API keys.
    pub(crate) async fn list(
        self,
        kind: Kind,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Stored>, Error> {
        let page = Selection::Page {
            kind,
            tenant,
            after: after.unwrap_or_default(),
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
        };
        self.stored(page).await
    }

    /// A page of the objects of [`Self::list`]: at most `limit` of them, and at most [`PAGE_BYTES`] or one. They are read in
    /// parts, so that no more is in memory than a page and a part.
    pub(crate) async fn page(
        self,
        kind: Kind,
        tenant: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listed, Error> {
        let mut transaction = self.pool.snapshot().await?;
        let mut page = Listed::default();
        loop {
            // One object more than the limit shows that there is another page.
            let part = PART.min(limit + 1 - page.objects.len());
            let last = page.objects.last();
            let last = last.map(|last| last.name.name().to_owned());
            let selection = Selection::Page {
                kind,
                tenant,
                after: last.as_deref().or(after).unwrap_or_default(),
                limit: i64::try_from(part).unwrap_or(i64::MAX),
            };
            let found = self.selected(&mut transaction, selection).await?;
            let is_end = found.len() < part;
            for stored in found {
                page.bytes += stored.object.bytes();
                let is_full = page.bytes > PAGE_BYTES && !page.objects.is_empty();
                page.is_more = is_full || page.objects.len() == limit;
                if page.is_more {
                    return Ok(page);
                }
                page.objects.push(stored);
            }
            if is_end {
                return Ok(page);
            }
        }
    }

    /// One object.
    pub(crate) async fn get(self, name: &ObjectName) -> Result<Option<Stored>, Error> {
        Ok(self.stored(Selection::One(name)).await?.pop())
    }

    /// Writes one object and its audit record; nothing if the object is unchanged. A secret that is
    /// null stays as it is stored.
    ///
    /// # Errors
    ///
    /// Those of [`Self::edit`]; `Invalid` for a tenant with lists of other objects.
    pub(crate) async fn put(
        self,
        name: &ObjectName,
        mut object: Object,
        expected: Expected,
        author: &Author,
    ) -> Result<Put, Error> {
        let lists = list_mistakes(name, &object);
        if !lists.is_empty() {
            return Err(Error::Invalid(lists));
        }
        object.keep_password();
        let wanted = Declared(BTreeMap::from([(name.clone(), object)]));
        let wanted = self.hashed(wanted, Selection::One(name)).await?;
        let keep = |kept: Option<&Stored>| {
            let hashed = wanted.0.get(name).cloned();
            let mut object = hashed.ok_or_else(|| Error::Bug(format!("{name} is lost")))?;
            let kept = kept.map(|stored| &stored.object);
            object.keep_secrets(name, kept).map_err(Error::Invalid)?;
            Ok(object)
        };
        self.edit(name, expected, author, keep).await
    }

    /// Writes what `change` makes of the stored object, if that is still there as it was, or else what it makes of the
    /// newer one: a change that expects no version fails for no other writer.
    ///
    /// # Errors
    ///
    /// `Conflict` if the object is not as `expected`, or the hash of an API key exists already;
    /// `NotFound` without its tenant; `Invalid` with every mistake in the resulting state;
    /// `Overtaken` if others changed the same large tenant all the time; `Unavailable`; those of `change`.
    pub(crate) async fn edit(
        self,
        name: &ObjectName,
        expected: Expected,
        author: &Author,
        mut change: impl FnMut(Option<&Stored>) -> Result<Object, Error>,
    ) -> Result<Put, Error> {
        let edit = |before: &Loaded| {
            let stored = before.objects.iter().find(|stored| stored.name == *name);
            check_expected(stored, &expected)?;
            let wanted = Declared(BTreeMap::from([(name.clone(), change(stored)?)]));
            let changes = difference(&before.declared(), &wanted, Prune::Keep);
            Ok((wanted, changes))
        };
        let around = Selection::around(name);
        let (after, changes) = self.change(around, When::Changing, author, edit).await?;
        let mut objects = after.objects.into_iter();
        let found = objects.find(|stored| stored.name == *name);
        let bug = || Error::Bug(format!("{name} was written and is not there"));
        Ok(Put {
            stored: found.ok_or_else(bug)?,
            change: changes.into_iter().next().map(|one| one.what),
        })
    }

    /// Removes one object and all objects that belong to it, and writes the audit records. Returns the number of the
    /// change.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Conflict` if the object is not as `expected`, `LastKey`, `Invalid` if the
    /// remaining state cannot be served, `Overtaken` as of [`Self::edit`], `Unavailable`.
    pub(crate) async fn delete(
        self,
        name: &ObjectName,
        expected: Expected,
        author: &Author,
    ) -> Result<i64, Error> {
        let edit = |before: &Loaded| {
            let stored = before.declared();
            if !stored.0.contains_key(name) {
                return Err(Error::NotFound);
            }
            let found = before.objects.iter().find(|stored| stored.name == *name);
            check_expected(found, &expected)?;
            check_last_key(before, name, self.pool.now_ms())?;
            let gone = with_members(&stored, name).into_iter();
            let changes = gone.map(|name| Change {
                name,
                what: ChangeKind::Removed,
            });
            Ok((Declared::default(), changes.collect()))
        };
        let around = Selection::around(name);
        let changed = self.change(around, When::Changing, author, edit);
        changed.await.map(|(after, _)| after.version)
    }

    /// The changes that [`Self::apply`] would make.
    ///
    /// # Errors
    ///
    /// Those of [`Self::apply`].
    pub(crate) async fn plan(self, wanted: &Declared, prune: Prune) -> Result<Vec<Change>, Error> {
        let wanted = self.hashed(wanted.clone(), Selection::All).await?;
        let before = self.load().await?.declared();
        let mut transaction = self.pool.snapshot().await?;
        let secrets = slots::counts(&mut transaction, Selection::All).await?;
        drop(transaction);
        let changes = difference(&before, &wanted, prune);
        let after = edited(before, &wanted, &changes)?;
        let (changed, mut others) = apart(after, &changes);
        others.secrets = secrets;
        self.judged_state(changed, others, When::Applying).await?;
        Ok(changes)
    }
}

/// The steps of every change.
impl Objects<'_> {
    /// The tenants that differ from a manifest. Where one cannot be read all may: those that are declared, and with
    /// [`Prune::Remove`] those that are stored.
    async fn differing(self, wanted: &Declared, prune: Prune) -> Result<BTreeSet<String>, Error> {
        let differing = async {
            let hashed = self.hashed(wanted.clone(), Selection::All).await?;
            let differing = difference(&self.load().await?.declared(), &hashed, prune);
            let tenants = differing.iter().filter_map(|change| change.name.owner());
            Ok(tenants.map(str::to_owned).collect())
        };
        match differing.await {
            Err(Error::Bug(_) | Error::Invalid(_)) => {}
            differing => return differing,
        }
        // Nobody has looked at the manifest yet. The server of `[default]` may be in the database.
        let when = match prune {
            Prune::Keep => When::Changing,
            Prune::Remove => When::Applying,
        };
        let alone = self.judged_state(wanted.clone(), Others::default(), when);
        drop(alone.await?);
        let owners = wanted.0.keys().filter_map(ObjectName::owner);
        let mut named: BTreeSet<String> = owners.map(str::to_owned).collect();
        if prune == Prune::Remove {
            let mut transaction = self.pool.snapshot().await?;
            let stored = rows::marks(&mut transaction).await?.into_keys();
            named.extend(stored.filter(|tenant| !tenant.is_empty()));
        }
        Ok(named)
    }

    /// Changes a part of the stored state, all of it or a tenant, to that of a manifest.
    async fn apply_to(
        self,
        part: Selection<'_>,
        wanted: &Declared,
        prune: Prune,
        author: &Author,
    ) -> Result<Vec<Change>, Error> {
        let when = match part {
            Selection::All => When::Applying,
            _ => When::Changing,
        };
        let mut tries = TRIES;
        loop {
            let seen = self.version().await?;
            let hashed = self.hashed(wanted.clone(), part).await?;
            tries -= 1;
            let is_early = tries > 0 && hashed != *wanted;
            let edit = |before: &Loaded| {
                // Replicas that start with one manifest would each store a hash of their own for the
                // same password, and end the log-ins of the other's.
                if is_early && before.version != seen {
                    return Err(Error::Conflict);
                }
                let changes = difference(&before.declared(), &hashed, prune);
                Ok((hashed.clone(), changes))
            };
            match self.change(part, when, author, edit).await {
                Err(Error::Conflict) if is_early => {}
                changed => return changed.map(|(_, changes)| changes),
            }
        }
    }

    /// Fails with the mistakes that were `found` in the state after a manifest, if it has one of them whatever is
    /// stored.
    async fn check_alone(self, wanted: &Declared, found: Vec<Mistake>) -> Result<(), Error> {
        let alone = self.judged_state(wanted.clone(), Others::default(), When::Applying);
        let own = match alone.await {
            Ok(_) => return Ok(()),
            Err(Error::Invalid(own)) => own,
            Err(failure) => return Err(failure),
        };
        // Not the texts: they count what is stored.
        let is_own = |mistake: &Mistake| own.iter().any(|own| own.key == mistake.key);
        if found.iter().any(is_own) {
            Err(Error::Invalid(found))
        } else {
            Ok(())
        }
    }

    /// Hashes the passwords of `wanted`; those that are stored, among the selected objects, stay.
    async fn hashed(self, wanted: Declared, stored: Selection<'_>) -> Result<Declared, Error> {
        let stored = Box::pin(async move { Ok(declared(&self.stored(stored).await?)) });
        Box::pin(hashed(&self.vault.random, wanted, stored)).await
    }

    /// The selected objects, as of one moment.
    async fn stored(self, selection: Selection<'_>) -> Result<Vec<Stored>, Error> {
        let mut transaction = self.pool.snapshot().await?;
        self.selected(&mut transaction, selection).await
    }

    /// The selected objects and the number of the last change, within the transaction.
    pub(super) async fn loaded(
        self,
        transaction: &mut Transaction,
        selection: Selection<'_>,
    ) -> Result<Loaded, Error> {
        Ok(Loaded {
            version: version_in(&transaction.run(VERSION, Vec::new()).await?)?,
            others: rows::others(transaction, selection).await?,
            objects: self.selected(transaction, selection).await?,
        })
    }

    async fn selected(
        self,
        transaction: &mut Transaction,
        selection: Selection<'_>,
    ) -> Result<Vec<Stored>, Error> {
        let read = match rows::read(transaction, &self.vault.keys(), selection).await {
            // After `lockgate key rotate` the file contains the new key.
            Err(RowError::UnknownKey) => {
                let keys = self.vault.reload()?;
                rows::read(transaction, &keys, selection).await
            }
            other => other,
        };
        Ok(read?)
    }

    /// The state as a manifest, if it has no mistake.
    pub(super) async fn judged_state(
        self,
        declared: Declared,
        others: Others,
        when: When,
    ) -> Result<Manifest, Error> {
        let (manifest, mistakes) = self.weighed(declared, others, when).await?;
        if mistakes.is_empty() {
            Ok(manifest)
        } else {
            Err(Error::Invalid(mistakes))
        }
    }

    /// The state as a manifest, if it can be read, with its other mistakes. It is judged off the runtime's workers,
    /// because a state can have thousands of objects.
    async fn weighed(
        self,
        declared: Declared,
        others: Others,
        when: When,
    ) -> Result<(Manifest, Vec<Mistake>), Error> {
        let judge = Arc::clone(self.judge);
        let judged = spawn_blocking(move || {
            let mut manifest = declared.manifest().map_err(Error::Invalid)?;
            manifest.others = others;
            let mistakes = judge(&manifest, when);
            Ok((manifest, mistakes))
        });
        let ended = |error: JoinError| Error::Bug(format!("a state is not judged: {error}"));
        judged.await.map_err(ended)?
    }
}

/// The servers of a tenant that these mistakes are of; none if one is of the tenant itself, or of all.
fn servers_of(tenant: &str, mistakes: &[Mistake]) -> Option<BTreeSet<String>> {
    let list = format!("tenants.{tenant}.servers.");
    let server = |mistake: &Mistake| {
        let (server, _) = mistake.key.strip_prefix(&list)?.split_once('.')?;
        Some(server.to_owned())
    };
    mistakes.iter().map(server).collect()
}

/// Other tenants of which only the number is known.
fn of_number(tenants: usize) -> Others {
    Others {
        tenants,
        ..Others::default()
    }
}

/// What the objects of a page count at most, together.
const PAGE_BYTES: u64 = 1 << 20;
/// How many objects of a page are read at once: some have 64 KiB, which take a worker as long as a page may.
const PART: usize = 16;
/// How many tenants are read one by one; of more, all are read at once, by fewer statements.
const FEW: usize = 16;
/// How often the passwords of a manifest are hashed at most while others write: each time takes long.
const TRIES: u32 = 4;

/// The mistake of a tenant that cannot be changed: its rows were written by another program, for instance.
fn failed(tenant: &str, failure: &Error) -> Mistake {
    let what = format!("cannot be changed: {failure}");
    let remedy = "see what the log says about the database, or restore a copy of it";
    Wrong::new(what, remedy).at(PLACE, &format!("tenants.{tenant}"))
}

/// The lists in the document of a tenant that are of other objects. In the tenant's row nothing would seal their
/// secrets or hash their passwords, and the administrators of the tenant would see them without a way to remove them.
fn list_mistakes(name: &ObjectName, object: &Object) -> Vec<Mistake> {
    let lists = Kind::ALL[1..].iter().map(|kind| kind.plural());
    let lists = lists.filter(|list| name.kind() == Kind::Tenant && object.spec.contains_key(*list));
    let mistake = |list: &str| {
        let remedy = "declare each as an object of its own, or apply a manifest";
        let wrong = Wrong::new("is no part of the tenant's own document", remedy);
        wrong.at(PLACE, &format!("{}.{list}", name.key()))
    };
    lists.map(mistake).collect()
}

/// Checks the precondition of a change.
fn check_expected(stored: Option<&Stored>, expected: &Expected) -> Result<(), Error> {
    let is_met = match expected {
        Expected::Any => true,
        Expected::Absent => stored.is_none(),
        Expected::Present => stored.is_some(),
        Expected::Versions(versions) => {
            stored.is_some_and(|stored| versions.contains(&stored.shown_version()))
        }
    };
    if is_met { Ok(()) } else { Err(Error::Conflict) }
}

/// Checks that a valid operator key other than `gone` remains.
fn check_last_key(state: &Loaded, gone: &ObjectName, now_ms: i64) -> Result<(), Error> {
    if *gone != ObjectName::operator_key(gone.name()) {
        return Ok(());
    }
    let now = u64::try_from(now_ms / 1000).unwrap_or(0);
    let is_other = |stored: &&Stored| {
        let name = &stored.name;
        name != gone && *name == ObjectName::operator_key(name.name())
    };
    let holds = |stored: &Stored| stored.operator_key().is_ok_and(|(_, key)| key.holds(now));
    let mut others = state.objects.iter().filter(is_other);
    others.any(holds).then_some(()).ok_or(Error::LastKey)
}

/// The number of changes in the result of [`VERSION`].
pub(super) fn version_in(rows: &[Row]) -> Result<i64, Error> {
    let row = rows.first();
    let row = row.ok_or_else(|| Error::Bug("no number of changes".to_owned()))?;
    Ok(row.get("version")?)
}

/// The number of the last change.
const VERSION: &str = "
    SELECT version
      FROM changes";
