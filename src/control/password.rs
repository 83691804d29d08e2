//! Passwords of users, until those who declare them bring the whole of it.

use argon2::{
    Argon2,
    password_hash::{PasswordVerifier, phc::PasswordHash},
};

/// Whether `given` is the password with the hash `stored`.
pub(crate) async fn verify(stored: Option<&str>, given: &str) -> bool {
    let Some(hash) = stored.and_then(|stored| PasswordHash::new(stored).ok()) else {
        return false;
    };
    Argon2::default()
        .verify_password(given.as_bytes(), &hash)
        .is_ok()
}
