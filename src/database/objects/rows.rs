//! Objects as rows: the statements that read and write them, with sealed secrets.
//!
//! Not here: the checks of a change (`changes`).

use std::collections::HashMap;

use serde_json::Value as Json;
use uuid::Uuid;

use crate::config::{Mistake, Wrong};
use crate::{
    database::{
        pool::{Error, Pool, Row, Sql, SqlError, Transaction, Value},
        vault::{Keyring, NotOpened, Place, Sealer},
    },
    declare::{Declared, Document, Kind, Object, ObjectName, OperatorKey, PASSWORD, SecretMembers},
    manifest::Others,
};

/// A stored object.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The id of the row; never reused for another object.
    pub(crate) id: Uuid,
    /// The name of the object.
    pub(crate) name: ObjectName,
    /// The number of the change that wrote it. It counts the changes of all tenants, and is shown to none.
    pub(crate) version: i64,
    /// The declaration.
    pub(crate) object: Object,
    /// Time of creation, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// Time of the last change; later than any before.
    pub(crate) updated_ms: i64,
}

impl Stored {
    /// The version that administrators see: an `ETag`. It tells a tenant nothing of others.
    pub(crate) fn shown_version(&self) -> i64 {
        self.updated_ms
    }

    /// The object as an operator's API key, with its hash.
    ///
    /// # Errors
    ///
    /// Every mistake in the declaration.
    pub(crate) fn operator_key(&self) -> Result<([u8; 32], OperatorKey), Vec<Mistake>> {
        OperatorKey::read(self.name.name(), &self.object.tree())
    }
}

/// A selection of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Selection<'a> {
    /// All of them.
    All,
    /// A tenant with its objects.
    Tenant(&'a str),
    /// API keys of operators.
    Operators,
    /// One object.
    One(&'a ObjectName),
    /// Objects of one kind and owner behind a name, in the order of names.
    Page {
        kind: Kind,
        /// None for tenants, and for API keys of operators.
        tenant: Option<&'a str>,
        after: &'a str,
        limit: i64,
    },
}

impl<'a> Selection<'a> {
    /// All that a change of the object `name` may concern: tenants share nothing.
    pub(super) fn around(name: &'a ObjectName) -> Self {
        name.owner().map_or(Self::Operators, Self::Tenant)
    }
}

/// Declared objects at one moment.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The number of the last change.
    pub(crate) version: i64,
    /// The number of tenants that were not selected.
    pub(crate) others: usize,
    /// Every selected object with its own version.
    pub(crate) objects: Vec<Stored>,
}

impl Loaded {
    /// The objects by name.
    pub(crate) fn declared(&self) -> Declared {
        declared(&self.objects)
    }

    /// The selected tenants, each with the id of its row.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (&str, Uuid)> {
        let tenants = self.objects.iter();
        let tenants = tenants.filter(|stored| stored.name.kind() == Kind::Tenant);
        tenants.map(|stored| (stored.name.name(), stored.id))
    }
}

/// Objects by name.
pub(super) fn declared(objects: &[Stored]) -> Declared {
    let named = objects.iter();
    let named = named.map(|stored| (stored.name.clone(), stored.object.clone()));
    Declared(named.collect())
}

/// The state of a tenant in brief: two that are equal are of the same objects, because each change
/// has a higher number than all before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The number of objects.
    objects: i64,
    /// The number of the last change of one that is left.
    version: i64,
}

impl Mark {
    /// The number of objects that belong to the tenant.
    pub(crate) fn members(&self) -> i64 {
        self.objects - 1
    }
}

/// The mark of every tenant.
pub(crate) type Marks = HashMap<String, Mark>;

/// Reads the mark of every tenant, from indexes alone.
pub(super) async fn marks(transaction: &mut Transaction) -> Result<Marks, SqlError> {
    let mut marks = Marks::new();
    for row in transaction.run(MARKS, Vec::new()).await? {
        let mark = marks.entry(row.get("tenant")?).or_default();
        mark.objects += row.get::<i64>("objects")?;
        mark.version = mark.version.max(row.get("version")?);
    }
    Ok(marks)
}

