//! API keys: generation, syntax and lookup, and the callers with keys that people made for themselves.
//!
//! A key is `lgk_`, 43 random letters and digits (256 bits), and a checksum of 6. The prefix lets
//! scanners find leaked keys, and the checksum spares the lookup of mistyped ones. Only the SHA-256 of
//! the whole text is stored: that suffices for a random secret, and a lookup by it leaks nothing
//! through timing.

use std::{
    sync::{
        Arc, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use aws_lc_rs::{error::Unspecified, rand::SecureRandom};
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{builtin::Groups, principals::Principal};
use crate::base::{Table, hex, sha256};
use crate::database::oauth::OwnKeyAt;
use crate::declare::{ApiKey, Builtin, Issued, OwnKey, Servers, Subject, Tenant};
use crate::error::Error;
use crate::snapshot::CurrentSnapshot;

/// Generates a key; its text is shown once and not stored.
pub(crate) fn generate(random: &dyn SecureRandom) -> Result<String, Unspecified> {
    let mut text = PREFIX.to_owned();
    let mut bytes = [0; 64];
    while text.len() < PREFIX.len() + RANDOM {
        random.fill(&mut bytes)?;
        // Bytes above the last multiple of 62 would favour the first letters.
        let unbiased = bytes.iter().filter(|byte| usize::from(**byte) < 62 * 4);
        let letters = unbiased.map(|byte| char::from(LETTERS[usize::from(*byte) % 62]));
        text.extend(letters.take(PREFIX.len() + RANDOM - text.len()));
    }
    let sum = checksum(&text);
    Ok(text + &sum)
}

/// The digest of a key, as manifests contain it.
pub(crate) fn fingerprint(key: &str) -> String {
    format!("sha256:{}", hex(&sha256(key.as_bytes())))
}

/// Reports whether a credential has the prefix of API keys, valid or not.
pub(super) fn has_prefix(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// The digest to look the key `text` up by; none if it cannot be a key.
pub(super) fn digest(text: &str) -> Option<[u8; 32]> {
    // Without the checksum, which is a hash of its own: whoever has a declared key has typed it well.
    has_length(text).then(|| sha256(text.as_bytes()))
}

/// The key of this tenant with the digest `hash`, if it is valid at `now`.
pub(super) fn find(tenant: &Tenant, hash: [u8; 32], now: u64) -> Option<([u8; 32], Arc<ApiKey>)> {
    let key = tenant.api_keys.get(&hash)?;
    // No leeway: operator and gateway use the same clock.
    let is_valid = key.expires.is_none_or(|expires| now < expires);
    is_valid.then(|| (hash, Arc::clone(key)))
}

/// The key with this hash that a person made, with the groups that the person has now, if they may come in and the
/// tenant lets people have keys. Its end is not checked.
pub(super) fn own(
    issued: &Issued,
    (tenant, builtin): (&Tenant, &Builtin),
    hash: &[u8; 32],
) -> Option<(Arc<OwnKey>, Groups)> {
    builtin.own_keys?;
    let key = issued.own_keys.get(&tenant.name)?.get(hash)?;
    let groups = match builtin.subject(&key.subject, &key.groups).ok()? {
        Subject::User(user) => Groups::Declared(user),
        Subject::OfProvider => Groups::Claimed(Arc::clone(&key.groups)),
        Subject::Machine => return None,
    };
    Some((Arc::clone(key), groups))
}

/// An API key that a caller has.
pub(super) enum PresentedKey {
    /// One that is declared, which grants may name.
    Declared(Arc<ApiKey>),
    /// One that its person made: only the person counts.
    Own(Arc<OwnKey>),
}

impl PresentedKey {
    /// The servers that it is for.
    pub(super) fn servers(&self) -> &Servers {
        match self {
            Self::Declared(key) => &key.servers,
            Self::Own(key) => &key.servers,
        }
    }

    /// Reports whether it ends with time: those that people make always do.
    pub(super) fn has_end(&self) -> bool {
        match self {
            Self::Declared(key) => key.expires.is_some(),
            Self::Own(_) => true,
        }
    }

    /// Reports whether its person made it.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// The standing of people at their identity providers.
pub(crate) trait People: Send + Sync {
    /// The standing of a person of a tenant. The provider is asked, if its last word is old.
    fn standing<'p>(
        &'p self,
        tenant: &'p Tenant,
        builtin: &'p Builtin,
        subject: &'p str,
    ) -> BoxFuture<'p, PersonStanding>;
}

/// The standing of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PersonStanding {
    /// The person may come in.
    Good,
    /// The provider lets the person in no more, or the person has to log in again.
    Ended,
    /// The provider does not answer, and its last word is too old.
    Unknown,
    /// The database, which has its last word, does not answer.
    NoStore,
}

/// Callers with keys that people made. They are read on every request with such a key, never locked across an await.
pub(super) struct OwnKeyCallers {
    known: RwLock<Table<[u8; 32], Arc<OwnKeyCaller>>>,
    snapshot: Arc<CurrentSnapshot>,
    people: OnceLock<Arc<dyn People>>,
    uses: mpsc::Sender<Use>,
}

/// The caller with a value of a key, as long as the key does not change.
struct OwnKeyCaller {
    /// The reference is weak: nothing takes out a removed or rotated key before all are cleared, and a key may have many
    /// groups, scopes and servers.
    key: Weak<OwnKey>,
    principal: Principal,
    /// One request asks about the person; the others wait for it.
    turn: Semaphore,
    /// The time of the last good word about the person, in milliseconds since 1970.
    word_ms: AtomicI64,
    /// Until then it is not asked for again.
    good_ms: AtomicI64,
    /// Until then a failure is not tried again.
    failed_ms: AtomicI64,
    /// Until then the person, who was let in no more, is not looked up again.
    ended_ms: AtomicI64,
    /// The hour of the last use that was told.
    hour_ms: AtomicI64,
}

/// The use of a key in an hour.
struct Use {
    principal: Principal,
    hour_ms: i64,
}

impl OwnKeyCallers {
    /// Nobody yet. The task that notes uses belongs to `tracker` and ends at `stop`.
    pub(super) fn new(
        snapshot: &Arc<CurrentSnapshot>,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (uses, told) = mpsc::channel(USES);
        let noting = note(told, Arc::clone(snapshot));
        tracker.spawn(stop.clone().run_until_cancelled_owned(noting));
        Self {
            known: RwLock::default(),
            snapshot: Arc::clone(snapshot),
            people: OnceLock::new(),
            uses,
        }
    }

    /// Sets who is asked about people.
    pub(super) fn ask(&self, people: Arc<dyn People>) {
        // Nobody is asked before all is wired, and there is one authorization server.
        let _ = self.people.set(people);
    }

    /// The caller with the key of this hash; none if it is not known, or not good now. `issuer` names the principal.
    pub(super) async fn find(
        &self,
        issued: &Issued,
        (tenant, builtin): (&Tenant, &Builtin),
        hash: [u8; 32],
        issuer: impl Fn() -> String,
    ) -> Result<Option<(Principal, Arc<OwnKey>, Groups)>, Error> {
        let good = |issued: &Issued| {
            let (key, groups) = own(issued, (tenant, builtin), &hash)?;
            let is_good = key.holds(&hash, builtin.own_keys.as_ref()?, self.now_ms());
            is_good.then_some((key, groups))
        };
        let Some((mut key, mut groups)) = good(issued) else {
            return Ok(None);
        };
        let caller = self.caller(tenant, hash, &key, issuer);
        let is_asked = !builtin.recheck.is_zero() && builtin.provider_of(&key.subject).is_some();
        if is_asked && self.now_ms() >= caller.good_ms.load(Ordering::Acquire) {
            if !self.ask_about(tenant, builtin, &caller).await? {
                return Ok(None);
            }
            // The provider may have told other groups.
            let Some(now) = good(&self.snapshot.catalog().issued) else {
                return Ok(None);
            };
            (key, groups) = now;
        }
        self.note_use(&caller);
        Ok(Some((caller.principal.clone(), key, groups)))
    }

    fn caller(
        &self,
        tenant: &Tenant,
        hash: [u8; 32],
        key: &Arc<OwnKey>,
        issuer: impl Fn() -> String,
    ) -> Arc<OwnKeyCaller> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&hash).map(Arc::clone);
        drop(known);
        let is_of = |caller: &Arc<OwnKeyCaller>| caller.principal.tenant() == tenant.name;
        let found = found.filter(is_of);
        // The key's address is no other's as long as there is the weak reference.
        let is_same = |one: &&Arc<OwnKeyCaller>| std::ptr::eq(one.key.as_ptr(), Arc::as_ptr(key));
        if let Some(caller) = found.as_ref().filter(is_same) {
            return Arc::clone(caller);
        }
        let (subject, name) = (Some(key.subject.as_str()), Some(key.name.as_str()));
        let hour_ms = found.map_or(0, |before| before.hour_ms.load(Ordering::Acquire));
        let new = Arc::new(OwnKeyCaller {
            key: Arc::downgrade(key),
            principal: Principal::new(&tenant.name, Some(&issuer()), subject, name),
            turn: Semaphore::new(1),
            word_ms: AtomicI64::new(0),
            good_ms: AtomicI64::new(0),
            failed_ms: AtomicI64::new(0),
            ended_ms: AtomicI64::new(0),
            hour_ms: AtomicI64::new(hour_ms),
        });
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CALLERS {
            known.clear();
        }
        known.insert(hash, Arc::clone(&new));
        new
    }

    /// Asks about the person of a key, as a refresh of a token does; false if they may not come in any more.
    async fn ask_about(
        &self,
        tenant: &Tenant,
        builtin: &Builtin,
        caller: &OwnKeyCaller,
    ) -> Result<bool, Error> {
        // No line for a key of nobody: each request would wait for those before it.
        if self.now_ms() < caller.ended_ms.load(Ordering::Acquire) {
            return Ok(false);
        }
        let _turn = caller.turn.acquire().await;
        let now_ms = self.now_ms();
        if now_ms < caller.good_ms.load(Ordering::Acquire) {
            return Ok(true);
        }
        if now_ms < caller.ended_ms.load(Ordering::Acquire) {
            return Ok(false);
        }
        if now_ms < caller.failed_ms.load(Ordering::Acquire) {
            return Err(UNASKED);
        }
        let subject = caller.principal.subject().unwrap_or_default();
        let standing = match self.people.get() {
            Some(people) => people.standing(tenant, builtin, subject).await,
            None => PersonStanding::NoStore,
        };
        let now_ms = self.now_ms();
        let word_ms = caller.word_ms.load(Ordering::Acquire);
        match standing {
            PersonStanding::Good => {
                let held = builtin.recheck.min(HELD);
                caller.word_ms.store(now_ms, Ordering::Release);
                caller
                    .good_ms
                    .store(now_ms + millis(held), Ordering::Release);
                Ok(true)
            }
            PersonStanding::Ended => {
                let again_ms = now_ms + millis(AGAIN);
                caller.ended_ms.store(again_ms, Ordering::Release);
                // No word before this one lets anybody in again once the database is away.
                caller.word_ms.store(0, Ordering::Release);
                Ok(false)
            }
            // As access tokens, which nobody asks about until they end.
            PersonStanding::NoStore if now_ms - word_ms < millis(WITHOUT_STORE) => {
                caller
                    .good_ms
                    .store(now_ms + millis(AGAIN), Ordering::Release);
                Ok(true)
            }
            PersonStanding::Unknown | PersonStanding::NoStore => {
                caller
                    .failed_ms
                    .store(now_ms + millis(AGAIN), Ordering::Release);
                Err(UNASKED)
            }
        }
    }

    /// Tells the first use of an hour. Where too many are under way, the next request tells it.
    fn note_use(&self, caller: &OwnKeyCaller) {
        let now_ms = self.now_ms();
        let hour_ms = now_ms - now_ms.rem_euclid(HOUR_MS);
        let before_ms = caller.hour_ms.swap(hour_ms, Ordering::AcqRel);
        if before_ms == hour_ms {
            return;
        }
        let used = self.uses.try_reserve().map(|place| {
            place.send(Use {
                principal: caller.principal.clone(),
                hour_ms,
            });
        });
        if used.is_err() {
            caller.hour_ms.store(before_ms, Ordering::Release);
        }
    }

    fn now_ms(&self) -> i64 {
        self.snapshot.clock().now_ms()
    }
}

