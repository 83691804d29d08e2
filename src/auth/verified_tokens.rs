//! Cache of verified tokens, which forgets each when it expires; and the sizes by which such caches are bounded.
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
    /// What it takes, in bytes.
    size: u32,
}

impl<T> Clone for Verified<T> {
    fn clone(&self) -> Self {
        Self {
            token: Arc::clone(&self.token),
            life: self.life,
            size: self.size,
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
    /// An empty cache of at most `most` bytes, with each token for at most `longest`.
    pub(super) fn new(most: u64, longest: Duration) -> Self {
        let cache = Cache::builder()
            .max_capacity(most)
            .weigher(|_, verified: &Verified<T>| verified.size)
            .time_to_live(longest);
        Self(cache.expire_after(Life).build())
    }

    /// The token whose text has this hash.
    pub(super) async fn get(&self, hash: &[u8; 32]) -> Option<Arc<T>> {
        self.0.get(hash).await.map(|verified| verified.token)
    }

    /// Adds a token whose texts have `bytes`, and which expires after `life`.
    pub(super) async fn insert(
        &self,
        hash: [u8; 32],
        token: Arc<T>,
        (bytes, life): (usize, Duration),
    ) {
        let size = sized(bytes);
        self.0.insert(hash, Verified { token, life, size }).await;
    }

    /// Removes a token.
    pub(super) async fn remove(&self, hash: &[u8; 32]) {
        self.0.invalidate(hash).await;
    }
}

/// What a cache keeps for a token whose texts have `bytes`: its issuer decides on them.
pub(super) fn sized(bytes: usize) -> u32 {
    u32::try_from(bytes.saturating_add(ENTRY)).unwrap_or(u32::MAX)
}

/// What each token takes beside its texts: the entry of the cache, and what is allocated for a principal.
const ENTRY: usize = 1024;

#[cfg(test)]
mod tests {
    use super::super::verified_tokens::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MOST: u64 = 1 << 20;

    #[tokio::test]
    async fn a_token_is_kept_until_it_expires_and_no_longer() {
        let tokens = VerifiedTokens::new(MOST, SECOND * 3600);
        let gone = Arc::new(1);
        tokens
            .insert([1; 32], Arc::clone(&gone), (1, Duration::from_millis(20)))
            .await;
        tokens.insert([2; 32], Arc::new(2), (1, SECOND * 60)).await;
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
        let tokens = VerifiedTokens::new(MOST, Duration::from_millis(20));
        tokens
            .insert([1; 32], Arc::new(1), (1, SECOND * 3600))
            .await;
        let end = tokio::time::Instant::now() + SECOND * 5;
        while tokens.get(&[1; 32]).await.is_some() {
            assert!(end.elapsed().is_zero(), "it is still there");
            tokio::task::yield_now().await;
        }
    }

    /// An issuer that puts much into its tokens has fewer of them here, not more of the memory.
    #[tokio::test]
    async fn tokens_are_counted_in_bytes() {
        for (bytes, most) in [(0, 1024), (15 << 10, 64)] {
            let tokens = VerifiedTokens::new(MOST, SECOND * 3600);
            for number in 0..2048_u32 {
                let mut hash = [0; 32];
                hash[..4].copy_from_slice(&number.to_be_bytes());
                tokens
                    .insert(hash, Arc::new(number), (bytes, SECOND * 60))
                    .await;
            }
            tokens.0.run_pending_tasks().await;
            assert_eq!(tokens.0.entry_count(), most, "{bytes}");
        }
        assert_eq!(sized(usize::MAX), u32::MAX);
    }
}
