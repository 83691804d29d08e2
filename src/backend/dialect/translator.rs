//! Translator between a child and its owner, which speaks to it as to a session-based server.
//!
//! It goes as soon as the child has shown that it is one, and stays if it is none.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::{Instant, Sleep, sleep_until};

use super::era::{KnownEra, PROBE, is_modern, may_be_modern};
use super::id_blocks::IdBlocks;
use super::modern::{Modern, To};
use crate::base::budget::LargeWork;
use crate::declare::Isolation;
use crate::protocol::{Kind, Message, Method};

/// The translator of one child.
pub(crate) struct Translator {
    phase: Phase,
    known: Arc<KnownEra>,
    /// The end of the time that its owner has for the answer to `initialize`, less what a refusal needs to be told;
    /// none if it waits for ever.
    until: Option<Instant>,
    /// Lines of the owner that are not translated yet.
    inbox: BytesMut,
    /// The `initialize` of the owner.
    initialize: Option<Message>,
    modern: Modern,
    /// The lines that wait for their turns.
    large: Large,
}

/// Large lines of either side, which are translated in turns, and what follows them behind them.
struct Large {
    /// Whose turns they are.
    tenant: Box<str>,
    /// The end of the first line of the owner.
    owner: Option<usize>,
    /// A line of the child.
    child: Option<Bytes>,
}

/// How far a child and its owner have come.
enum Phase {
    /// The child gets the `initialize` of the owner.
    Legacy,
    /// The child has refused that, as servers without sessions do, and is asked whether it is one.
    Refused(Box<Refusal>),
    /// The child has not answered a probe and gets the `initialize` of the owner as well: its first answer
    /// decides.
    Both,
    /// The child gets a `server/discover` in place of `initialize`.
    Modern {
        /// It may still be a session-based one, which is known from its answer.
        is_assumed: bool,
    },
    /// The session has begun, with a server of the modern era.
    Begun,
    /// The child is a session-based one.
    Over,
}

/// The answer that its owner gets, unless the child is a server of the modern era.
struct Refusal {
    answer: Message,
    /// The time until which the child may say so.
    until: Instant,
    /// Wakes the task of the owner then.
    alarm: Option<Pin<Box<Sleep>>>,
}

/// How a session with a child begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// By `initialize`, and by `server/discover` if that is refused.
    Legacy,
    /// By `initialize`, while the answer to a probe is awaited.
    Undecided,
    /// By `server/discover`, and by `initialize` if that is refused.
    Modern,
    /// By `server/discover`.
    ModernOnly,
}

impl Translator {
    /// The translator of a child of a tenant that begins this way, for a client of the modern era or of another one,
    /// or for several; what the child answers is remembered.
    pub(crate) fn new(
        tenant: &str,
        opening: Opening,
        (is_for_modern, isolation): (bool, Isolation),
        known: Arc<KnownEra>,
    ) -> Self {
        Self {
            phase: match opening {
                Opening::Legacy => Phase::Legacy,
                Opening::Undecided => Phase::Both,
                Opening::Modern => Phase::Modern { is_assumed: true },
                Opening::ModernOnly => Phase::Modern { is_assumed: false },
            },
            known,
            until: None,
            inbox: BytesMut::new(),
            initialize: None,
            modern: Modern::new(is_for_modern, isolation),
            large: Large {
                tenant: tenant.into(),
                owner: None,
                child: None,
            },
        }
    }

    /// The same for an owner that waits for the answer to `initialize` so long from now on; for ever if that is zero.
    pub(crate) fn within(mut self, clock: Duration) -> Self {
        let wait = clock.saturating_sub(clock / 10);
        self.until = Instant::now()
            .checked_add(wait)
            .filter(|_| !clock.is_zero());
        self
    }

    /// The callers of the sessions of its owner are known by the ids of their calls from now on.
    pub(crate) fn know_callers(&mut self, ids: &Arc<IdBlocks>) {
        self.modern.know_callers(ids);
    }

