//! Passwords of users: hashed when declared, verified at log-in.
//!
//! Argon2id (RFC 9106) with the parameters of OWASP's password storage cheat sheet. Not here: the
//! rate of attempts (`oauth`), and whose turn it is (`Rotation`).

use std::{sync::LazyLock, time::Duration};

use argon2::{
    Argon2, Params,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use tokio::{task::spawn_blocking, time::timeout};
use zeroize::Zeroizing;

use crate::base::{
    Random, Secret,
    budget::{Rotation, Turn},
};

/// Checks a new password; the error never contains it.
pub(crate) fn check_password(text: &str) -> Result<(), &'static str> {
    // NIST SP 800-63B, section 3.1.1.2: letters are counted, not bytes.
    if text.chars().count() < MIN_LETTERS {
        Err("is shorter than 8 letters")
    } else if text.len() > MAX_BYTES {
        Err("is longer than 1024 bytes")
    } else {
        Ok(())
    }
}

/// Checks the hash of a password: Argon2id, neither cheap to guess nor expensive to verify.
pub(crate) fn check_hash(text: &str) -> Result<(), &'static str> {
    let hash = PasswordHash::new(text).map_err(|_| "is no hash")?;
    if hash.algorithm.as_str() != "argon2id" || hash.version != Some(19) {
        return Err("is no Argon2id hash of version 19");
    }
    let salt = hash.salt.as_ref().map_or(0, |salt| salt.as_ref().len());
    let output = hash.hash.as_ref().map_or(0, |hash| hash.as_bytes().len());
    if salt < 8 || output < 16 {
        return Err("has no salt or no output, or a short one");
    }
    let params = Params::try_from(&hash).map_err(|_| "has parameters that Argon2id has not")?;
    let (memory, rounds) = (params.m_cost(), params.t_cost());
    if u64::from(memory) * u64::from(rounds) < u64::from(MIN_COST) {
        return Err("is cheaper than m=19456,t=1");
    }
    let cost = u64::from(memory) * u64::from(rounds);
    if memory > MAX_MEMORY || cost > MAX_COST || params.p_cost() > MAX_LANES {
        return Err("costs more than m=65536,t=4,p=4");
    }
    Ok(())
}

/// The reason why a password could not be hashed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHashed {
    /// The system has no randomness.
    #[error("no randomness")]
    NoRandomness,
    /// Memory is exhausted, or the task was aborted.
    #[error("a password cannot be hashed: {0}")]
    Failed(String),
}

/// Hashes a password with a random salt, to a PHC string, in a turn of `tenant`.
///
/// # Errors
///
/// No randomness or memory.
pub(crate) async fn hash(
    random: &Random,
    tenant: &str,
    password: Secret,
) -> Result<Secret, NotHashed> {
    let mut salt = [0; 16];
    let filled = random.fill(&mut salt);
    filled.map_err(|_| NotHashed::NoRandomness)?;
    let failed = |what: String| NotHashed::Failed(what);
    let turn = TURNS.take(tenant).await;
    let hashed = spawn_blocking(move || {
        let _held = turn;
        let password = password.expose().as_bytes();
        let hash: PasswordHash = Argon2::default().hash_password_with_salt(password, &salt)?;
        Ok::<_, argon2::password_hash::Error>(Secret::new(hash.to_string()))
    });
    let hashed = hashed.await.map_err(|error| failed(error.to_string()))?;
    hashed.map_err(|error| failed(error.to_string()))
}

/// Verifies `given` against the hash `stored`, in a turn of `tenant`. Without a hash, as for an unknown
/// user, it takes the same time and returns false. Returns none if too many verifications of the
/// tenant are waiting.
pub(crate) async fn verify(tenant: &str, stored: Option<&str>, given: &str) -> Option<bool> {
    let Ok(turn) = timeout(WAIT, TURNS.take(tenant)).await else {
        tracing::warn!(
            tenant.id = tenant,
            "too many passwords at once: one was not looked at"
        );
        return None;
    };
    Some(is_password(turn, stored, given).await)
}

async fn is_password(turn: Turn, stored: Option<&str>, given: &str) -> bool {
    let is_there = stored.is_some();
    let stored = stored.unwrap_or(DUMMY_HASH).to_owned();
    let given = Zeroizing::new(given.to_owned());
    let compared = spawn_blocking(move || {
        // The task holds the turn, because it continues when its caller is gone.
        let _held = turn;
        let hash = PasswordHash::new(&stored).ok()?;
        let compared = Argon2::default().verify_password(given.as_bytes(), &hash);
        compared.ok()
    });
    compared.await.is_ok_and(|same| same.is_some()) && is_there
}

/// Verifies against an existing hash like [`verify`], but waits for its turn without limit.
pub(crate) async fn is_hash_of(tenant: &str, stored: &Secret, given: &Secret) -> bool {
    let turn = TURNS.take(tenant).await;
    is_password(turn, Some(stored.expose()), given.expose()).await
}

/// The member with a declared password; never stored.
pub(crate) const PASSWORD: &str = "password";
/// The member with its hash.
pub(crate) const PASSWORD_HASH: &str = "password_hash";