/// Reads the mark of a selected tenant, from indexes alone. Of other selections it is that of all changes.
pub(super) async fn mark(
    transaction: &mut Transaction,
    selection: Selection<'_>,
) -> Result<Mark, SqlError> {
    let (sql, values) = match selection {
        Selection::Tenant(tenant) => (MARK, vec![tenant.into()]),
        _ => (CHANGES, Vec::new()),
    };
    let mut mark = Mark::default();
    for row in transaction.run(sql, values).await? {
        let (objects, version): (i64, i64) = (row.get("objects")?, row.get("version")?);
        mark.objects += objects;
        mark.version = mark.version.max(version);
    }
    Ok(mark)
}

/// The number of tenants other than those of `selection`.
pub(super) async fn others(
    transaction: &mut Transaction,
    selection: Selection<'_>,
) -> Result<usize, SqlError> {
    let Selection::Tenant(tenant) = selection else {
        return Ok(0);
    };
    let rows = transaction.run(OTHERS, vec![tenant.into()]).await?;
    let count = rows.first().map(|row| row.get::<i64>("tenants"));
    Ok(usize::try_from(count.transpose()?.unwrap_or(0)).unwrap_or(0))
}

/// Adds the hosts of every tenant but `tenant` to `others`.
pub(super) async fn hosts(
    transaction: &mut Transaction,
    tenant: &str,
    others: &mut Others,
) -> Result<(), RowError> {
    for row in transaction.run(HOSTS, vec![tenant.into()]).await? {
        let (name, spec): (String, String) = (row.get("name")?, row.get("spec")?);
        let broken = || RowError::Broken(format!("the document of tenant {name}"));
        let spec: Document = serde_json::from_str(&spec).map_err(|_| broken())?;
        others.add_hosts(&name, &spec);
    }
    Ok(())
}

/// The reason why a row could not be read or written.
#[derive(Debug)]
pub(crate) enum RowError {
    /// The error of the database.
    Sql(SqlError),
    /// The row is sealed under an unknown master key.
    UnknownKey,
    /// Another program wrote the row.
    Broken(String),
}

impl From<SqlError> for RowError {
    fn from(error: SqlError) -> Self {
        Self::Sql(error)
    }
}

impl From<RowError> for Error {
    fn from(error: RowError) -> Self {
        match error {
            RowError::Sql(error) => error.into(),
            RowError::UnknownKey => {
                let what = "is not the one that sealed what is stored";
                Self::from_key(Wrong::new(what, "give that one too, behind the new one"))
            }
            RowError::Broken(what) => Self::Bug(what),
        }
    }
}

