//! Page cursors of lists: sealed for the client, so that a cursor works only for the same
//! principal and the same list.
//!
//! A server may encode the place of its caller in a cursor and trust it later, and a shared server
//! has many callers.

use bytes::{Bytes, BytesMut};

use crate::{
    auth::Listed,
    protocol::{EventKey, Message, Span, json},
};

/// A cursor that was not given to this principal for this list.
pub(crate) struct Foreign;

/// The owner of sealed cursors: a principal at a server.
pub(crate) struct PageCursors<'a> {
    /// Seals and unseals.
    pub(crate) key: &'a EventKey,
    /// The tenant.
    pub(crate) tenant: &'a str,
    /// The server.
    pub(crate) server: &'a str,
    /// The key of the principal.
    pub(crate) principal: &'a str,
}

impl PageCursors<'_> {
    /// The request with the cursor of the server itself; none if it has no cursor.
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
        let cursor = self.key.unseal(self.scope(listed), &sealed);
        let mut plain = BytesMut::new();
        json::push_string(&mut plain, cursor.ok_or(Foreign)?);
        let mut line = BytesMut::with_capacity(message.bytes().len());
        message.splice(&mut line, &[(span, &plain)]);
        Message::parse(line.freeze()).map(Some).map_err(|_| Foreign)
    }

    /// The answer to a list with its cursor sealed; the rest is unchanged.
    pub(crate) fn sealed(&self, listed: Listed, answer: Bytes) -> Bytes {
        let members = json::members(&answer, Span::whole(&answer));
        let results = members
            .into_iter()
            .filter(|(key, _)| is(&answer, *key, "result"));
        let inner = results.flat_map(|(_, result)| json::members(&answer, result));
        let cursors = inner.filter(|(key, _)| is(&answer, *key, "nextCursor"));
        let mut cuts = Vec::new();
        for (_, span) in cursors {
            // A cursor is a string: clients do not send back anything else.
            if let Some(cursor) = json::decoded(span.of(&answer)) {
                let mut sealed = BytesMut::new();
                let text = self.key.seal(self.scope(listed), &cursor);
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

    fn scope(&self, listed: Listed) -> [&str; 4] {
        [self.tenant, self.server, self.principal, listed.list()]
    }
}

fn is(text: &[u8], key: Span, name: &str) -> bool {
    json::decoded(key.of(text)).is_some_and(|key| key == name)
}
