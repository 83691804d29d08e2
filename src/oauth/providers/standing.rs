//! Standing of people at their identity providers: when a provider's last word is old, it is asked again, by one
//! replica at a time (OpenID Connect Core, section 12).
//!
//! Not here: the requests (`openid`, `oauth`), and the stored tokens (`database`).

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::task::TaskTracker;

use super::{
    implementations::Providers,
    provider::{ProviderError, ProviderTokens, WantedClaims},
};
use crate::{
    base::{Clock, Secret},
    database::{
        self, Author, Tokens,
        oauth::{Identities, Identity, IdentityAt},
    },
    declare::{Builtin, Provider, Tenant},
    snapshot::CurrentSnapshot,
};

/// The standing of the people of all tenants; a handle.
#[derive(Clone)]
pub(crate) struct Standings {
    providers: Providers,
    snapshot: Arc<CurrentSnapshot>,
    clock: Clock,
    /// A request that was begun is ended: its refresh token may be used up.
    tracker: TaskTracker,
    /// The questions that are under way at this replica.
    under_way: Arc<UnderWay>,
}

/// A person whom a provider identified.
#[derive(Clone)]
pub(crate) struct StandingOf {
    /// The tenant.
    pub(crate) tenant: String,
    /// The provider, as it is declared now.
    pub(crate) provider: Arc<Provider>,
    /// The subject of the person here.
    pub(crate) subject: String,
    /// The claims on which access depends.
    pub(crate) wanted: WantedClaims,
    /// The age at which the provider's word is asked for again; zero is never.
    pub(crate) recheck: Duration,
}

/// The provider's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The person may come in; with these groups, if the provider was asked and told them.
    Good(Option<Vec<String>>),
    /// The provider lets the person in no more, and all that the person had here has ended; or it can never be asked by
    /// what the last log-in left, and the person has to log in again.
    Ended,
    /// The provider does not answer, and its last word is too old.
    Unknown,
}

/// A question about a person: the tenant, the subject, and the authority that is asked.
type Question = [String; 3];

/// The answer to all that asked it; none yet.
type Word = Option<Result<Standing, Arc<database::Error>>>;

/// The questions that are under way, of which each has one task.
#[derive(Default)]
struct UnderWay(RwLock<HashMap<Question, watch::Receiver<Word>>>);

impl UnderWay {
    /// The word on a question. The sender is given to the first one that asks, which has it answered.
    fn join(&self, question: &Question) -> (watch::Receiver<Word>, Option<watch::Sender<Word>>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // A question whose task is gone is asked again.
        if let Some(word) = all.get(question)
            && word.has_changed().is_ok()
        {
            return (word.clone(), None);
        }
        let (teller, word) = watch::channel(None);
        all.insert(question.clone(), word.clone());
        (word, Some(teller))
    }

    /// Tells the word. Those that ask from now on ask anew.
    fn end(
        &self,
        question: &Question,
        teller: &watch::Sender<Word>,
        told: Result<Standing, Arc<database::Error>>,
    ) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(question);
        drop(all);
        teller.send_replace(Some(told));
    }
}

/// What there is of an access token that a provider gave of a person.
pub(crate) enum HeldToken {
    /// One that has not expired.
    Alive(Secret),
    /// None: the person has to log in again.
    Gone,
    /// One that has expired, and the provider does not answer.
    Unknown,
}

impl StandingOf {
    /// The person of a provider with this subject.
    pub(crate) fn of(tenant: &Tenant, builtin: &Builtin, subject: &str) -> Option<Self> {
        let provider = builtin.provider_of(subject)?;
        Some(Self {
            tenant: tenant.name.clone(),
            provider: Arc::clone(provider),
            subject: subject.to_owned(),
            wanted: WantedClaims::of(tenant, provider),
            recheck: builtin.recheck,
        })
    }

    fn at(&self) -> IdentityAt<'_> {
        IdentityAt {
            tenant: &self.tenant,
            provider: &self.provider.name,
            subject: &self.subject,
        }
    }

    fn question(&self) -> Question {
        let (tenant, subject) = (self.tenant.clone(), self.subject.clone());
        [tenant, subject, self.provider.authority()]
    }

    /// What is stored of tokens that the provider gave.
    fn kept(&self, given: ProviderTokens, now_ms: i64) -> Tokens {
        let expires = |lasts: Duration| now_ms.saturating_add(millis(lasts));
        Tokens {
            access: given.access,
            refresh: given.refresh,
            given_ms: now_ms,
            expires_ms: given.lasts.map(expires),
            authority: self.provider.authority(),
        }
    }

    /// Reports whether the provider can be asked by these tokens.
    fn is_askable(&self, tokens: &Tokens, now_ms: i64) -> bool {
        let is_alive = tokens.expires_ms.is_none_or(|at_ms| at_ms > now_ms);
        // Tokens of before another provider was declared by this name never go there.
        tokens.authority == self.provider.authority() && (tokens.refresh.is_some() || is_alive)
    }
}