/// Reads objects, sorted by name.
pub(super) async fn read(
    transaction: &mut Transaction,
    keys: &Keyring,
    selection: Selection<'_>,
) -> Result<Vec<Stored>, RowError> {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        let Some((text, values)) = statement(kind, selection) else {
            continue;
        };
        let sql = Sql::on(kind.plural(), text).owned_by(owner(kind));
        for row in transaction.run(sql, values).await? {
            found.push(stored(kind, &row, keys)?);
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// The statement that reads the selected objects of a kind; none if there are none.
fn statement(kind: Kind, selection: Selection<'_>) -> Option<(&'static str, Vec<Value>)> {
    match selection {
        Selection::All => Some((ALL, Vec::new())),
        Selection::Tenant(tenant) => Some((OF_OWNER, vec![tenant.into()])),
        Selection::Operators if kind == Kind::ApiKey => Some((OF_OWNER, vec!["".into()])),
        Selection::One(name) if kind == name.kind() => {
            let owner = name.owner().unwrap_or_default();
            Some((ONE, vec![owner.into(), name.name().into()]))
        }
        Selection::Page {
            kind: wanted,
            tenant,
            after,
            limit,
        } if kind == wanted => {
            let page = vec![after.into(), limit.into()];
            if kind == Kind::Tenant {
                return Some((PAGE_OF_TENANTS, page));
            }
            let owner = tenant.unwrap_or_default().into();
            Some((PAGE, [owner].into_iter().chain(page).collect()))
        }
        Selection::Operators | Selection::One(_) | Selection::Page { .. } => None,
    }
}

/// The tenant in a row of this kind; empty for an operator's key.
fn owner(kind: Kind) -> &'static str {
    match kind {
        Kind::Tenant => "name",
        // As in its indexes.
        Kind::ApiKey => "COALESCE(tenant, '')",
        Kind::Server | Kind::User | Kind::Client | Kind::Provider | Kind::Upstream => "tenant",
    }
}

/// Writes a new object.
pub(crate) async fn insert(
    transaction: &mut Transaction,
    sealer: &Sealer<'_>,
    new: &Stored,
) -> Result<(), RowError> {
    let kind = new.name.kind();
    let mut values: Vec<Value> = vec![new.id.into()];
    if kind != Kind::Tenant {
        values.push(Value::Text(new.name.owner().map(str::to_owned)));
    }
    values.push(new.name.name().into());
    values.extend([
        new.version.into(),
        spec(new),
        sealed(sealer, kind, new)?.into(),
        new.created_ms.into(),
        new.updated_ms.into(),
    ]);
    let sql = match kind {
        Kind::Tenant => Sql::from(INSERT_TENANT),
        Kind::ApiKey => {
            values.push(hash(new)?);
            Sql::from(INSERT_API_KEY)
        }
        Kind::Server | Kind::User | Kind::Client | Kind::Provider | Kind::Upstream => {
            Sql::on(kind.plural(), INSERT)
        }
    };
    transaction.run(sql, values).await?;
    Ok(())
}

/// Replaces the object in the row with its id.
pub(crate) async fn update(
    transaction: &mut Transaction,
    sealer: &Sealer<'_>,
    new: &Stored,
) -> Result<(), RowError> {
    let kind = new.name.kind();
    let mut values = vec![
        new.id.into(),
        new.version.into(),
        spec(new),
        sealed(sealer, kind, new)?.into(),
        new.updated_ms.into(),
    ];
    let sql = if kind == Kind::ApiKey {
        values.push(hash(new)?);
        Sql::from(UPDATE_API_KEY)
    } else {
        Sql::on(kind.plural(), UPDATE)
    };
    transaction.run(sql, values).await?;
    Ok(())
}

/// Takes its hash from an API key, which is about to have another one: its id stands for none meanwhile.
pub(super) async fn give_up_hash(
    transaction: &mut Transaction,
    key: &Stored,
) -> Result<(), RowError> {
    let none = key.id.simple().to_string();
    let values = vec![key.id.into(), none.into()];
    transaction.run(GIVE_UP_HASH, values).await?;
    Ok(())
}

/// Removes an object.
pub(crate) async fn delete(transaction: &mut Transaction, old: &Stored) -> Result<(), RowError> {
    let sql = Sql::on(old.name.kind().plural(), DELETE);
    transaction.run(sql, vec![old.id.into()]).await?;
    Ok(())
}

/// Seals the secrets of objects again that another key than the first has sealed: some in each transaction, which is
/// what other writers wait for.
pub(crate) async fn reseal(pool: &Pool, sealer: &Sealer<'_>) -> Result<(), Error> {
    for kind in Kind::ALL {
        let mut after = Uuid::nil();
        loop {
            let mut transaction = pool.begin().await?;
            let values = vec![after.into(), Some(sealer.keys.beginning()).into()];
            let sql = Sql::on(kind.plural(), PART);
            let rows = transaction.run(sql, values).await?;
            let Some(last) = rows.last() else {
                break;
            };
            after = last.get("id")?;
            for row in &rows {
                reseal_row(&mut transaction, sealer, (kind, row)).await?;
            }
            transaction.commit().await?;
        }
    }
    Ok(())
}

async fn reseal_row(
    transaction: &mut Transaction,
    Sealer { keys, random }: &Sealer<'_>,
    (kind, row): (Kind, &Row),
) -> Result<(), RowError> {
    let (id, sealed) = (row.get::<Uuid>("id")?, row.get::<Vec<u8>>("secret")?);
    let name = id.simple().to_string();
    let at = place(kind, &name);
    let plain = keys.open(at, &sealed).map_err(|error| match error {
        NotOpened::UnknownKey => RowError::UnknownKey,
        NotOpened::Forged => RowError::Broken(format!("the seal of one of the {}", kind.plural())),
    })?;
    let sealed = keys.seal(*random, at, &plain);
    let sealed = sealed.ok_or_else(|| RowError::Broken("no randomness".to_owned()))?;
    let values = vec![id.into(), Some(sealed).into()];
    transaction
        .run(Sql::on(kind.plural(), RESEAL), values)
        .await?;
    Ok(())
}

fn sealed(sealer: &Sealer<'_>, kind: Kind, of: &Stored) -> Result<Option<Vec<u8>>, RowError> {
    let secret = &of.object.secret.0;
    if secret.contains_key(PASSWORD) {
        return Err(RowError::Broken("a password in the plain".to_owned()));
    }
    if secret.is_empty() {
        return Ok(None);
    }
    let row = of.id.simple().to_string();
    let plain = zeroize::Zeroizing::new(Json::Object(secret.clone()).to_string());
    let sealed = sealer
        .keys
        .seal(sealer.random, place(kind, &row), plain.as_bytes());
    let sealed = sealed.ok_or_else(|| RowError::Broken("no randomness".to_owned()))?;
    Ok(Some(sealed))
}

fn stored(kind: Kind, row: &Row, keys: &Keyring) -> Result<Stored, RowError> {
    let name: String = row.get("name")?;
    let owner: String = row.get("tenant")?;
    let name = match kind {
        Kind::Tenant => ObjectName::tenant(&name),
        Kind::ApiKey if owner.is_empty() => ObjectName::operator_key(&name),
        kind => ObjectName::of(&owner, kind, &name),
    };
    let id: Uuid = row.get("id")?;
    let spec: String = row.get("spec")?;
    let broken = |what: &str| RowError::Broken(format!("{what} of {name}"));
    let spec: Document = serde_json::from_str(&spec).map_err(|_| broken("the document"))?;
    let sealed: Option<Vec<u8>> = row.get("secret")?;
    let opened = sealed.map(|sealed| {
        let row = id.simple().to_string();
        let plain = keys
            .open(place(kind, &row), &sealed)
            .map_err(|error| match error {
                NotOpened::UnknownKey => RowError::UnknownKey,
                NotOpened::Forged => broken("the seal"),
            })?;
        serde_json::from_slice(&plain).map_err(|_| broken("the sealed document"))
    });
    let secret = SecretMembers(opened.transpose()?.unwrap_or_default());
    Ok(Stored {
        id,
        version: row.get("version")?,
        object: Object { spec, secret },
        created_ms: row.get("created_ms")?,
        updated_ms: row.get("updated_ms")?,
        name,
    })
}

fn place(kind: Kind, row: &str) -> Place<'_> {
    Place {
        table: kind.plural(),
        row,
        column: "secret",
    }
}

