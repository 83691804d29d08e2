//! Subscriptions of a session at a modern server: one `subscriptions/listen` at a time, for all that the
//! session wants to hear (2026-07-28 subscriptions).

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::watched::Watched;
use crate::protocol::{
    Message, Method, json,
    jsonrpc::{push_error, push_notification, push_raw_error, push_result},
    modern::{self, ClientMeta},
};

/// What a session hears beside its calls.
#[derive(Default)]
pub(super) struct Listening {
    /// Members of the filter: the lists that the server tells changes of.
    lists: Vec<&'static str>,
    /// The resources, and whether the server has agreed to each.
    resources: Watched<bool>,
    /// Requests to subscribe that wait for a `subscriptions/listen` of theirs.
    waiting: Vec<Wanted>,
    /// Those that wait for its acknowledgement.
    asked: Vec<Wanted>,
    /// The number of the latest `subscriptions/listen`.
    last: u64,
    /// The one that was acknowledged.
    current: Option<u64>,
    /// The one that was not yet.
    pending: Option<u64>,
    /// Whether more has changed since that was sent.
    is_stale: bool,
    /// When the latest was requested.
    sent: Option<Instant>,
    /// How many the server has ended or refused in a row, each soon after its request.
    ended: u32,
    /// From when on one is requested again behind too many of these.
    again_at: Option<Instant>,
    /// Whether there was none for a while, in which something may have changed.
    is_behind: bool,
}

/// A request to subscribe: its raw id and URI.
type Wanted = (Box<[u8]>, Box<[u8]>);

/// How often in a row one that the server has ended soon is begun again at once. A server that ends because of it would
/// be asked without an end.
const MOST_ENDED: u32 = 3;

/// How long one lives that has not ended soon, and the time until the next one behind too many that have.
const CALM: Duration = Duration::from_secs(60);

/// The lists whose changes are told: the capability, and the member of a filter.
const LISTS: [(&str, &str); 3] = [
    ("tools", "toolsListChanged"),
    ("prompts", "promptsListChanged"),
    ("resources", "resourcesListChanged"),
];

/// The lines that a change leads to: those for the server, and those for the session.
pub(super) struct Out<'o> {
    /// The fields of each request.
    pub(super) client: &'o ClientMeta,
    /// Lines for the server.
    pub(super) server: &'o mut BytesMut,
    /// Lines for the session, without line ends.
    pub(super) session: &'o mut VecDeque<Bytes>,
    /// The present time.
    pub(super) now: Instant,
}

impl Out<'_> {
    fn answer(&mut self, id: &[u8]) {
        let mut line = BytesMut::new();
        push_result(id, b"{}", &mut line);
        self.session.push_back(line.freeze());
    }

    fn refuse(&mut self, id: &[u8]) {
        let mut line = BytesMut::new();
        push_error(id, -32602, UNWATCHED, None, &mut line);
        self.session.push_back(line.freeze());
    }

    fn tell(&mut self, method: &str, params: Option<&[u8]>) {
        let mut line = BytesMut::new();
        push_notification(method, params, &mut line);
        self.session.push_back(line.freeze());
    }
}

impl Listening {
    /// Begins to hear of changes of lists, as far as a server with these raw capabilities tells them.
    pub(super) fn begin(&mut self, capabilities: &[u8], out: &mut Out<'_>) {
        let is_told = |kind: &str| {
            let declared = json::get(capabilities, kind);
            declared.and_then(|declared| json::get(declared, "listChanged")) == Some(b"true")
        };
        let told = LISTS.iter().filter(|(kind, _)| is_told(kind));
        self.lists = told.map(|(_, member)| *member).collect();
        if !self.lists.is_empty() {
            self.refresh(out);
        }
    }

    /// Watches a raw URI; the request with this raw id is answered when the server has agreed.
    pub(super) fn subscribe(&mut self, id: &[u8], uri: &[u8], out: &mut Out<'_>) {
        let uri = json::canonical(uri);
        self.resources.or_default(&uri);
        self.waiting.push((id.into(), uri));
        self.refresh(out);
    }

    /// Answers the request to subscribe with this raw id no more, and watches its URI no longer unless another
    /// request has it; false if no such request waits.
    pub(super) fn cancelled(&mut self, id: &[u8], out: &mut Out<'_>) -> bool {
        let lists = [&mut self.waiting, &mut self.asked];
        let cancelled = lists.into_iter().find_map(|list| {
            let at = list.iter().position(|(other, _)| **other == *id)?;
            Some(list.remove(at))
        });
        let Some((_, uri)) = cancelled else {
            return false;
        };
        let mut others = self.waiting.iter().chain(&self.asked);
        let is_wanted =
            others.any(|(_, other)| *other == uri) || self.resources.get(&uri) == Some(&true);
        if !is_wanted && self.resources.remove(&uri).is_some() {
            self.refresh(out);
        }
        true
    }

    /// The bytes that the resources take.
    pub(super) fn size(&self) -> usize {
        self.resources.size()
    }

    /// Watches a raw URI no longer.
    pub(super) fn unsubscribe(&mut self, id: &[u8], uri: &[u8], out: &mut Out<'_>) {
        self.resources.remove(&json::canonical(uri));
        out.answer(id);
        self.refresh(out);
    }

