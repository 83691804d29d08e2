//! Calls that wait for input of their client: "Servers MUST NOT assume that clients will fulfill the
//! inputRequests or retry the original request" (2026-07-28 mrtr, "Server Requirements").
//!
//! A parked call is never executed again: the retry of its client reads on.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock, RwLockWriteGuard},
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    call::CallInFlight,
    ticket::{Binding, CallDigest, Carried, Ticket},
};
use crate::{
    hub::stream::Reader,
    protocol::{Message, modern::InputRequest},
    state::Replica,
};

/// The parked calls of this replica, by their number.
#[derive(Default)]
pub(super) struct ParkedCalls(RwLock<HashMap<u64, Entry>>);

struct Entry {
    parked: Parked,
    /// Ends the wait for it when it is taken.
    _kept: oneshot::Sender<()>,
}

/// A call that waits for input.
pub(crate) struct Parked {
    /// The call.
    pub(crate) call: CallInFlight,
    /// Reads what the server says to it.
    pub(crate) reader: Reader,
    /// The requests that its client has not answered.
    pub(crate) asks: Vec<InputRequest>,
    /// The principal that may continue it.
    pub(super) binding: Binding,
    /// What makes a request the retry of it.
    pub(super) digest: CallDigest,
    /// The time for an answer of its client (`clocks.ask`).
    pub(super) ask: Duration,
    /// The number of times that its client was asked.
    pub(crate) round: u32,
}

impl Parked {
    /// A call that `request` made, after it was asked for the `round`th time.
    pub(crate) fn new(
        call: CallInFlight,
        reader: Reader,
        asks: Vec<InputRequest>,
        request: &Message,
        round: u32,
    ) -> Self {
        let tool = request.tool();
        Self {
            ask: call.access.server().clocks_of(tool.as_deref()).ask,
            binding: Binding::of(&call.access),
            digest: CallDigest::at_once(&call.access, request),
            call,
            reader,
            asks,
            round,
        }
    }
}

/// The meaning of a `requestState`.
pub(crate) enum Opened {
    /// This replica has the call of the ticket, unless it was used.
    Here(Ticket),
    /// A server of the client's own era has asked, and gets the retry.
    Carried(Carried),
    /// The client was asked by a refusal, and calls again.
    CallAgain,
    /// Another replica has the call.
    There(Replica),
    /// The call has ended with the replica that had it.
    Lost,
    /// It is no ticket, or was made for another request.
    Invalid,
}

/// The result of a retry.
pub(crate) enum Resumed {
    /// The server has the answers, and goes on.
    Here(Box<Parked>),
    /// The client has not answered all requests, and is asked again by this ticket.
    Again(Box<Asked>),
    /// The call has ended with its session.
    Ended,
    /// The ticket was used.
    Used,
}

/// What a client is asked again.
pub(crate) struct Asked {
    pub(crate) asks: Vec<InputRequest>,
    pub(crate) ticket: String,
    /// The raw `serverInfo` of the server.
    pub(crate) server_info: Option<Bytes>,
}

impl ParkedCalls {
    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, Entry>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call under its number; what is returned resolves when the call is taken.
    pub(super) fn insert(&self, call: u64, parked: Parked) -> oneshot::Receiver<()> {
        let (kept, taken) = oneshot::channel();
        let entry = Entry {
            parked,
            _kept: kept,
        };
        self.write().insert(call, entry);
        taken
    }

    /// Takes a call, if it waits in this round.
    pub(super) fn take(&self, call: u64, round: u32) -> Option<Parked> {
        let mut calls = self.write();
        let is_it = calls
            .get(&call)
            .is_some_and(|entry| entry.parked.round == round);
        let entry = is_it.then(|| calls.remove(&call)).flatten()?;
        Some(entry.parked)
    }
}