impl Standings {
    /// The standing as the database of `snapshot` has it, and as `providers` say.
    pub(crate) fn new(
        providers: Providers,
        snapshot: Arc<CurrentSnapshot>,
        tracker: TaskTracker,
    ) -> Self {
        let clock = snapshot.clock().clone();
        Self {
            providers,
            snapshot,
            clock,
            tracker,
            under_way: Arc::default(),
        }
    }

    /// Keeps what the provider told and gave at a log-in of this time.
    pub(crate) async fn keep(
        &self,
        of: &StandingOf,
        (groups, log_in_ms): (&[String], i64),
        given: ProviderTokens,
    ) -> Result<(), database::Error> {
        if of.recheck.is_zero() {
            // The provider is not asked again, so that API keys have the groups of the last log-in.
            let own_keys = self.snapshot.database()?.own_keys();
            if own_keys.tell(&of.tenant, &of.subject, groups).await? {
                self.snapshot.refresh_issued().await?;
            }
            return Ok(());
        }
        let told = Identities {
            log_in_ms: Some(log_in_ms),
            ..self.identities()?
        };
        let (kept, at) = (self.told(told, of, Some(groups)), of.at());
        let tokens = of.kept(given, self.clock.now_ms());
        let has_none = tokens.refresh.is_none();
        if has_none {
            tracing::info!(
                tenant.id = of.tenant,
                provider = of.provider.name,
                "an identity provider gave no refresh token: it can be asked about this person again only while \
                 its access token lasts"
            );
        }
        // Some give a refresh token only at the first log-in.
        let before = kept.get(at).await?.map(|known| known.tokens);
        let is_better = before
            .is_some_and(|known| known.refresh.is_some() && known.authority == tokens.authority);
        let is_changed = if has_none && is_better {
            kept.vouch(at, Some(groups)).await?
        } else {
            kept.put(at, &tokens, groups).await?
        };
        if is_changed {
            self.snapshot.refresh_issued().await?;
        }
        Ok(())
    }

    /// The standing of a person, for which the provider is asked if its last word is old. All that ask at the same time are
    /// told the same: what is asked goes on without them, so that each would leave a task that looks at the database.
    pub(crate) async fn ask(&self, of: StandingOf) -> Result<Standing, database::Error> {
        if of.recheck.is_zero() {
            return Ok(Standing::Good(None));
        }
        let question = of.question();
        let (mut word, teller) = self.under_way.join(&question);
        if let Some(teller) = teller {
            let one = self.clone();
            self.tracker.spawn(async move {
                let told = one.wait(&of).await.map_err(Arc::new);
                one.under_way.end(&question, &teller, told);
            });
        }
        // A task that is gone has told nothing.
        let told = word.wait_for(Option::is_some).await.ok();
        let told = told.and_then(|told| told.clone());
        told.unwrap_or(Ok(Standing::Unknown))
            .map_err(|error| match &*error {
                database::Error::Unavailable(why) => database::Error::Unavailable(why.clone()),
                error => database::Error::Bug(error.to_string()),
            })
    }

    /// Reports whether tokens are kept that the provider gave of a person.
    pub(crate) async fn has_tokens(&self, of: &StandingOf) -> Result<bool, database::Error> {
        let found = self.identities()?.get(of.at()).await?;
        Ok(found.is_some_and(|known| known.tokens.authority == of.provider.authority()))
    }

