//! Opening of children: the eras that each server understands, and the probe for the modern one.
//!
//! Not here: the translation itself (`dialect`).

use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    admission::{Remembered, spec},
    child::{Child, ChildEvent},
    dialect::{KnownEra, Opening, PROBE, PROBE_WAIT, Translator, is_modern, push_probe},
};
use crate::{
    base::budget::LargeWork,
    declare::{Digest, Server, ServerEra},
    protocol::{Kind, Message},
};

/// The eras of launch specifications, as their children have shown them.
pub(super) struct Eras {
    /// By server and digest of each tenant.
    known: RwLock<Remembered<(String, Digest), Arc<KnownEra>>>,
    /// Ends the wait for answers.
    stop: CancellationToken,
}

/// The most launch specifications whose eras are known. Of others a child is asked again.
const MOST: usize = 16_384;

/// What became of a probe.
pub(super) enum Probed {
    /// The child can be spoken to.
    Ready(Child),
    /// The child ended at the probe: another one is started without it.
    Upset(Child),
}

impl Eras {
    /// Nothing known; answers are awaited until `stop`.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self {
            known: RwLock::new(Remembered::new(MOST)),
            stop,
        }
    }

    fn of(&self, server: &Server) -> Arc<KnownEra> {
        let (tenant, name, digest) = spec(server);
        let key = (name, digest);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(era) = known.get(&tenant, &key) {
            return Arc::clone(era);
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(era) = known.get(&tenant, &key) {
            return Arc::clone(era);
        }
        let era = Arc::<KnownEra>::default();
        known.insert(&tenant, key, Arc::clone(&era));
        era
    }

    /// Whether children of a server have to be probed for such a client: it is not known whether they
    /// understand the modern era.
    pub(super) fn is_unknown(&self, server: &Server, is_modern: bool) -> bool {
        let is_probed = is_modern && server.era == ServerEra::Auto;
        is_probed && self.of(server).modern.get().is_none()
    }

    /// Remembers that a child of a server has ended at the probe: it counts as none of the modern era, so that the next
    /// one is not probed.
    pub(super) fn upset(&self, server: &Server) {
        self.of(server).modern.set(Some(false));
    }

    /// Opens a child of a server for a session, which `is_modern` if its client is: then a child of which it
    /// is not known whether it is a modern one, too, is probed.
    pub(super) async fn open(&self, mut child: Child, server: &Server, is_modern: bool) -> Probed {
        let known = self.of(server);
        let opening = match (server.era, is_modern) {
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
                None => match self.probe(&mut child, &server.tenant).await {
                    Answer::None => Opening::Undecided,
                    Answer::Ended => return Probed::Upset(child),
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
        let sessions = (is_modern, server.supervision.isolation);
        let translator = Translator::new(&server.tenant, opening, sessions, known);
        child.translate_by(translator.within(server.clocks.start));
        Probed::Ready(child)
    }

    /// Asks a child which era it understands (2026-07-28 stdio, "Backward Compatibility"). One that needs longer for
    /// the answer gets `initialize` as well, and its first answer decides.
    async fn probe(&self, child: &mut Child, tenant: &str) -> Answer {
        push_probe(child.out());
        child.try_flush();
        let mut others: Vec<Bytes> = Vec::new();
        let answer = self
            .stop
            .run_until_cancelled(answer(child, tenant, &mut others));
        let answer = timeout(PROBE_WAIT, answer).await;
        child.unread(others);
        answer.ok().flatten().unwrap_or(Answer::None)
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

/// Waits for the answer, and keeps other lines for the owner of the child.
async fn answer(child: &mut Child, tenant: &str, others: &mut Vec<Bytes>) -> Answer {
    let mut kept = 0;
    loop {
        let line = match child.next().await {
            ChildEvent::Line(line) => line,
            ChildEvent::Translated => continue,
            ChildEvent::TooLong | ChildEvent::Closed | ChildEvent::Exited(_) => {
                return Answer::Ended;
            }
        };
        // Also what an empty line takes.
        kept += line.len() + size_of::<Bytes>();
        // Without a wait: the session that the child is for may leave this alone for a while.
        let work = LargeWork::at_once(tenant, line.len());
        let read = work.run(|| {
            let message = Message::parse_line(line)?;
            let is_response = matches!(message.kind(), Kind::Result | Kind::Error);
            let is_answer = is_response && message.id() == Some(PROBE);
            let era = is_answer.then(|| is_modern(&message));
            Ok::<_, Bytes>((message, era))
        });
        match read {
            Ok((_, Some(is_modern))) => return Answer::Era(is_modern),
            Ok((message, None)) => others.push(message.bytes().clone()),
            Err(line) => others.push(line),
        }
        if kept > MOST_KEPT {
            return Answer::None;
        }
    }
}

/// Bytes of other lines after which the answer is no longer waited for.
const MOST_KEPT: usize = 64 << 10;
