//! The master keys that a database knows, and their rotation.
//!
//! Not here: sealing (`seal`), and the source of keys (`master_key`).

use super::{
    master_key::{KeySource, Make},
    seal::{Keyring, MasterKey, Place, Sealer},
};
use crate::database::pool::{Error, Transaction};
use crate::{base::Random, config::Wrong};

/// Reads the keys, and verifies that they are those of this database, which stores a proof of the
/// first.
///
/// A key is created only for a database without proofs: it could not open values sealed before.
pub(crate) async fn read_and_verify_keys(
    transaction: &mut Transaction,
    source: &KeySource,
    random: &Random,
    now_ms: i64,
) -> Result<Keyring, Error> {
    let rows = transaction.run(ALL, Vec::new()).await?;
    let make = if rows.is_empty() {
        Make::IfMissing
    } else {
        Make::Never
    };
    let keys = source.keyring(random, make).map_err(Error::from_mistake)?;
    let mut is_proven = rows.is_empty();
    for row in &rows {
        let id: String = row.get("id")?;
        if keys.keys().iter().any(|key| key.id() == id) {
            let sealed: Vec<u8> = row.get("check_seal")?;
            let opened = keys.open(place(&id), &sealed);
            if opened.is_err() {
                return Err(Error::Bug(format!("the check of the master key {id}")));
            }
            is_proven = true;
        }
    }
    if !is_proven {
        let what = format!(
            "is not the one that sealed this store ({})",
            keys.first().id()
        );
        let remedy = "give the right one; what is lost without it is in docs/store.md";
        return Err(Error::from_key(Wrong::new(what, remedy)));
    }
    let sealer = Sealer {
        keys: &keys,
        random,
    };
    add_first(transaction, &sealer, now_ms).await?;
    Ok(keys)
}

/// Reports whether the database has a proof of the sealing key.
pub(crate) async fn is_known(transaction: &mut Transaction, keys: &Keyring) -> Result<bool, Error> {
    let rows = transaction.run(ONE, vec![keys.first().id().into()]).await?;
    Ok(!rows.is_empty())
}

/// Adds a new key before the one in the file. Of given keys the first is the new one, and of several in the file: a
/// rotation that ended half-way left them there, and goes on.
pub(crate) fn begin_rotation(source: &KeySource, random: &Random) -> Result<Keyring, Error> {
    let keys = source
        .keyring(random, Make::Never)
        .map_err(Error::from_mistake)?;
    if matches!(source, KeySource::Given(_)) || keys.keys().len() > 1 {
        return Ok(keys);
    }
    let new = MasterKey::new(random).map_err(Error::from_key)?;
    let keys = Keyring::of(new, keys.into_keys());
    source.write(keys.keys()).map_err(Error::from_key)?;
    Ok(keys)
}

/// Removes the proofs of all keys but the first: whoever writes from then on seals with that one.
pub(crate) async fn keep_first(
    transaction: &mut Transaction,
    sealer: &Sealer<'_>,
    now_ms: i64,
) -> Result<(), Error> {
    add_first(transaction, sealer, now_ms).await?;
    let id = sealer.keys.first().id();
    transaction.run(DELETE_OTHERS, vec![id.into()]).await?;
    Ok(())
}

/// Removes the old keys from the file; returns the id of the remaining one.
pub(crate) fn end_rotation(source: &KeySource, keys: &Keyring) -> Result<String, Error> {
    let id = keys.first().id();
    if matches!(source, KeySource::File(_)) {
        source.write(&keys.keys()[..1]).map_err(Error::from_key)?;
    }
    Ok(id)
}

async fn add_first(
    transaction: &mut Transaction,
    sealer: &Sealer<'_>,
    now_ms: i64,
) -> Result<(), Error> {
    let id = sealer.keys.first().id();
    let sealed = sealer.keys.seal(sealer.random, place(&id), CHECK);
    if sealed.is_none() {
        return Err(Error::no_randomness());
    }
    let values = vec![id.into(), sealed.into(), now_ms.into()];
    transaction.run(INSERT, values).await?;
    Ok(())
}

fn place(id: &str) -> Place<'_> {
    Place {
        table: "seal_keys",
        row: id,
        column: "check_seal",
    }
}

/// The text that is sealed as the proof of a key.
const CHECK: &[u8] = b"lockgate";

const ALL: &str = "
    SELECT id, check_seal
      FROM seal_keys";

const ONE: &str = "
    SELECT id
      FROM seal_keys
     WHERE id = $1";

const INSERT: &str = "
    INSERT INTO seal_keys (id, check_seal, created_ms)
    VALUES ($1, $2, $3)
    ON CONFLICT (id) DO NOTHING";

const DELETE_OTHERS: &str = "
    DELETE FROM seal_keys
     WHERE id <> $1";