    /// Requests all that is wanted now, at once or after the acknowledgement of the latest request.
    fn refresh(&mut self, out: &mut Out<'_>) {
        if self.pending.is_some() {
            self.is_stale = true;
            return;
        }
        (self.is_stale, self.again_at) = (false, None);
        if self.lists.is_empty() && self.resources.is_empty() {
            // The server has refused their resources to earlier requests, or the session has left them.
            for (id, _) in std::mem::take(&mut self.waiting) {
                out.refuse(&id);
            }
            self.end_current(out);
            return;
        }
        self.last += 1;
        self.pending = Some(self.last);
        self.sent = Some(out.now);
        self.asked = std::mem::take(&mut self.waiting);
        let uris = self.resources.uris().into_iter();
        out.client
            .push_listen(&raw_id(self.last), &self.lists, uris, out.server);
        out.server.put_u8(b'\n');
    }

    fn end_current(&mut self, out: &mut Out<'_>) {
        if let Some(number) = self.current.take() {
            push_cancelled(&raw_id(number), out.server);
            out.server.put_u8(b'\n');
        }
    }

    /// Begins again, at once unless too many have ended soon.
    fn begin_again(&mut self, out: &mut Out<'_>) {
        let is_calm = self
            .sent
            .is_some_and(|sent| out.now.duration_since(sent) > CALM);
        self.ended = if is_calm { 1 } else { self.ended + 1 };
        if self.ended <= MOST_ENDED {
            self.refresh(out);
        } else {
            self.again_at = Some(out.now + CALM);
            self.is_behind = true;
        }
    }

    /// Begins again if that is due: with any message of the session, as there is no clock.
    pub(super) fn resume(&mut self, out: &mut Out<'_>) {
        if self.again_at.is_some_and(|at| at <= out.now) {
            self.refresh(out);
        }
    }

    /// The server has acknowledged one, and says what it agrees to. Whether there was none for a while: then the session
    /// is told that anything may have changed.
    pub(super) fn acknowledged(&mut self, id: &[u8], message: &Message, out: &mut Out<'_>) -> bool {
        if self.pending.is_none_or(|number| raw_id(number) != id) {
            return false;
        }
        // The one before is left when this one tells the same, so that nothing is missed.
        self.end_current(out);
        self.current = self.pending.take();
        let asked = std::mem::take(&mut self.asked);
        let mut refused: HashSet<&[u8]> = asked.iter().map(|(_, uri)| &**uri).collect();
        modern::leave_unacknowledged(message, &mut refused);
        for (id, uri) in &asked {
            if refused.contains(&**uri) {
                self.resources.remove(uri);
                out.refuse(id);
            } else {
                // None where the session has left it meanwhile.
                if let Some(is_agreed) = self.resources.get_mut(uri) {
                    *is_agreed = true;
                }
                out.answer(id);
            }
        }
        let was_behind = std::mem::take(&mut self.is_behind);
        if was_behind {
            self.tell_all(out);
        }
        if self.is_stale {
            self.refresh(out);
        }
        was_behind
    }

    /// Tells the session that all may have changed which it wants to hear of.
    fn tell_all(&self, out: &mut Out<'_>) {
        for (kind, _) in LISTS.iter().filter(|(_, list)| self.lists.contains(list)) {
            out.tell(&format!("notifications/{kind}/list_changed"), None);
        }
        for uri in self.resources.uris() {
            let params = [b"{\"uri\":", uri, b"}"].concat();
            out.tell("notifications/resources/updated", Some(&params));
        }
    }

    /// Whether a notification for a subscription is one that the session still wants to hear: not what comes
    /// on a former subscription as well, nor of a resource that it has left meanwhile.
    pub(super) fn is_heard(&self, id: &[u8], notification: &Message) -> bool {
        let is_current = self.current.is_some_and(|number| raw_id(number) == id);
        let is_wanted = notification.method() != Method::Updated
            || notification.subject().is_some_and(|uri| {
                let uri = Bytes::from(uri);
                self.resources.told(&uri).next().is_some()
            });
        is_current && is_wanted
    }

    /// Whether a raw id is one of these requests.
    pub(super) fn is_own(id: &[u8]) -> bool {
        id.starts_with(PREFIX)
    }

    /// The server has ended one, or refused it with this raw error.
    pub(super) fn ended(&mut self, id: &[u8], error: Option<&[u8]>, out: &mut Out<'_>) {
        let is = |number: Option<u64>| number.is_some_and(|number| raw_id(number) == id);
        if is(self.pending) {
            self.pending = None;
            for (id, uri) in std::mem::take(&mut self.asked) {
                self.resources.remove(&uri);
                let mut line = BytesMut::new();
                match error {
                    Some(error) => push_raw_error(&id, error, &mut line),
                    None => push_error(&id, -32603, UNWATCHED, None, &mut line),
                }
                out.session.push_back(line.freeze());
            }
            if self.is_stale {
                self.refresh(out);
            } else if self.current.is_none() {
                self.begin_again(out);
            }
        } else if is(self.current) {
            self.current = None;
            self.begin_again(out);
        }
    }
}

const UNWATCHED: &str = "the server does not watch this resource";

/// The beginning of the raw ids of these requests.
const PREFIX: &[u8] = b"\"listen-";

fn raw_id(number: u64) -> Vec<u8> {
    [PREFIX, number.to_string().as_bytes(), b"\""].concat()
}

/// Appends the cancellation of a request with a raw id.
pub(super) fn push_cancelled(id: &[u8], out: &mut BytesMut) {
    let params = [&br#"{"requestId":"#[..], id, b"}"].concat();
    push_notification("notifications/cancelled", Some(&params), out);
}