    /// The access token that the provider gave of a person, refreshed if that is due, or if it is the one that the
    /// provider refused just now: by one replica at a time, which learns the provider's word on the way.
    pub(crate) async fn access_token(
        &self,
        of: &StandingOf,
        refused: Option<&Secret>,
    ) -> Result<HeldToken, database::Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.hold(of, refused).await? {
                Some(held) => return Ok(held),
                None if Instant::now() >= deadline => return Ok(HeldToken::Unknown),
                None => sleep(AGAIN).await,
            }
        }
    }

    /// None while another replica refreshes a token that has ended.
    async fn hold(
        &self,
        of: &StandingOf,
        refused: Option<&Secret>,
    ) -> Result<Option<HeldToken>, database::Error> {
        let (kept, now_ms) = (self.identities()?, self.clock.now_ms());
        let Some(mut known) = kept.get(of.at()).await? else {
            return Ok(Some(HeldToken::Gone));
        };
        if !of.is_askable(&known.tokens, now_ms) {
            return Ok(Some(HeldToken::Gone));
        }
        let has_come = |at_ms: Option<i64>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let access = known.tokens.access.clone();
        let is_over = has_come(known.tokens.expires_ms) || refused == Some(&access);
        let alive = (!is_over).then_some(HeldToken::Alive(access));
        if known.tokens.refresh.is_none() {
            return Ok(Some(alive.unwrap_or(HeldToken::Gone)));
        }
        if alive.is_some() && !has_come(known.tokens.refresh_ms()) {
            return Ok(alive);
        }
        let until_ms = now_ms + LEASE_MS;
        if !kept.lease(of.at(), &known, until_ms).await? {
            return Ok(alive);
        }
        match self.renew(kept, of, &mut known, until_ms).await? {
            Ok(Standing::Ended) => Ok(Some(HeldToken::Gone)),
            Ok(_) => {
                let renewed = kept.get(of.at()).await?;
                let renewed = renewed.map(|known| HeldToken::Alive(known.tokens.access));
                Ok(Some(renewed.unwrap_or(HeldToken::Gone)))
            }
            Err(error) => {
                self.wait_after(kept, (of, &known), &error).await?;
                Ok(Some(alive.unwrap_or(HeldToken::Unknown)))
            }
        }
    }

    /// The identities for a word with these groups, of which replicas may keep no more.
    fn told<'i>(
        &self,
        kept: Identities<'i>,
        of: &StandingOf,
        groups: Option<&[String]>,
    ) -> Identities<'i> {
        let catalog = self.snapshot.catalog();
        let known = catalog.issued.revoked.get(&of.tenant);
        let is_full = known
            .zip(groups)
            .is_some_and(|(known, groups)| !known.has_room(&of.subject, groups));
        Identities { is_full, ..kept }
    }

    async fn wait(&self, of: &StandingOf) -> Result<Standing, database::Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.attempt(of).await? {
                Some(standing) => return Ok(standing),
                None if Instant::now() >= deadline => return Ok(Standing::Unknown),
                None => sleep(AGAIN).await,
            }
        }
    }

    /// None while another replica asks.
    async fn attempt(&self, of: &StandingOf) -> Result<Option<Standing>, database::Error> {
        let (kept, now_ms) = (self.identities()?, self.clock.now_ms());
        let Some(mut known) = kept.get(of.at()).await? else {
            // The provider that vouched for the person is gone; or it was not to be asked again then.
            return Ok(Some(Standing::Ended));
        };
        let (age, recheck) = (now_ms.saturating_sub(known.checked_ms), millis(of.recheck));
        if age < recheck {
            return Ok(Some(Standing::Good(None)));
        }
        if !of.is_askable(&known.tokens, now_ms) {
            // A provider that gave nothing to ask it by is taken at its last word; that of another one says nothing.
            let is_of = known.tokens.authority == of.provider.authority();
            let standing = if is_of {
                Standing::Good(None)
            } else {
                Standing::Ended
            };
            return Ok(Some(standing));
        }
        // The last word holds for as long again, so that a provider that is away for a while ends nothing.
        let held = (age < recheck.saturating_mul(2)).then_some(Standing::Good(None));
        let until_ms = now_ms + LEASE_MS;
        if !kept.lease(of.at(), &known, until_ms).await? {
            return Ok(held);
        }
        match self.renew(kept, of, &mut known, until_ms).await? {
            Ok(standing) => Ok(Some(standing)),
            Err(error) => {
                self.wait_after(kept, (of, &known), &error).await?;
                Ok(Some(held.unwrap_or(Standing::Unknown)))
            }
        }
    }

    /// Lets the next attempt wait for a while after one that brought no word.
    async fn wait_after(
        &self,
        kept: Identities<'_>,
        (of, known): (&StandingOf, &Identity),
        error: &ProviderError,
    ) -> Result<(), database::Error> {
        warn(of, error);
        let again_ms = self.clock.now_ms() + BACKOFF_MS;
        let known = (known.version, known.is_unanswered());
        kept.end_lease(of.at(), known, again_ms).await
    }

    /// Asks the provider, under a lease until `until_ms`.
    async fn renew(
        &self,
        kept: Identities<'_>,
        of: &StandingOf,
        known: &mut Identity,
        until_ms: i64,
    ) -> Result<Result<Standing, ProviderError>, database::Error> {
        let provider = self.providers.of(&of.provider);
        let asked = provider.ask_again(&known.tokens, of.wanted).await;
        if let Some(given) = asked.tokens {
            let mut tokens = of.kept(given, self.clock.now_ms());
            // RFC 6749, section 6: without a new one the old one stays valid.
            tokens.refresh = tokens.refresh.or_else(|| known.tokens.refresh.clone());
            let renewed = self.replace((kept, of), known.version, tokens, until_ms);
            known.version = renewed.await?.unwrap_or(known.version);
        } else if asked.is_sent && asked.word.as_ref().is_err_and(ProviderError::may_pass) {
            known.leave_unanswered();
        }
        let version = known.version;
        let end = |why| self.end((kept, of), version, why, until_ms);
        let told = match asked.word {
            Err(ProviderError::Ended) if known.is_unanswered() => {
                return self.log_in_again(kept, of, version).await.map(Ok);
            }
            Err(ProviderError::Ended) => return end("ended there").await.map(Ok),
            Err(error) => return Ok(Err(error)),
            Ok(told) => told,
        };
        let mut groups = None;
        if let Some(told) = told {
            // OpenID Connect Core, section 12.2: the word is about another person.
            if Some(told.subject.as_str()) != of.provider.own_subject(&of.subject) {
                let what = "its answer is about another sub".to_owned();
                return Ok(Err(ProviderError::Invalid(what)));
            }
            let email = told.email.as_deref();
            let of_now = told.groups.as_deref().unwrap_or_default();
            if told.groups.is_some() && !of.provider.allow.admits(&told.subject, of_now, email) {
                return end("not admitted any more").await.map(Ok);
            }
            groups = told.groups;
        }
        let kept = self.told(kept, of, groups.as_deref());
        match kept.vouch_after(of.at(), known, groups.as_deref()).await? {
            // A log-in of just now said more.
            None => groups = None,
            Some(true) => self.snapshot.refresh_issued().await?,
            Some(false) => {}
        }
        Ok(Ok(Standing::Good(groups)))
    }

    /// Stores tokens in place of those of this version, which the provider may take no more. While the database is away,
    /// that goes on behind the caller's error until the end of the lease.
    async fn replace(
        &self,
        (kept, of): (Identities<'_>, &StandingOf),
        version: i64,
        tokens: Tokens,
        until_ms: i64,
    ) -> Result<Option<i64>, database::Error> {
        let renewed = kept.renew(of.at(), version, &tokens).await;
        if matches!(renewed, Err(database::Error::Unavailable(_))) {
            let (one, of) = (self.clone(), of.clone());
            let late = async move { one.replace_late(&of, version, &tokens, until_ms).await };
            self.tracker.spawn(late);
        }
        renewed
    }

    async fn replace_late(&self, of: &StandingOf, version: i64, tokens: &Tokens, until_ms: i64) {
        while self.clock.now_ms() < until_ms {
            sleep(REPEAT).await;
            if self.put_late(of, version, tokens).await.is_ok() {
                return;
            }
        }
        let (tenant, provider) = (&of.tenant, &of.provider.name);
        tracing::warn!(
            tenant.id = tenant,
            provider,
            "tokens of an identity provider could not be stored: the person may have to log in again"
        );
    }

    async fn put_late(
        &self,
        of: &StandingOf,
        version: i64,
        tokens: &Tokens,
    ) -> Result<(), database::Error> {
        let kept = self.identities()?;
        // Another version is of a log-in of meanwhile, or of a commit of before whose answer was lost.
        if let Some(version) = kept.renew(of.at(), version, tokens).await? {
            // Its word was lost, and is asked for by these.
            kept.end_lease(of.at(), (version, false), 0).await?;
        }
        Ok(())
    }

    /// Forgets tokens that the provider refuses, maybe because another request has used them up: that says nothing about
    /// the person, who loses nothing else.
    async fn log_in_again(
        &self,
        kept: Identities<'_>,
        of: &StandingOf,
        version: i64,
    ) -> Result<Standing, database::Error> {
        let author = author(of, "a request had no answer");
        // Another version is a log-in of just now.
        if !kept.remove(of.at(), version, &author).await? {
            return Ok(Standing::Good(None));
        }
        let (tenant, provider) = (&of.tenant, &of.provider.name);
        tracing::warn!(
            tenant.id = tenant,
            provider,
            "an identity provider refuses a refresh token after a request that had no answer: the person has to log in \
             again"
        );
        Ok(Standing::Ended)
    }

    /// Ends all that the person has here, unless another log-in came meanwhile. While the database is away, that goes on
    /// behind the caller's error until the end of the lease: the provider has answered, and the same answer to the next
    /// request would say less.
    async fn end(
        &self,
        (kept, of): (Identities<'_>, &StandingOf),
        version: i64,
        why: &str,
        until_ms: i64,
    ) -> Result<Standing, database::Error> {
        let author = author(of, why);
        let ended = kept.end(of.at(), version, &author).await;
        if matches!(ended, Err(database::Error::Unavailable(_))) {
            let (one, of) = (self.clone(), of.clone());
            let late = async move { one.end_late(&of, version, &author, until_ms).await };
            self.tracker.spawn(late);
        }
        // Another version is a log-in of just now.
        if !ended? {
            return Ok(Standing::Good(None));
        }
        self.snapshot.refresh_issued().await?;
        Ok(Standing::Ended)
    }

    async fn end_late(&self, of: &StandingOf, version: i64, author: &Author, until_ms: i64) {
        while self.clock.now_ms() < until_ms {
            sleep(REPEAT).await;
            let ended = match self.identities() {
                Ok(kept) => kept.end(of.at(), version, author).await,
                Err(failure) => Err(failure),
            };
            // Replicas learn of it as of every change.
            if ended.is_ok() {
                return;
            }
        }
        let (tenant, provider) = (&of.tenant, &of.provider.name);
        tracing::warn!(
            tenant.id = tenant,
            provider,
            "an identity provider lets a person in no more, which could not be stored"
        );
    }

    fn identities(&self) -> Result<Identities<'_>, database::Error> {
        Ok(self.snapshot.database()?.identities())
    }
}

