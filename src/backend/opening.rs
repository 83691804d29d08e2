//! Opening of children: the eras that each server understands, and the probe for the modern one.
//!
//! Not here: the translation itself (`dialect`).

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::timeout;

use super::{
    admission::Spec,
    child::{Child, ChildEvent},
    dialect::{KnownEra, Opening, PROBE, Translator, is_modern, push_probe},
};
use crate::{
    declare::ServerEra,
    protocol::{Kind, Message},
};

/// The eras of launch specifications, as their children have shown them.
#[derive(Default)]
pub(super) struct Eras(RwLock<HashMap<Spec, Arc<KnownEra>>>);

/// The most launch specifications whose eras are known. Of others a child is asked again.
const MOST: usize = 16_384;

/// The time for the answer to a probe. A server that needs longer gets `initialize` as well, and its first
/// answer decides.
const WAIT: Duration = Duration::from_secs(3);

/// What became of a probe.
pub(super) enum Probed {
    /// The child can be spoken to.
    Ready(Child),
    /// The child has ended of it: another one is started without a probe.
    Upset(Child),
}

impl Eras {
    fn of(&self, spec: &Spec) -> Arc<KnownEra> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(spec) {
            return Arc::clone(known);
        }
        drop(known);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST && !known.contains_key(spec) {
            known.clear();
        }
        Arc::clone(known.entry(spec.clone()).or_default())
    }

    /// Opens a child of this specification for a session, which `is_modern` if its client is: then a child of
    /// which it is not known whether it is a modern one, too, is probed. `is_upset` if another one has ended of
    /// that.
    pub(super) async fn open(
        &self,
        mut child: Child,
        spec: &Spec,
        era: ServerEra,
        (is_modern, is_upset): (bool, bool),
    ) -> Probed {
        let known = self.of(spec);
        let opening = match (era, is_modern) {
            (ServerEra::Legacy, _) => return Probed::Ready(child),
            (ServerEra::Modern, _) => Opening::ModernOnly,
            // A session speaks to a server as its client does, if both can: nothing is translated then.
            (ServerEra::Auto, false) => match (known.legacy.get(), known.modern.get()) {
                (Some(false), Some(true)) => Opening::Modern,
                _ => Opening::Legacy,
            },
            (ServerEra::Auto, true) => match known.modern.get() {
                Some(true) => Opening::Modern,
                Some(false) => Opening::Legacy,
                None => match probe(&mut child).await {
                    Answer::None => Opening::Undecided,
                    Answer::Ended if !is_upset => {
                        known.modern.set(Some(false));
                        return Probed::Upset(child);
                    }
                    Answer::Ended => Opening::Legacy,
                    Answer::Era(is_modern) => {
                        known.modern.set(Some(is_modern));
                        if is_modern {
                            Opening::Modern
                        } else {
                            Opening::Legacy
                        }
                    }
                },
            },
        };
        child.translate_by(Translator::new(opening, is_modern, known));
        Probed::Ready(child)
    }
}

/// The answer to a probe.
enum Answer {
    /// Whether it is a modern server.
    Era(bool),
    /// None in time.
    None,
    /// The child has ended, or will say nothing more.
    Ended,
}

/// Asks a child which era it understands (2026-07-28 stdio, "Backward Compatibility").
async fn probe(child: &mut Child) -> Answer {
    push_probe(child.out());
    child.try_flush();
    let mut others: Vec<Bytes> = Vec::new();
    let answer = timeout(WAIT, answer(child, &mut others)).await;
    child.unread(others);
    answer.unwrap_or(Answer::None)
}

/// Waits for the answer, and keeps other lines for the owner of the child.
async fn answer(child: &mut Child, others: &mut Vec<Bytes>) -> Answer {
    loop {
        let line = match child.next().await {
            ChildEvent::Line(line) => line,
            ChildEvent::TooLong | ChildEvent::Closed | ChildEvent::Exited(_) => {
                return Answer::Ended;
            }
        };
        match Message::parse_line(line) {
            Ok(message)
                if message.id() == Some(PROBE)
                    && matches!(message.kind(), Kind::Result | Kind::Error) =>
            {
                return Answer::Era(is_modern(&message));
            }
            Ok(message) => others.push(message.bytes().clone()),
            Err(line) => others.push(line),
        }
        if others.iter().map(Bytes::len).sum::<usize>() > MOST_KEPT {
            return Answer::None;
        }
    }
}

/// Bytes of other lines after which the answer is no longer waited for.
const MOST_KEPT: usize = 64 << 10;
