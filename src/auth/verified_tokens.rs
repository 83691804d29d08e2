//! Cache of verified tokens, which forgets each when it expires.
//!
//! Not here: verification (`builtin`, `external`). A cached token may be revoked, or its key removed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use moka::{Expiry, future::Cache};

/// Verified tokens of the type `T`, by the SHA-256 of their text.
pub(super) struct VerifiedTokens<T>(Cache<[u8; 32], Verified<T>>);

struct Verified<T> {
    token: Arc<T>,
    /// The time until it expires.
    life: Duration,
}

impl<T> Clone for Verified<T> {
    fn clone(&self) -> Self {
        Self {
            token: Arc::clone(&self.token),
            life: self.life,
        }
    }
}

/// The expiry of each token.
struct Life;

impl<T> Expiry<[u8; 32], Verified<T>> for Life {
    fn expire_after_create(
        &self,
        _: &[u8; 32],
        verified: &Verified<T>,
        _: Instant,
    ) -> Option<Duration> {
        Some(verified.life)
    }
}

impl<T: Send + Sync + 'static> VerifiedTokens<T> {
    /// An empty cache of at most `most` tokens, each for at most `longest`.
    pub(super) fn new(most: u64, longest: Duration) -> Self {
        let cache = Cache::builder().max_capacity(most).time_to_live(longest);
        Self(cache.expire_after(Life).build())
    }

    /// The token whose text has this hash.
    pub(super) async fn get(&self, hash: &[u8; 32]) -> Option<Arc<T>> {
        self.0.get(hash).await.map(|verified| verified.token)
    }

    /// Adds a token, which expires after `life`.
    pub(super) async fn insert(&self, hash: [u8; 32], token: Arc<T>, life: Duration) {
        self.0.insert(hash, Verified { token, life }).await;
    }

    /// Removes a token.
    pub(super) async fn remove(&self, hash: &[u8; 32]) {
        self.0.invalidate(hash).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::verified_tokens::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_token_is_kept_until_it_expires_and_no_longer() {
        let tokens = VerifiedTokens::new(1000, SECOND * 3600);
        let gone = Arc::new(1);
        tokens
            .insert([1; 32], Arc::clone(&gone), Duration::from_millis(20))
            .await;
        tokens.insert([2; 32], Arc::new(2), SECOND * 60).await;
        let end = tokio::time::Instant::now() + SECOND * 5;
        while Arc::strong_count(&gone) > 1 {
            assert!(end.elapsed().is_zero(), "it is still in memory");
            tokens.0.run_pending_tasks().await;
            tokio::task::yield_now().await;
        }
        assert!(tokens.get(&[1; 32]).await.is_none());
        assert_eq!(tokens.get(&[2; 32]).await.as_deref(), Some(&2));
        tokens.remove(&[2; 32]).await;
        assert!(tokens.get(&[2; 32]).await.is_none());
    }

    #[tokio::test]
    async fn a_token_is_verified_again_after_the_longest_time() {
        let tokens = VerifiedTokens::new(1000, Duration::from_millis(20));
        tokens.insert([1; 32], Arc::new(1), SECOND * 3600).await;
        let end = tokio::time::Instant::now() + SECOND * 5;
        while tokens.get(&[1; 32]).await.is_some() {
            assert!(end.elapsed().is_zero(), "it is still there");
            tokio::task::yield_now().await;
        }
    }
}
