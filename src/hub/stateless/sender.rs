//! Messages of the gateway itself to a session that it keeps.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};

use crate::{
    auth::Access,
    error::Error,
    hub::{
        Hub,
        core::Handle,
        stream::{Answer, Form, Pending},
    },
    protocol::{Body, Message, json, jsonrpc},
};

/// Sends messages to sessions, with ids that are never used twice.
pub(crate) struct Sender {
    pub(super) hub: Hub,
    /// The latest id of a request.
    last: AtomicU64,
}

impl Sender {
    /// A sender that has sent nothing.
    pub(super) fn new(hub: Hub) -> Self {
        Self {
            hub,
            last: AtomicU64::new(0),
        }
    }

    /// A new id of a request.
    pub(super) fn next_id(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Delivers a notification or a response to a session.
    pub(super) async fn send(
        &self,
        handle: &Handle,
        access: &Access,
        message: Message,
    ) -> Result<(), Error> {
        let body = Body::One(message);
        let sent = self
            .hub
            .send_to(handle, access, body, Form::Json, (None, None));
        match sent.await?.answer().await {
            Answer::Refused(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends a request of the gateway itself to a session; whether it has a result.
    pub(super) async fn ask(
        &self,
        handle: &Handle,
        access: &Access,
        method: &str,
        params: &[u8],
    ) -> Result<bool, Error> {
        let answer = self.request(handle, access, method, params).await?;
        Ok(json::get(&answer, "result").is_some())
    }

    /// Sends a request of the gateway itself to a session; its answer, empty if it was cancelled.
    pub(super) async fn request(
        &self,
        handle: &Handle,
        access: &Access,
        method: &str,
        params: &[u8],
    ) -> Result<Bytes, Error> {
        let sent = self.begin(handle, access, method, params).await?;
        match sent.answer().await {
            Answer::Json(line) => Ok(line),
            Answer::Refused(error) => Err(error),
            _ => Ok(Bytes::new()),
        }
    }

    /// Puts a request of the gateway itself into the queue of a session; returns the wait for its answer.
    pub(super) async fn begin(
        &self,
        handle: &Handle,
        access: &Access,
        method: &str,
        params: &[u8],
    ) -> Result<Pending, Error> {
        let id = self.next_id().to_string();
        let mut line = BytesMut::new();
        jsonrpc::push_request(id.as_bytes(), method, Some(params), &mut line);
        let message = Message::parse(line.freeze());
        let body = Body::One(message.map_err(|_| Error::Bug("a request of its own"))?);
        let sent = self
            .hub
            .send_to(handle, access, body, Form::Json, (None, None));
        sent.await
    }
}