/// Minimum letters of a password.
const MIN_LETTERS: usize = 8;
/// Maximum bytes of a password.
const MAX_BYTES: usize = 1024;
/// Minimum KiB times rounds: OWASP's choices have 36 to 47 thousand, the second of RFC 9106 has
/// 196.
const MIN_COST: u32 = 19 * 1024;
/// Maximum KiB, which any log-in attempt allocates: the second choice of RFC 9106.
const MAX_MEMORY: u32 = 64 * 1024;
/// Maximum KiB times rounds: a hash of one tenant takes the turns of all.
const MAX_COST: u64 = 4 * 64 * 1024;
/// Maximum lanes.
const MAX_LANES: u32 = 4;
/// Maximum concurrent verifications.
pub(crate) const MAX_CONCURRENT: usize = 2;
/// Maximum time that a log-in waits for its turn.
const WAIT: Duration = Duration::from_secs(5);
/// The hash that is verified for unknown users, at the usual cost.
const DUMMY_HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$YSBzYWx0IG9mIG5vYm9keQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

static TURNS: LazyLock<Rotation> = LazyLock::new(|| Rotation::new(MAX_CONCURRENT));

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use tokio::time::Instant;

    use super::super::password::*;

    async fn hashed(password: &str) -> Secret {
        let password = Secret::new(password.to_owned());
        hash(&SystemRandom::new(), "a", password).await.unwrap()
    }

    #[tokio::test]
    async fn a_hash_fits_its_password_and_no_other() {
        let (one, again) = (hashed("correct horse").await, hashed("correct horse").await);
        assert_ne!(one, again, "a salt of its own");
        assert!(one.expose().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
        assert_eq!(check_hash(one.expose()), Ok(()));
        assert_eq!(
            verify("a", Some(one.expose()), "correct horse").await,
            Some(true)
        );
        for wrong in [
            "",
            "correct hors",
            "correct horse ",
            "Correct horse",
            "correct horse\0",
        ] {
            assert_eq!(
                verify("a", Some(one.expose()), wrong).await,
                Some(false),
                "{wrong:?}"
            );
        }
        assert_eq!(verify("a", None, "correct horse").await, Some(false));
        assert_eq!(verify("a", Some("x"), "x").await, Some(false));
    }

    #[tokio::test]
    async fn an_unknown_user_costs_what_a_known_one_does() {
        let known = hashed("correct horse").await;
        let cost = |text: &str| {
            let hash = PasswordHash::new(text).unwrap();
            let (salt, output) = (hash.salt.unwrap(), hash.hash.unwrap());
            let lengths = (salt.as_ref().len(), output.as_bytes().len());
            (hash.algorithm, hash.version, hash.params, lengths)
        };
        assert_eq!(cost(known.expose()), cost(DUMMY_HASH));
        assert_eq!(check_hash(DUMMY_HASH), Ok(()));
        let mut took = [Vec::new(), Vec::new()];
        for _ in 0..5 {
            for (at, stored) in [Some(known.expose()), None].into_iter().enumerate() {
                let began = Instant::now();
                assert_eq!(verify("a", stored, "wrong horse").await, Some(false));
                took[at].push(began.elapsed());
            }
        }
        // Other load only adds time, so the fastest runs are compared.
        let [known, unknown] = took.map(|took| took.into_iter().min().unwrap());
        assert!(unknown > known / 5, "{known:?} {unknown:?}");
    }

    #[test]
    fn hashes_are_neither_weak_nor_a_burden() {
        let of = |middle: &str| {
            format!(
                "$argon2id$v=19${middle}$c2FsdHNhbHRzYWx0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
            )
        };
        for good in [
            "m=19456,t=2,p=1",
            "m=47104,t=1,p=1",
            "m=7168,t=5,p=1",
            "m=65536,t=3,p=4",
            "m=65536,t=4,p=4",
        ] {
            assert_eq!(check_hash(&of(good)), Ok(()), "{good}");
        }
        for (bad, why) in [
            (of("m=1024,t=1,p=1"), "cheaper"),
            (of("m=4194304,t=1,p=1"), "more"),
            (of("m=65537,t=1,p=1"), "more"),
            (of("m=65536,t=5,p=1"), "more"),
            (of("m=262144,t=16,p=8"), "more"),
            (of("m=19456,t=2,p=5"), "more"),
            (of("m=19456,t=100,p=1"), "more"),
            (of("m=19456,t=2,p=64"), "more"),
            (
                of("m=19456,t=2,p=1").replace("argon2id", "argon2i"),
                "Argon2id",
            ),
            (of("m=19456,t=2,p=1").replace("v=19", "v=16"), "Argon2id"),
            (
                "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0".to_owned(),
                "output",
            ),
            ("$2b$12$abcdefghijklmnopqrstuv".to_owned(), "hash"),
            ("hunter42".to_owned(), "hash"),
            (String::new(), "hash"),
        ] {
            let found = check_hash(&bad).expect_err(&bad);
            assert!(found.contains(why), "{bad}: {found}");
        }
        assert_eq!(check_password("äöüßäöüß"), Ok(()));
        assert!(check_password("1234567").is_err());
        assert!(check_password(&"x".repeat(1025)).is_err());
    }
}
