//! Error codes of SQLite and PostgreSQL, and what each says of the database.
//!
//! Not here: errors without a code (`sql_error`).

/// What an error code says of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It does not answer now; a retry may avoid the error.
    Away,
    /// Its file is no intact database.
    Damaged,
    /// Nothing: the statement is wrong, or what it writes.
    Other,
}

/// What a code says.
pub(super) fn kind_of(code: &str) -> Kind {
    match code.parse::<u32>() {
        // The kind of an extended code of SQLite is its low byte. Codes of PostgreSQL have five characters.
        Ok(number) if code.len() < 5 => match number & 0xff {
            kind if SQLITE_AWAY.contains(&kind) => Kind::Away,
            kind if SQLITE_DAMAGED.contains(&kind) => Kind::Damaged,
            _ => Kind::Other,
        },
        _ if AWAY.iter().any(|class| code.starts_with(class)) => Kind::Away,
        _ => Kind::Other,
    }
}

/// SQLSTATE codes of PostgreSQL (appendix A) that a retry may avoid: connection, log-in, missing database, rollback,
/// resources, lock, cancellation, system; a prepared statement of an older schema, a server that only reads, a
/// transaction that was idle or took too long.
const AWAY: [&str; 12] = [
    "08", "28", "3D", "40", "53", "55", "57", "58", "0A000", "25006", "25P03", "25P04",
];

/// SQLite error codes of the file, and of a statement that took too long: `SQLITE_BUSY`, `LOCKED`, `READONLY`,
/// `INTERRUPT`, `IOERR`, `FULL`, `CANTOPEN`.
const SQLITE_AWAY: [u32; 7] = [5, 6, 8, 9, 10, 13, 14];

/// SQLite error codes of what is in the file: `SQLITE_CORRUPT`, `NOTADB`.
const SQLITE_DAMAGED: [u32; 2] = [11, 26];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_full_or_fails_is_no_bug() {
        // `SQLITE_FULL`, `SQLITE_IOERR_WRITE`, `SQLITE_BUSY_SNAPSHOT`, and a lost connection of PostgreSQL.
        for code in ["13", "778", "517", "08006", "57P01"] {
            assert_eq!(kind_of(code), Kind::Away, "{code}");
        }
        // A statement that its time limit ended: `SQLITE_INTERRUPT`, `query_canceled`.
        for code in ["9", "57014"] {
            assert_eq!(kind_of(code), Kind::Away, "{code}");
        }
        // What PostgreSQL says of a transaction that stood still, as a suspended machine does.
        for code in ["25P03", "25P04"] {
            assert_eq!(kind_of(code), Kind::Away, "{code}");
        }
        // A prepared statement whose columns a migration changed: `cached plan must not change result type`.
        assert_eq!(kind_of("0A000"), Kind::Away);
        // `SQLITE_CONSTRAINT_UNIQUE`, and a failed transaction and a syntax error of PostgreSQL.
        for code in ["2067", "25P02", "42601", ""] {
            assert_eq!(kind_of(code), Kind::Other, "{code}");
        }
    }

    /// A damaged file was told as a bug of the gateway, without a remedy.
    #[test]
    fn a_damaged_file_is_no_bug() {
        // `SQLITE_CORRUPT`, `SQLITE_CORRUPT_INDEX`, `SQLITE_NOTADB`.
        for code in ["11", "779", "26"] {
            assert_eq!(kind_of(code), Kind::Damaged, "{code}");
        }
        // A trigger of PostgreSQL.
        assert_eq!(kind_of("09000"), Kind::Other);
    }
}
