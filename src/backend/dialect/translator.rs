//! Translator between a child and its owner, which speaks to it as to a session-based server.
//!
//! It is there until the child has shown to be one, and stays if it is none.

use std::{collections::VecDeque, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};

use super::era::{Era, KnownEra, PROBE, era_of};
use super::modern::{Modern, To};
use crate::protocol::{Kind, Message, Method};

/// The translator of one child.
pub(crate) struct Translator {
    phase: Phase,
    known: Arc<KnownEra>,
    /// Lines of the owner that are not translated yet.
    inbox: BytesMut,
    /// The `initialize` of the owner.
    initialize: Option<Message>,
    modern: Modern,
}

/// How far a child and its owner have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The child gets the `initialize` of the owner.
    Legacy,
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

/// How a session with a child begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// By `initialize`.
    Legacy,
    /// By `initialize`, while the answer to a probe is awaited.
    Undecided,
    /// By `server/discover`, and by `initialize` if that is refused.
    Modern,
    /// By `server/discover`.
    ModernOnly,
}

impl Translator {
    /// The translator of a child that begins this way, for a client of the modern era or of another one; what
    /// the child answers is remembered.
    pub(crate) fn new(opening: Opening, is_for_modern: bool, known: Arc<KnownEra>) -> Self {
        Self {
            phase: match opening {
                Opening::Legacy => Phase::Legacy,
                Opening::Undecided => Phase::Both,
                Opening::Modern => Phase::Modern { is_assumed: true },
                Opening::ModernOnly => Phase::Modern { is_assumed: false },
            },
            known,
            inbox: BytesMut::new(),
            initialize: None,
            modern: Modern::new(is_for_modern),
        }
    }

    /// The queue of the owner's lines.
    pub(crate) fn inbox(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    /// Bytes of the owner's lines that are not translated yet.
    pub(crate) fn queued(&self) -> usize {
        self.inbox.len()
    }

    /// Bytes of calls that may have to be made again.
    pub(crate) fn kept(&self) -> usize {
        self.modern.kept()
    }

    /// Whether it has nothing more to do.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over && self.inbox.is_empty()
    }

    /// Translates the lines of the owner.
    pub(crate) fn flush(&mut self, server: &mut BytesMut, owner: &mut VecDeque<Bytes>) {
        while let Some(end) = memchr::memchr(b'\n', &self.inbox) {
            let line = self.inbox.split_to(end + 1);
            let is_read = matches!(self.phase, Phase::Modern { .. } | Phase::Begun);
            if self.initialize.is_some() && !is_read || self.phase == Phase::Over {
                server.extend_from_slice(&line);
                continue;
            }
            let Ok(message) = Message::parse(Bytes::copy_from_slice(&line[..end])) else {
                continue;
            };
            let to = &mut To { server, owner };
            let is_first = self.initialize.is_none() && message.method() == Method::Initialize;
            match self.phase {
                Phase::Modern { .. } if is_first => self.modern.begin(&message, to),
                Phase::Modern { .. } | Phase::Begun => self.modern.request(&message, to),
                Phase::Legacy | Phase::Both | Phase::Over => to.server.extend_from_slice(&line),
            }
            if is_first {
                self.initialize = Some(message);
            }
        }
    }

    /// Translates a line of the child.
    pub(crate) fn line(&mut self, line: Bytes, server: &mut BytesMut, owner: &mut VecDeque<Bytes>) {
        let message = match Message::parse_line(line) {
            Ok(message) => message,
            // Its owner sees what it is.
            Err(line) => return owner.push_back(line),
        };
        let is_response = matches!(message.kind(), Kind::Result | Kind::Error);
        let initialize = self.initialize.as_ref();
        let is_first = is_response && initialize.is_some_and(|first| first.id() == message.id());
        let to = &mut To { server, owner };
        match self.phase {
            Phase::Both if is_response && message.id() == Some(PROBE) => self.probed(&message, to),
            Phase::Legacy | Phase::Both => {
                if is_first {
                    self.initialized(message.kind() == Kind::Result);
                }
                to.owner.push_back(message.bytes().clone());
            }
            Phase::Modern { is_assumed } if is_first => self.discovered(&message, is_assumed, to),
            Phase::Modern { .. } | Phase::Begun => self.modern.line(&message, to),
            Phase::Over => to.owner.push_back(message.bytes().clone()),
        }
    }

    /// The child answers the `initialize` of the owner.
    fn initialized(&mut self, is_result: bool) {
        self.phase = Phase::Over;
        match (is_result, self.known.get()) {
            (true, Some(Era::Dual)) => {}
            (true, _) => self.known.set(Some(Era::Legacy)),
            // It may have become a server of the other era.
            (false, _) => self.known.set(None),
        }
    }

    /// The child answers the probe at last.
    fn probed(&mut self, answer: &Message, to: &mut To<'_>) {
        let era = era_of(answer);
        self.known.set(Some(era));
        match (era, &self.initialize) {
            (Era::Legacy, _) => self.phase = Phase::Legacy,
            (_, None) => self.phase = Phase::Modern { is_assumed: false },
            (_, Some(initialize)) => {
                match answer.result() {
                    Some(result) => self.modern.discovered(initialize, result, to),
                    None => refuse(initialize, answer, to),
                }
                self.phase = Phase::Begun;
            }
        }
    }

    /// The child answers the `server/discover` that stands for the `initialize` of the owner.
    fn discovered(&mut self, answer: &Message, is_assumed: bool, to: &mut To<'_>) {
        let Some(initialize) = &self.initialize else {
            return;
        };
        let era = era_of(answer);
        if era == Era::Legacy && is_assumed {
            self.known.set(None);
            to.server.extend_from_slice(initialize.bytes());
            to.server.put_u8(b'\n');
            self.phase = Phase::Legacy;
            return;
        }
        self.known.set(Some(era));
        match answer.result() {
            Some(result) => self.modern.discovered(initialize, result, to),
            None => refuse(initialize, answer, to),
        }
        self.phase = Phase::Begun;
    }
}

/// Answers the `initialize` of the owner with the error of the child.
fn refuse(initialize: &Message, answer: &Message, to: &mut To<'_>) {
    let id = initialize.id().unwrap_or_default();
    to.owner.push_back(answer.clone().into_bytes_with_id(id));
}

#[cfg(test)]
#[path = "../tests/translator.rs"]
mod tests;