/// The author of what a provider's word changes.
fn author(of: &StandingOf, why: &str) -> Author {
    let mut author = Author::named(ACTOR);
    let by = of.provider.name.as_str().into();
    author.detail.insert("by".to_owned(), by);
    author.detail.insert("why".to_owned(), why.into());
    author
}

fn warn(of: &StandingOf, error: &ProviderError) {
    let (tenant, provider) = (&of.tenant, &of.provider.name);
    tracing::warn!(
        tenant.id = tenant,
        provider,
        %error,
        "an identity provider cannot be asked about a person again"
    );
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The actor of what the gateway does by itself.
const ACTOR: &str = "provider";
/// The time that a request waits for the answer to another replica: as long as that may wait for metadata and tokens.
const PATIENCE: Duration = Duration::from_secs(12);
/// The time between two looks at it.
const AGAIN: Duration = Duration::from_millis(100);
/// The time for which one replica alone asks, in milliseconds: longer than its requests may take.
const LEASE_MS: i64 = 30_000;
/// The time between two attempts to store new tokens while the database is away.
const REPEAT: Duration = Duration::from_millis(250);
/// The time between two attempts at a provider that is away, in milliseconds.
const BACKOFF_MS: i64 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn question(subject: &str) -> Question {
        ["a", subject, "idp"].map(str::to_owned)
    }

    /// Each of them left a task, however soon its client had gone.
    #[test]
    fn all_that_ask_at_the_same_time_share_one_question() {
        let under_way = UnderWay::default();
        let (word, teller) = under_way.join(&question("ada"));
        let teller = teller.unwrap();
        drop(word);
        let (word, second) = under_way.join(&question("ada"));
        assert!(second.is_none(), "the first one that asked has gone");
        assert!(under_way.join(&question("eve")).1.is_some());
        under_way.end(&question("ada"), &teller, Ok(Standing::Ended));
        let told = word.borrow().clone();
        assert!(matches!(told, Some(Ok(Standing::Ended))));
        let (word, third) = under_way.join(&question("ada"));
        assert!(word.borrow().is_none(), "no word of before");
        drop(third);
        let (_, again) = under_way.join(&question("ada"));
        assert!(again.is_some(), "its task has gone");
    }
}