    /// The queue of the owner's lines.
    pub(crate) fn inbox(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    /// Bytes of the owner's lines that are not translated yet.
    pub(crate) fn queued(&self) -> usize {
        self.inbox.len()
    }

    /// Bytes of calls that may have to be made again, of results that may be given again, of the resources that are
    /// watched, and of a line of the child that is not translated yet.
    pub(crate) fn kept(&self) -> usize {
        self.modern.kept() + self.large.child.as_ref().map_or(0, Bytes::len)
    }

    /// Whether it has nothing more to do.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over) && self.inbox.is_empty() && !self.has_large()
    }

    /// Whether the child has shown that it is a server of the modern era.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self.phase, Phase::Begun)
    }

    /// Translates the lines of the owner, up to a large one.
    pub(crate) fn flush(
        &mut self,
        server: &mut BytesMut,
        owner: &mut VecDeque<Bytes>,
        now: Instant,
    ) {
        let to = &mut To { server, owner, now };
        while self.large.owner.is_none()
            && self.modern.due().is_none()
            && let Some(end) = memchr::memchr(b'\n', &self.inbox)
        {
            if LargeWork::is_large(end) {
                self.large.owner = Some(end);
            } else {
                self.line_of_owner(end, to);
            }
        }
    }

    /// Translates a line of the child, or keeps a large one until its turn.
    pub(crate) fn line(
        &mut self,
        line: Bytes,
        server: &mut BytesMut,
        owner: &mut VecDeque<Bytes>,
        now: Instant,
    ) {
        if LargeWork::is_large(line.len()) {
            self.large.child = Some(line);
        } else {
            self.line_of_child(line, &mut To { server, owner, now });
        }
    }

    /// Whether a large line waits for its turn, or a large call that is made again.
    pub(crate) fn has_large(&self) -> bool {
        let has_line = self.large.child.is_some() || self.large.owner.is_some();
        has_line || self.modern.due().is_some()
    }

    /// The turn of a large line, or of a large call that is made again.
    pub(crate) async fn turn(&self) -> LargeWork {
        let line = self.large.child.as_ref().map(Bytes::len);
        let line = line.or(self.large.owner);
        let length = self.modern.due().or(line).unwrap_or(0);
        LargeWork::turn(&self.large.tenant, length).await
    }

    /// Translates a large line in its turn, or makes a large call again, which comes before what follows it.
    pub(crate) fn large(
        &mut self,
        turn: LargeWork,
        server: &mut BytesMut,
        owner: &mut VecDeque<Bytes>,
        now: Instant,
    ) {
        let to = &mut To { server, owner, now };
        turn.run(|| {
            if self.modern.push_due(to) {
                return;
            }
            if let Some(line) = self.large.child.take() {
                self.line_of_child(line, to);
            } else if let Some(end) = self.large.owner.take() {
                self.line_of_owner(end, to);
            }
        });
    }

    /// The child says nothing more: the refusal that its owner has not got yet.
    pub(crate) fn closed(&mut self) -> Option<Bytes> {
        let refusal = self.refusal()?;
        self.known.modern.set(Some(false));
        Some(refusal)
    }

    /// The refusal that its owner has not got yet, and gets now.
    fn refusal(&mut self) -> Option<Bytes> {
        let Phase::Refused(refusal) = &self.phase else {
            return None;
        };
        let answer = refusal.answer.bytes().clone();
        self.phase = Phase::Over;
        Some(answer)
    }

    /// Waits for the refusal that its owner gets of a child which does not answer the question behind it. That shows
    /// nothing: the next child may be faster.
    pub(crate) fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        if let Phase::Refused(refusal) = &mut self.phase {
            let Refusal { until, alarm, .. } = &mut **refusal;
            let alarm = alarm.get_or_insert_with(|| Box::pin(sleep_until(*until)));
            ready!(alarm.as_mut().poll(cx));
        }
        self.refusal().map_or(Poll::Pending, Poll::Ready)
    }

    fn line_of_owner(&mut self, end: usize, to: &mut To<'_>) {
        let line = self.inbox.split_to(end + 1);
        let is_modern = matches!(self.phase, Phase::Modern { .. } | Phase::Begun);
        let is_waiting = self.initialize.is_none() && !matches!(self.phase, Phase::Over);
        if !is_modern && !is_waiting {
            to.server.extend_from_slice(&line);
            return;
        }
        let Ok(message) = Message::parse(Bytes::copy_from_slice(&line[..end])) else {
            return;
        };
        let is_first = is_waiting && message.method() == Method::Initialize;
        match (is_modern, is_first) {
            (true, true) => {
                let id = message.id().unwrap_or_default();
                self.modern.begin(&message, id, to);
            }
            (true, false) => self.modern.request(&message, to),
            (false, _) => to.server.extend_from_slice(&line),
        }
        if is_first {
            self.initialize = Some(message);
        }
    }

    fn line_of_child(&mut self, line: Bytes, to: &mut To<'_>) {
        let message = match Message::parse_line(line) {
            Ok(message) => message,
            // Its owner sees what it is.
            Err(line) => return to.owner.push_back(line),
        };
        let is_response = matches!(message.kind(), Kind::Result | Kind::Error);
        let is_probed = is_response && message.id() == Some(PROBE);
        let initialize = self.initialize.as_ref();
        let is_first = is_response && initialize.is_some_and(|first| first.id() == message.id());
        match self.phase {
            Phase::Both | Phase::Refused(_) if is_probed => self.probed(&message, to),
            Phase::Legacy | Phase::Both if is_first => self.initialized(message, to),
            Phase::Modern { is_assumed } if is_first => self.discovered(&message, is_assumed, to),
            Phase::Modern { .. } | Phase::Begun => self.modern.line(&message, to),
            Phase::Legacy | Phase::Both | Phase::Refused(_) | Phase::Over => {
                to.owner.push_back(message.bytes().clone());
            }
        }
    }

    /// The child answers the `initialize` of the owner.
    fn initialized(&mut self, answer: Message, to: &mut To<'_>) {
        let is_result = answer.kind() == Kind::Result;
        let is_known =
            self.known.legacy.get() == Some(true) || self.known.modern.get() == Some(false);
        if let Some(initialize) = &self.initialize
            && !is_result
            && !is_known
            && may_be_modern(&answer)
        {
            self.modern.begin(initialize, PROBE, to);
            let latest = to.now + SILENCE;
            self.phase = Phase::Refused(Box::new(Refusal {
                answer,
                until: self.until.map_or(latest, |until| until.min(latest)),
                alarm: None,
            }));
            return;
        }
        // One that refuses now may have become a server of the other era.
        self.known.legacy.set(is_result.then_some(true));
        if !is_result {
            self.known.modern.set(None);
        } else if matches!(self.phase, Phase::Both) {
            // One that has answered this and not the probe before it has no answer to that.
            self.known.modern.set(Some(false));
        }
        self.phase = Phase::Over;
        to.owner.push_back(answer.bytes().clone());
    }

    /// The child answers the probe at last, or after it has refused `initialize`.
    fn probed(&mut self, answer: &Message, to: &mut To<'_>) {
        let is_modern = is_modern(answer);
        self.known.modern.set(Some(is_modern));
        let before = std::mem::replace(&mut self.phase, Phase::Legacy);
        match (before, &self.initialize, is_modern) {
            (Phase::Refused(refusal), _, false) => {
                self.phase = Phase::Over;
                to.owner.push_back(refusal.answer.bytes().clone());
            }
            (_, _, false) => {}
            (_, None, true) => self.phase = Phase::Modern { is_assumed: false },
            (before, Some(initialize), true) => {
                if matches!(before, Phase::Refused(_)) {
                    self.known.legacy.set(Some(false));
                }
                self.modern.opened(initialize, answer, to);
                self.phase = Phase::Begun;
            }
        }
    }

    /// The child answers the `server/discover` that stands for the `initialize` of the owner.
    fn discovered(&mut self, answer: &Message, is_assumed: bool, to: &mut To<'_>) {
        let Some(initialize) = &self.initialize else {
            return;
        };
        if is_assumed && !is_modern(answer) {
            self.known.modern.set(None);
            self.known.legacy.set(None);
            to.server.extend_from_slice(initialize.bytes());
            to.server.put_u8(b'\n');
            self.phase = Phase::Legacy;
            return;
        }
        self.known.modern.set(Some(is_modern(answer)));
        self.modern.opened(initialize, answer, to);
        self.phase = Phase::Begun;
    }
}

/// The most time for the answer to the question behind a refusal: a server may have to ask another one for its first
/// answer.
const SILENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
#[path = "../tests/translator.rs"]
mod tests;
