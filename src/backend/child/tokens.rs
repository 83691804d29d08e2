//! Access tokens of a child: which it has, and newer ones in its private files.
//!
//! Not here: the requests for tokens (`oauth/upstreams`), and the loop that renews them (`renewal`).

use std::{
    collections::BTreeMap,
    fs, io,
    path::PathBuf,
    sync::{PoisonError, RwLock, RwLockWriteGuard},
};

use super::launcher::write_private;
use crate::{
    base::Secret,
    declare::{SlotForm, Slots, TokenFrom},
};

/// An access token of a person.
#[derive(Clone)]
pub(crate) struct AccessToken {
    /// The token.
    pub(crate) value: Secret,
    /// The number of its change; a higher one is newer.
    pub(crate) version: i64,
    /// The time to look at it again: it is refreshed then, or its status asked. None if it does not expire.
    pub(crate) look_ms: Option<i64>,
}

/// The private directory of a child.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PrivateFiles {
    /// The directory, which belongs to the child.
    pub(crate) dir: PathBuf,
    /// The uid of the child, if it has its own.
    pub(crate) uid: Option<u32>,
}

/// The access tokens of a child.
pub(super) struct ChildTokens(RwLock<Tokens>);

struct Tokens {
    by_origin: BTreeMap<TokenFrom, State>,
    /// Those of its present process: one that ends at the probe is replaced.
    files: Option<PrivateFiles>,
}

/// The access token of one origin.
#[derive(Default)]
struct State {
    /// The variables that have it, and their forms.
    variables: Vec<(String, SlotForm)>,
    /// The version that the child has; none before it starts.
    given: Option<i64>,
    /// The newest version that was announced.
    announced: i64,
    /// The time to look at it again.
    look_ms: Option<i64>,
    /// Not before this time, after a failure.
    retry_ms: i64,
}

impl ChildTokens {
    /// No tokens yet for the slots of a server.
    pub(super) fn new(slots: &Slots) -> Self {
        let mut by_origin: BTreeMap<TokenFrom, State> = BTreeMap::new();
        for (variable, slot) in slots {
            if let Some(from) = &slot.token {
                let state = by_origin.entry(from.clone()).or_default();
                state.variables.push((variable.clone(), slot.form));
            }
        }
        let files = None;
        Self(RwLock::new(Tokens { by_origin, files }))
    }

    pub(super) fn is_empty(&self) -> bool {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.by_origin.is_empty()
    }

    fn all(&self) -> RwLockWriteGuard<'_, Tokens> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the private directory.
    pub(super) fn keeps(&self, files: Option<PrivateFiles>) {
        self.all().files = files;
    }

    /// A newer token was announced, which may be before or after the child reads its own.
    pub(super) fn changed(&self, from: &TokenFrom, number: i64) {
        if let Some(state) = self.all().by_origin.get_mut(from) {
            state.announced = state.announced.max(number);
            state.retry_ms = 0;
        }
    }

    /// The origins whose token of a started child is an old one, or is to be looked at.
    pub(super) fn due(&self, now_ms: i64) -> Vec<TokenFrom> {
        let all = self.all();
        let due = all.by_origin.iter();
        let due = due.filter(|(_, state)| state.is_due(now_ms));
        due.map(|(from, _)| from.clone()).collect()
    }

    /// Records the token that a child is started with.
    pub(super) fn given(&self, from: &TokenFrom, token: &AccessToken) {
        if let Some(state) = self.all().by_origin.get_mut(from) {
            (state.given, state.look_ms) = (Some(token.version), token.look_ms);
        }
    }

    /// Writes a newer token into the files of the child; false if it has the token elsewhere, too, or the
    /// files cannot be written. For threads that may block.
    pub(super) fn renew(&self, from: &TokenFrom, token: &AccessToken) -> bool {
        let (variables, files) = {
            let all = self.all();
            let Some(state) = all.by_origin.get(from) else {
                return true;
            };
            let is_new = state.given.is_none_or(|given| given < token.version);
            let variables = is_new.then(|| state.variables.clone());
            (variables.unwrap_or_default(), all.files.clone())
        };
        // Without the lock, which the task of all renewals takes: a write may be slow.
        let is_written = rewrite(&variables, files.as_ref(), &token.value);
        let all = &mut *self.all();
        if all.files != files {
            // Of another process by now. If that was started with an old token it stays due.
            return true;
        }
        let state = all.by_origin.get_mut(from).filter(|_| is_written);
        // A process that is about to replace this one may have a newer token.
        if let Some(state) = state.filter(|state| state.given <= Some(token.version)) {
            (state.given, state.look_ms) = (Some(token.version), token.look_ms);
        }
        is_written
    }