fn spec(of: &Stored) -> Value {
    Json::Object(of.object.spec.clone()).to_string().into()
}

/// The hash of an API key, which identifies it.
fn hash(of: &Stored) -> Result<Value, RowError> {
    let hash = of.object.spec.get("hash").and_then(Json::as_str);
    let missing = || RowError::Broken(format!("no hash in {}", of.name));
    hash.map(Value::from).ok_or_else(missing)
}

const ALL: &str = "
    SELECT id, {owner} AS tenant, name, version, spec, secret, created_ms, updated_ms
      FROM {table}";

const OF_OWNER: &str = "
    SELECT id, {owner} AS tenant, name, version, spec, secret, created_ms, updated_ms
      FROM {table}
     WHERE {owner} = $1";

const ONE: &str = "
    SELECT id, {owner} AS tenant, name, version, spec, secret, created_ms, updated_ms
      FROM {table}
     WHERE {owner} = $1
       AND name = $2";

/// In the order of bytes, as its end is: the column of upstreams has the order of the locale in PostgreSQL, in which an
/// object would be in two pages or in none.
pub(crate) const PAGE: &str = "
    SELECT id, {owner} AS tenant, name, version, spec, secret, created_ms, updated_ms
      FROM {table}
     WHERE {owner} = $1
       AND name COLLATE {bytes} > $2
     ORDER BY name COLLATE {bytes}
     LIMIT $3";

