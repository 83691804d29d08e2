//! Objects as rows: the statements that read and write them, with sealed secrets.
//!
//! Not here: the checks of a change (`changes`).

use serde_json::Value as Json;
use uuid::Uuid;

use crate::config::{Mistake, Wrong};
use crate::{
    database::{
        pool::{Error, Row, Sql, SqlError, Transaction, Value},
        vault::{Keyring, NotOpened, Place, Sealer},
    },
    declare::{Declared, Document, Kind, Object, ObjectName, OperatorKey, PASSWORD, SecretMembers},
};

/// A stored object.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The id of the row; never reused for another object.
    pub(crate) id: Uuid,
    /// The name of the object.
    pub(crate) name: ObjectName,
    /// The number of the change that wrote it: an `ETag`.
    pub(crate) version: i64,
    /// The declaration.
    pub(crate) object: Object,
    /// Time of creation, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// Time of the last change.
    pub(crate) updated_ms: i64,
}

impl Stored {
    /// The object as an operator's API key, with its hash.
    ///
    /// # Errors
    ///
    /// Every mistake in the declaration.
    pub(crate) fn operator_key(&self) -> Result<([u8; 32], OperatorKey), Vec<Mistake>> {
        OperatorKey::read(self.name.name(), &self.object.tree())
    }
}

/// The declared state at one moment.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The number of the last change.
    pub(crate) version: i64,
    /// Every object with its own version.
    pub(crate) objects: Vec<Stored>,
}

impl Loaded {
    /// The objects by name.
    pub(crate) fn declared(&self) -> Declared {
        let named = self.objects.iter();
        let named = named.map(|stored| (stored.name.clone(), stored.object.clone()));
        Declared(named.collect())
    }
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

/// Reads every object.
pub(crate) async fn all(
    transaction: &mut Transaction,
    keys: &Keyring,
) -> Result<Vec<Stored>, RowError> {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        let sql = match kind {
            Kind::Tenant => Sql::from(ALL_TENANTS),
            _ => Sql::on(kind.plural(), ALL),
        };
        for row in transaction.run(sql, Vec::new()).await? {
            found.push(stored(kind, &row, keys)?);
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
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
        Kind::Server | Kind::User | Kind::Client | Kind::Provider => Sql::on(kind.plural(), INSERT),
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

/// Removes an object.
pub(crate) async fn delete(transaction: &mut Transaction, old: &Stored) -> Result<(), RowError> {
    let sql = Sql::on(old.name.kind().plural(), DELETE);
    transaction.run(sql, vec![old.id.into()]).await?;
    Ok(())
}

/// Seals an object's secret again, with the first master key.
pub(crate) async fn reseal(
    transaction: &mut Transaction,
    sealer: &Sealer<'_>,
    old: &Stored,
) -> Result<(), RowError> {
    let kind = old.name.kind();
    let values = vec![old.id.into(), sealed(sealer, kind, old)?.into()];
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
    let name = match (kind, row.get::<Option<String>>("tenant")?) {
        (Kind::Tenant, _) => ObjectName::tenant(&name),
        (kind, Some(tenant)) => ObjectName::of(&tenant, kind, &name),
        (_, None) => ObjectName::operator_key(&name),
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

const ALL_TENANTS: &str = "
    SELECT id, CAST(NULL AS TEXT) AS tenant, name, version, spec, secret, created_ms, updated_ms
      FROM tenants";

const ALL: &str = "
    SELECT id, tenant, name, version, spec, secret, created_ms, updated_ms
      FROM {table}";

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

const RESEAL: &str = "
    UPDATE {table}
       SET secret = $2
     WHERE id = $1";

const DELETE: &str = "
    DELETE FROM {table}
     WHERE id = $1";
