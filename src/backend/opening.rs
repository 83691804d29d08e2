//! Opening of children: the era of each server, and the probe for it.
//!
//! Not here: the translation itself (`dialect`).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::timeout;

use super::{
    admission::Spec,
    child::{Child, ChildEvent},
    dialect::{Era, KnownEra, Opening, PROBE, Translator, era_of, push_probe},
};
use crate::{
    declare::ServerEra,
    protocol::{Kind, Message},
};

/// The eras of launch specifications, as their children have shown them.
#[derive(Default)]
pub(super) struct Eras(Mutex<HashMap<Spec, Arc<KnownEra>>>);

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
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST && !known.contains_key(spec) {
            known.clear();
        }
        Arc::clone(known.entry(spec.clone()).or_default())
    }

    /// Opens a child of this specification for a session, which `is_modern` if its client is; a child whose
    /// era is not known is probed, unless another one has ended of that (`is_upset`).
    pub(super) async fn open(
        &self,
        mut child: Child,
        spec: &Spec,
        era: ServerEra,
        (is_modern, is_upset): (bool, bool),
    ) -> Probed {
        let known = self.of(spec);
        let opening = match (era, known.get()) {
            (ServerEra::Legacy, _) => return Probed::Ready(child),
            (ServerEra::Modern, _) => Opening::ModernOnly,
            (ServerEra::Auto, Some(Era::Modern)) => Opening::Modern,
            // A session gets the revision that its client speaks, so that nothing is translated.
            (ServerEra::Auto, Some(Era::Dual)) if is_modern => Opening::Modern,
            (ServerEra::Auto, Some(Era::Legacy | Era::Dual)) => Opening::Legacy,
            (ServerEra::Auto, None) if is_upset => Opening::Legacy,
            (ServerEra::Auto, None) => match probe(&mut child).await {
                Answer::None => Opening::Undecided,
                Answer::Ended => return Probed::Upset(child),
                Answer::Era(era) => {
                    known.set(Some(era));
                    match era {
                        Era::Modern => Opening::Modern,
                        Era::Dual if is_modern => Opening::Modern,
                        Era::Dual | Era::Legacy => Opening::Legacy,
                    }
                }
            },
        };
        child.translate_by(Translator::new(opening, is_modern, known));
        Probed::Ready(child)
    }
}

/// The answer to a probe.
enum Answer {
    Era(Era),
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
                return Answer::Era(era_of(&message));
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
