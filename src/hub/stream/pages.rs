//! Cursors of pages: a server's own are given out sealed, so that one is worth nothing in another
//! principal's hands, nor for another list (CONTRACT P09).
//!
//! A server may put into a cursor where its caller is, and trust it when it comes back; a shared
//! one has many callers.

use bytes::{Bytes, BytesMut};

use crate::hub::session::Session;
use crate::{
    auth::Listed,
    protocol::{Message, Span, json},
};

/// A cursor that this principal was not given for this list.
pub(crate) struct Foreign;

impl Session {
    /// The request with the cursor that the server gave out; nothing where it stays as it is.
    pub(crate) fn unsealed(&self, message: &Message) -> Result<Option<Message>, Foreign> {
        let listed = Listed::of(message.method());
        let Some((listed, span)) = listed.zip(message.cursor()) else {
            return Ok(None);
        };
        let raw = span.of(message.bytes());
        if raw == b"null" {
            return Ok(None);
        }
        let sealed = json::decoded(raw).ok_or(Foreign)?;
        let cursor = self.core.key.unseal(self.whose(listed), &sealed);
        let mut plain = BytesMut::new();
        json::push_string(&mut plain, cursor.ok_or(Foreign)?);
        let mut line = BytesMut::with_capacity(message.bytes().len());
        message.splice(&mut line, &[(span, &plain)]);
        Message::parse(line.freeze()).map(Some).map_err(|_| Foreign)
    }

    /// The answer to a list with its cursor sealed; all else stays as it was.
    pub(crate) fn sealed(&self, listed: Listed, answer: Bytes) -> Bytes {
        let members = json::members(&answer, Span::whole(&answer));
        let results = members
            .into_iter()
            .filter(|(key, _)| is(&answer, *key, "result"));
        let inner = results.flat_map(|(_, result)| json::members(&answer, result));
        let cursors = inner.filter(|(key, _)| is(&answer, *key, "nextCursor"));
        let mut cuts = Vec::new();
        for (_, span) in cursors {
            // What is no text is no cursor: its client will not send it back.
            if let Some(cursor) = json::decoded(span.of(&answer)) {
                let mut sealed = BytesMut::new();
                let text = self.core.key.seal(self.whose(listed), &cursor);
                json::push_string(&mut sealed, &text);
                cuts.push((span, sealed));
            }
        }
        if cuts.is_empty() {
            return answer;
        }
        let cuts: Vec<(Span, &[u8])> = cuts.iter().map(|(span, text)| (*span, &**text)).collect();
        let mut line = BytesMut::with_capacity(answer.len() + 16);
        json::splice(&mut line, &answer, &cuts);
        line.freeze()
    }

    fn whose(&self, listed: Listed) -> [&str; 4] {
        let (tenant, server) = (&self.tenant.name, &self.server.name);
        [tenant, server, self.principal.key(), listed.list()]
    }
}

fn is(text: &[u8], key: Span, name: &str) -> bool {
    json::decoded(key.of(text)).is_some_and(|key| key == name)
}
