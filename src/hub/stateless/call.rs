//! A call in flight. The connection of its client is all that keeps it: "Closing the SSE response
//! stream MUST be treated by the server as cancellation of that request" (2026-07-28 streamable-http,
//! "Cancellation").

use std::{slice, sync::Arc};

use bytes::{Bytes, BytesMut};

use super::{group::Lease, sender::Sender};
use crate::{
    auth::Access,
    error::Error,
    hub::stream::Answer,
    protocol::{
        Message, jsonrpc,
        modern::{InputRequest, responses},
    },
};

/// A call in flight; it is cancelled when this is dropped before it has ended.
pub(crate) struct CallInFlight {
    sender: Arc<Sender>,
    pub(super) lease: Lease,
    pub(super) access: Access,
    /// The id of the request in its session.
    id: u64,
    /// Whether the server has asked its client.
    pub(super) has_asked: bool,
    /// The number of times that the client was asked, if what the server asks ends the call.
    pub(super) carried: Option<u32>,
    is_over: bool,
}

/// A call that was begun.
pub(crate) enum Begun {
    /// The session has it; its first answer.
    Sent(Answer, Box<CallInFlight>),
    /// The server could not be initialized; the raw error response.
    Failed(Bytes),
    /// The server is no longer the one that has asked.
    Lost,
}

impl CallInFlight {
    /// A call under this id in a leased session.
    pub(super) fn new(sender: Arc<Sender>, lease: Lease, access: Access, id: u64) -> Self {
        Self {
            sender,
            lease,
            access,
            id,
            has_asked: false,
            carried: None,
            is_over: false,
        }
    }

    /// The number of times that its client was asked, if what the server asks ends the call.
    pub(crate) fn carried(&self) -> Option<u32> {
        self.carried
    }

    /// The raw `serverInfo` of the server.
    pub(crate) fn server_info(&self) -> Option<Bytes> {
        self.lease.server_info()
    }

    /// Refuses what the server asks during a request that cannot be answered by `input_required`: "Servers
    /// MUST NOT send `InputRequiredResult` responses on any other client requests" (2026-07-28 mrtr,
    /// "Supported Requests").
    pub(crate) fn refuse(&self, asks: &[InputRequest]) {
        self.refuse_all(asks, "the client cannot be asked during this request");
    }

    /// Refuses what the server asks where the share of the caller has no room for it until the client answers.
    pub(crate) fn refuse_without_room(&self, ask: &InputRequest) {
        self.sender.hub.limits().count_no_room();
        self.refuse_all(slice::from_ref(ask), NO_ROOM);
    }

    fn refuse_all(&self, asks: &[InputRequest], why: &str) {
        for ask in asks {
            let mut line = BytesMut::new();
            jsonrpc::push_error(&ask.id, -32603, why, None, &mut line);
            self.send(line.freeze());
        }
    }

    /// Answers what the server asks with a raw result.
    pub(crate) fn answer(&self, ask: &InputRequest, result: &[u8]) {
        let mut line = BytesMut::new();
        jsonrpc::push_result(&ask.id, result, &mut line);
        self.send(line.freeze());
    }

    /// Delivers what its client replies to a request of the server.
    ///
    /// # Errors
    ///
    /// `NoSession` if the session has ended, or the access is no longer valid; `Busy`.
    pub(crate) async fn reply(&self, access: &Access, reply: Message) -> Result<(), Error> {
        let newer = self.sender.hub.newer(access)?;
        let access = newer.as_deref().unwrap_or(access);
        self.sender.send(&self.lease.handle, access, reply).await
    }

    /// Sends a message of the client that has no answer.
    fn send(&self, line: Bytes) {
        let Ok(message) = Message::parse(line) else {
            return;
        };
        let (sender, access) = (Arc::clone(&self.sender), self.access.clone());
        let handle = self.lease.handle.clone();
        let tracker = self.sender.hub.0.tracker.clone();
        tracker.spawn(async move {
            // A session that has ended has ended its calls.
            let _ = sender.send(&handle, &access, message).await;
        });
    }

    /// The access of its client.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The call has ended with its answer.
    pub(crate) fn finish(mut self) {
        self.is_over = true;
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.has_asked || self.lease.is_alone() {
            // What the server asks later would reach the next call.
            return self.lease.end(&self.sender.hub);
        }
        let mut line = BytesMut::new();
        jsonrpc::push_cancelled(self.id, "the client closed the connection", &mut line);
        self.send(line.freeze());
    }
}

/// What a client replies by a request to what a server asks, each with the raw id of the question. Made in the turn of
/// that request: all replies are as long as it.
pub(crate) fn replies(request: &Message, asks: &[InputRequest]) -> Vec<(Bytes, Message)> {
    let reply = |(id, answer): (Bytes, Bytes)| {
        let mut line = BytesMut::new();
        jsonrpc::push_result(&id, &answer, &mut line);
        // Its parts were parsed before.
        let reply = Message::parse(line.freeze()).ok()?;
        Some((id, reply))
    };
    let answers = responses(request, asks);
    answers.into_iter().filter_map(reply).collect()
}

/// The error of a request that is refused for its size.
const NO_ROOM: &str = "there is no room for what the client is to be asked";