/// Writes uses of keys, one after the other.
async fn note(mut told: mpsc::Receiver<Use>, snapshot: Arc<CurrentSnapshot>) {
    while let Some(used) = told.recv().await {
        let Ok(database) = snapshot.database() else {
            continue;
        };
        let at = OwnKeyAt {
            tenant: used.principal.tenant(),
            name: used.principal.client().unwrap_or_default(),
            subject: used.principal.subject(),
        };
        if let Err(failure) = database.own_keys().note_use(at, used.hour_ms).await {
            tracing::debug!(%failure, "the use of an API key is not noted");
        }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The digest of a well-formed key.
pub(crate) fn hash_of(text: &str) -> Option<[u8; 32]> {
    is_well_formed(text).then(|| sha256(text.as_bytes()))
}

fn is_well_formed(text: &str) -> bool {
    let is_whole = has_length(text) && text.is_ascii();
    let Some((body, sum)) = is_whole.then(|| text.split_at(PREFIX.len() + RANDOM)) else {
        return false;
    };
    let random = body.strip_prefix(PREFIX);
    let is_letters = |random: &str| random.bytes().all(|byte| byte.is_ascii_alphanumeric());
    random.is_some_and(is_letters) && checksum(body) == sum
}

fn has_length(text: &str) -> bool {
    text.len() == PREFIX.len() + RANDOM + SUM && has_prefix(text)
}

fn checksum(body: &str) -> String {
    let digest = sha256(body.as_bytes());
    let mut number = digest[..4]
        .iter()
        .fold(0_usize, |number, byte| number << 8 | usize::from(*byte));
    let mut sum = [b'0'; SUM];
    for letter in sum.iter_mut().rev() {
        *letter = LETTERS[number % 62];
        number /= 62;
    }
    sum.map(char::from).iter().collect()
}

/// The longest time for which a good word about a person is not looked at again.
const HELD: Duration = Duration::from_mins(1);
/// The longest time for which the last good word counts while the database is away: the life of access tokens.
const WITHOUT_STORE: Duration = Duration::from_mins(15);
/// The time between two attempts to hear about a person, and between two looks at one who is let in no more: a log-in is
/// noticed as late.
const AGAIN: Duration = Duration::from_secs(5);
/// Nothing can be said about the person of a key now.
const UNASKED: Error = Error::Busy {
    what: "the identity provider has to be asked about the person of the key, and does not answer",
    retry: AGAIN,
};
/// An hour, in milliseconds: uses are noted once in each.
const HOUR_MS: i64 = 3600 * 1000;
/// The most uses that wait to be noted.
const USES: usize = 1024;
/// The most callers in memory: about 500 bytes each.
const CALLERS: usize = 100_000;
/// The prefix of every key.
const PREFIX: &str = "lgk_";
/// 62^43 is more than 2^256.
const RANDOM: usize = 43;
/// 62^6 is more than 2^32.
const SUM: usize = 6;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aws_lc_rs::rand::SystemRandom;

    use super::*;
    use crate::{config::Format, declare::AuthMode, manifest::reader::parse};

    #[test]
    fn mistyped_keys_are_not_recognised() {
        let key = generate(&SystemRandom::new()).unwrap();
        assert_ne!(key, generate(&SystemRandom::new()).unwrap());
        assert_eq!(key.len(), 53);
        assert!(has_prefix(&key) && is_well_formed(&key));
        for at in 0..key.len() {
            let mut typed = key.clone().into_bytes();
            typed[at] = if typed[at] == b'x' { b'y' } else { b'x' };
            assert!(
                !is_well_formed(std::str::from_utf8(&typed).unwrap()),
                "{at}"
            );
            let mut short = key.clone();
            short.remove(at);
            assert!(!is_well_formed(&short));
        }
        for odd in ["", "lgk_", "lgk_é", &"é".repeat(53), &format!("{key}0")] {
            assert!(!is_well_formed(odd), "{odd}");
        }
    }

    fn tenant(auth: &str) -> Arc<Tenant> {
        let text = format!(
            "tenants: {{a: {{auth: {{{auth}}}, users: {{ada: {{groups: [eng]}}, bob: {{disabled: true}}}}}}}}"
        );
        let read = parse("F", &text, Format::Yaml, &BTreeMap::new()).unwrap();
        Arc::clone(&read.catalog.tenants["a"])
    }

    fn of(tenant: &Tenant, subject: &str) -> Option<Vec<String>> {
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            panic!("{:?}", tenant.auth)
        };
        let key = OwnKey {
            name: "k_1".to_owned(),
            subject: subject.to_owned(),
            groups: vec!["old".to_owned()].into(),
            scopes: Arc::default(),
            servers: Servers::All,
            hash: [1; 32],
            previous: None,
            since_ms: 0,
            expires_ms: 1,
        };
        let mut issued = Issued::default();
        let keys = [([1; 32], Arc::new(key))].into_iter().collect();
        issued.own_keys.insert("a".to_owned(), Arc::new(keys));
        assert!(own(&issued, (tenant, builtin), &[2; 32]).is_none());
        let (_, groups) = own(&issued, (tenant, builtin), &[1; 32])?;
        Some(groups.to_vec())
    }

    #[test]
    fn own_keys_are_worth_their_person() {
        let allowed = tenant("own_keys: {}");
        assert_eq!(of(&allowed, "ada"), Some(vec!["eng".to_owned()]));
        for nobody in ["bob", "eve", "client#ada", "https://idp.test#ada"] {
            assert_eq!(of(&allowed, nobody), None, "{nobody}");
        }
        assert_eq!(of(&tenant("mode: builtin"), "ada"), None);
    }

    /// A database that is asked about people: what it says, in turn, and at last that all are gone.
    #[derive(Default)]
    struct Gone(std::sync::atomic::AtomicUsize, &'static [PersonStanding]);

    impl People for Gone {
        fn standing<'p>(
            &'p self,
            _: &'p Tenant,
            _: &'p Builtin,
            _: &'p str,
        ) -> BoxFuture<'p, PersonStanding> {
            let at = self.0.fetch_add(1, Ordering::Relaxed);
            let said = self.1.get(at).copied();
            Box::pin(std::future::ready(said.unwrap_or(PersonStanding::Ended)))
        }
    }

    /// A tenant that asks about its people, and the key of one of them.
    fn of_a_provider() -> (Arc<Tenant>, OwnKey, Arc<CurrentSnapshot>) {
        let text = "tenants: {a: {auth: {own_keys: {}, recheck: 10m}, providers: {corp: {issuer: \"https://corp.test\", \
            client_id: us, allow: {domains: [corp.test]}}}}}";
        let read = parse("F", text, Format::Yaml, &BTreeMap::new()).unwrap();
        let tenant = Arc::clone(&read.catalog.tenants["a"]);
        let key = OwnKey {
            name: "k_1".to_owned(),
            subject: "https://corp.test#ada".to_owned(),
            groups: Arc::default(),
            scopes: Arc::default(),
            servers: Servers::All,
            hash: [1; 32],
            previous: None,
            since_ms: i64::MAX / 2,
            expires_ms: i64::MAX,
        };
        let snapshot = CurrentSnapshot::fixed(read.catalog);
        (tenant, key, snapshot)
    }

    /// With the database away, the word before the last one let people in again who were gone.
    #[tokio::test]
    async fn no_word_before_the_end_lets_anybody_in() {
        const SAID: [PersonStanding; 3] = [
            PersonStanding::Good,
            PersonStanding::Ended,
            PersonStanding::NoStore,
        ];
        let (tenant, key, snapshot) = of_a_provider();
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            panic!("{:?}", tenant.auth)
        };
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let callers = OwnKeyCallers::new(&snapshot, &tracker, &stop);
        callers.ask(Arc::new(Gone(0.into(), &SAID)));
        let issuer = || "https://us.test".to_owned();
        let caller = callers.caller(&tenant, [1; 32], &Arc::new(key), issuer);
        let mut are_in = Vec::new();
        for _ in SAID {
            are_in.push(callers.ask_about(&tenant, builtin, &caller).await.ok());
            // Some seconds later.
            for until in [&caller.good_ms, &caller.ended_ms] {
                until.store(0, Ordering::Relaxed);
            }
        }
        assert_eq!(are_in, [Some(true), Some(false), None]);
        stop.cancel();
    }

    /// Each request with such a key was a query, one after the other.
    #[tokio::test]
    async fn a_key_of_a_person_who_is_gone_asks_the_database_seldom() {
        let (tenant, key, snapshot) = of_a_provider();
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            panic!("{:?}", tenant.auth)
        };
        let mut issued = Issued::default();
        let keys = [([1; 32], Arc::new(key))].into_iter().collect();
        issued.own_keys.insert("a".to_owned(), Arc::new(keys));
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let (callers, gone) = (
            OwnKeyCallers::new(&snapshot, &tracker, &stop),
            Arc::new(Gone::default()),
        );
        callers.ask(gone.clone());
        for _ in 0..9 {
            let issuer = || "https://us.test".to_owned();
            let found = callers.find(&issued, (&tenant, builtin), [1; 32], issuer);
            assert!(found.await.unwrap().is_none());
        }
        assert_eq!(gone.0.load(Ordering::Relaxed), 1);
        stop.cancel();
    }

    /// Rotated and removed keys stayed with all their groups and scopes: 100,000 of them.
    #[tokio::test]
    async fn no_removed_key_of_a_person_is_kept() {
        let (tenant, key, snapshot) = of_a_provider();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let callers = OwnKeyCallers::new(&snapshot, &tracker, &stop);
        let of = |key: &Arc<OwnKey>| {
            let issuer = || "https://us.test".to_owned();
            callers.caller(&tenant, [1; 32], key, issuer)
        };
        let (key, other) = (Arc::new(key.clone()), Arc::new(key));
        let first = of(&key);
        assert!(Arc::ptr_eq(&first, &of(&key)));
        assert!(!Arc::ptr_eq(&first, &of(&other)), "the key was changed");
        let removed = [Arc::downgrade(&key), Arc::downgrade(&other)];
        callers.note_use(&first);
        drop((key, other));
        assert!(removed.iter().all(|key| key.upgrade().is_none()));
        stop.cancel();
    }

    #[test]
    fn the_key_format_is_stable() {
        let body = format!("lgk_{}", "0".repeat(43));
        let key = format!("{body}{}", checksum(&body));
        assert_eq!(key, "lgk_00000000000000000000000000000000000000000003RK6Ff");
        let hash = "6f3a9bf15e0ac46ecf437da43d790abade71140e4a45a4d891c3f61a2b27c709";
        assert_eq!(fingerprint(&key), format!("sha256:{hash}"));
    }
}