    pub(super) fn retry(&self, from: &TokenFrom, at_ms: i64) {
        if let Some(state) = self.all().by_origin.get_mut(from) {
            state.retry_ms = at_ms;
        }
    }
}

impl State {
    fn is_due(&self, now_ms: i64) -> bool {
        let is_old = self.given.is_some_and(|given| given < self.announced);
        let is_looked_at =
            self.given.is_some() && self.look_ms.is_some_and(|at_ms| at_ms <= now_ms);
        (is_old || is_looked_at) && self.retry_ms <= now_ms
    }
}

/// Rewrites these variables with a token in the files of the child, if there are some; false if one of them is no file.
fn rewrite(variables: &[(String, SlotForm)], files: Option<&PrivateFiles>, value: &Secret) -> bool {
    if variables.is_empty() {
        return true;
    }
    let mut forms = variables.iter();
    let files = files.filter(|_| forms.all(|(_, form)| *form == SlotForm::File));
    let Some(files) = files else {
        return false;
    };
    let mut names = variables.iter().map(|(name, _)| name);
    let written = names.try_for_each(|name| files.rewrite(name, value));
    if let Err(error) = &written {
        tracing::info!(%error, "a child cannot get a new access token by its file");
    }
    written.is_ok()
}

impl PrivateFiles {
    /// Replaces the content of a file at once. The directory belongs to the child, which may have put links
    /// there: a new file follows none, and a rename replaces a link.
    fn rewrite(&self, name: &str, value: &Secret) -> io::Result<()> {
        let new = self
            .dir
            .join(format!(".{name}-{}", uuid::Uuid::new_v4().simple()));
        let written = write_private(&new, value.expose(), self.uid)
            .and_then(|()| fs::rename(&new, self.dir.join(name)));
        if written.is_err() {
            _ = fs::remove_file(&new);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::*;
    use crate::declare::{Holder, Slot};

    fn u() -> TokenFrom {
        TokenFrom::Upstream("u".to_owned())
    }

    fn tokens(form: SlotForm) -> ChildTokens {
        let slot = Slot {
            holder: Holder::Principal,
            form,
            token: Some(u()),
            title: None,
            help: None,
        };
        ChildTokens::new(&Slots::from([("T".to_owned(), slot)]))
    }

    fn token(version: i64) -> AccessToken {
        AccessToken {
            value: Secret::new(format!("token {version}")),
            version,
            look_ms: Some(version * 10),
        }
    }

    #[test]
    fn a_token_is_due_when_it_is_old_or_to_be_looked_at() {
        let tokens = tokens(SlotForm::Variable);
        // Announced before the child has read its own: not due, since it does not run.
        tokens.changed(&u(), 5);
        assert!(tokens.due(1_000).is_empty());
        tokens.given(&u(), &token(4));
        assert_eq!(tokens.due(0), [u()], "it was read before the change");
        tokens.given(&u(), &token(5));
        assert!(tokens.due(49).is_empty() && !tokens.due(50).is_empty());
        tokens.retry(&u(), 60);
        assert!(tokens.due(59).is_empty() && !tokens.due(60).is_empty());
        tokens.changed(&TokenFrom::Exchange("u".to_owned()), 9);
        assert!(tokens.due(0).is_empty(), "that is no origin of it");
    }

    #[test]
    fn a_file_is_replaced_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, victim) = (dir.path().join("T"), dir.path().join("victim"));
        fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, &file).unwrap();
        let tokens = tokens(SlotForm::File);
        tokens.given(&u(), &token(1));
        assert!(!tokens.renew(&u(), &token(2)), "it has no directory yet");
        tokens.keeps(Some(PrivateFiles {
            dir: dir.path().to_owned(),
            uid: None,
        }));
        assert!(tokens.renew(&u(), &token(2)));
        assert_eq!(fs::read_to_string(&file).unwrap(), "token 2");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// It was written where the files of the process before it had been, and the child was restarted.
    #[test]
    fn a_process_that_replaces_another_gets_the_token_in_its_own_files() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let tokens = tokens(SlotForm::File);
        for dir in &dirs {
            let (dir, uid) = (dir.path().to_owned(), None);
            tokens.keeps(Some(PrivateFiles { dir, uid }));
        }
        let [first, second] = dirs;
        first.close().unwrap();
        assert!(tokens.renew(&u(), &token(1)));
        let written = fs::read_to_string(second.path().join("T")).unwrap();
        assert_eq!(written, "token 1");
    }
}