const PAGE_OF_TENANTS: &str = "
    SELECT id, {owner} AS tenant, name, version, spec, secret, created_ms, updated_ms
      FROM {table}
     WHERE name COLLATE {bytes} > $1
     ORDER BY name COLLATE {bytes}
     LIMIT $2";

const MARKS: &str = "
    SELECT name AS tenant, COUNT(*) AS objects, MAX(version) AS version FROM tenants GROUP BY name
     UNION ALL
    SELECT tenant, COUNT(*), MAX(version) FROM servers GROUP BY tenant
     UNION ALL
    SELECT tenant, COUNT(*), MAX(version) FROM users GROUP BY tenant
     UNION ALL
    SELECT tenant, COUNT(*), MAX(version) FROM clients GROUP BY tenant
     UNION ALL
    SELECT tenant, COUNT(*), MAX(version) FROM providers GROUP BY tenant
     UNION ALL
    SELECT tenant, COUNT(*), MAX(version) FROM upstreams GROUP BY tenant
     UNION ALL
    SELECT tenant, COUNT(*), MAX(version) FROM api_keys WHERE tenant IS NOT NULL GROUP BY tenant";

const MARK: &str = "
    SELECT COUNT(*) AS objects, COALESCE(MAX(version), 0) AS version FROM tenants WHERE name = $1
     UNION ALL
    SELECT COUNT(*), COALESCE(MAX(version), 0) FROM servers WHERE tenant = $1
     UNION ALL
    SELECT COUNT(*), COALESCE(MAX(version), 0) FROM users WHERE tenant = $1
     UNION ALL
    SELECT COUNT(*), COALESCE(MAX(version), 0) FROM clients WHERE tenant = $1
     UNION ALL
    SELECT COUNT(*), COALESCE(MAX(version), 0) FROM providers WHERE tenant = $1
     UNION ALL
    SELECT COUNT(*), COALESCE(MAX(version), 0) FROM upstreams WHERE tenant = $1
     UNION ALL
    SELECT COUNT(*), COALESCE(MAX(version), 0) FROM api_keys WHERE tenant = $1";

const CHANGES: &str = "
    SELECT COUNT(*) AS objects, COALESCE(MAX(version), 0) AS version
      FROM changes";

const OTHERS: &str = "
    SELECT COUNT(*) AS tenants
      FROM tenants
     WHERE name <> $1";

const HOSTS: &str = "
    SELECT name, spec
      FROM tenants
     WHERE name <> $1
       AND spec LIKE '%\"hosts\"%'";

const INSERT_TENANT: &str = "
    INSERT INTO tenants (id, name, version, spec, secret, created_ms, updated_ms)
    VALUES ($1, $2, $3, $4, $5, $6, $7)";

const INSERT: &str = "
    INSERT INTO {table} (id, tenant, name, version, spec, secret, created_ms, updated_ms)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

const INSERT_API_KEY: &str = "
    INSERT INTO api_keys (id, tenant, name, version, spec, secret, created_ms, updated_ms, hash)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";

const UPDATE: &str = "
    UPDATE {table}
       SET version = $2, spec = $3, secret = $4, updated_ms = $5
     WHERE id = $1";

const UPDATE_API_KEY: &str = "
    UPDATE api_keys
       SET version = $2, spec = $3, secret = $4, updated_ms = $5, hash = $6
     WHERE id = $1";

const GIVE_UP_HASH: &str = "
    UPDATE api_keys
       SET hash = $2
     WHERE id = $1";

const PART: &str = "
    SELECT id, secret
      FROM {table}
     WHERE id > $1
       AND SUBSTR(secret, 1, 9) <> $2
     ORDER BY id
     LIMIT 100";

const RESEAL: &str = "
    UPDATE {table}
       SET secret = $2
     WHERE id = $1";

const DELETE: &str = "
    DELETE FROM {table}
     WHERE id = $1";
