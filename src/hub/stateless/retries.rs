//! Retries: calls that are parked until their client answers, and read on then.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time::sleep;

use super::{
    parked::{Parked, Resumed},
    sessions::Stateless,
    ticket::{Binding, Ticket, owner},
};
use crate::{
    auth::Access,
    error::Error,
    hub::core::or_never,
    protocol::{Message, jsonrpc, modern},
};

impl Stateless {
    /// Parks a call until its client answers; returns its ticket. A client that does not answer has its
    /// call cancelled when the server would wait no longer (`clocks.ask`).
    ///
    /// # Errors
    ///
    /// `Bug` if the system has no randomness.
    pub(crate) fn park(self: &Arc<Self>, mut parked: Parked) -> Result<String, Error> {
        parked.round += 1;
        parked.call.has_asked = true;
        let (call, round) = (self.sender.next_id(), parked.round);
        let ticket = Ticket {
            owner: owner(&self.sender.hub.0.owner.me),
            call,
            round,
        };
        let sealed = self.tickets.seal(&ticket, &parked.binding);
        let sealed = sealed.ok_or(Error::Bug("no randomness"))?;
        self.keep_parked(call, parked);
        Ok(sealed)
    }

    /// Keeps a parked call under this number until it is taken.
    fn keep_parked(self: &Arc<Self>, call: u64, parked: Parked) {
        let round = parked.round;
        let wait = or_never(parked.call.access.server().clocks.ask);
        let taken = self.parked.insert(call, parked);
        let (stateless, halt) = (Arc::clone(self), self.sender.hub.0.drain.clone());
        self.sender.hub.0.tracker.spawn(async move {
            // The replica that drains cannot wait for people.
            let grace = async {
                halt.cancelled().await;
                sleep(GRACE).await;
            };
            tokio::select! {
                _ = taken => return,
                () = sleep(wait) => {}
                () = grace => {}
            }
            drop(stateless.parked.take(call, round));
        });
    }

    /// Continues the call of a ticket with the answers of its client.
    ///
    /// # Errors
    ///
    /// Those of the delivery to its session; the call stays parked then, under the same ticket.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        access: &Access,
        retry: &Message,
        ticket: &str,
    ) -> Result<Resumed, Error> {
        let Some(salient) = modern::salient(retry) else {
            return Ok(Resumed::Invalid);
        };
        let binding = Binding::of(access, &salient);
        let Some(ticket) = self.tickets.open(ticket, &binding) else {
            return Ok(Resumed::Invalid);
        };
        let me = &self.sender.hub.0.owner.me;
        if !ticket.is_of(me) {
            let is_restarted = *ticket.replica().address == *me.address;
            return Ok(if is_restarted {
                Resumed::Lost
            } else {
                Resumed::There(ticket.replica())
            });
        }
        let Some(mut parked) = self.parked.take(ticket.call, ticket.round) else {
            return Ok(Resumed::Invalid);
        };
        let answers = modern::responses(retry, &parked.asks);
        let lines: Vec<Bytes> = answers
            .into_iter()
            .map(|(ask, answer)| {
                let mut line = BytesMut::new();
                jsonrpc::push_result(&ask.id, &answer, &mut line);
                line.freeze()
            })
            .collect();
        for line in lines {
            let Ok(answer) = Message::parse(line) else {
                continue;
            };
            let id = answer.id().map(Bytes::copy_from_slice);
            let handle = parked.call.lease.handle.clone();
            match self.sender.send(&handle, access, answer).await {
                Ok(()) => {}
                Err(Error::NoSession) => return Ok(Resumed::Ended),
                Err(error) => {
                    self.keep_parked(ticket.call, parked);
                    return Err(error);
                }
            }
            parked.asks.retain(|ask| Some(&ask.id) != id.as_ref());
        }
        if parked.asks.is_empty() {
            return Ok(Resumed::Here(Box::new(parked)));
        }
        let asks = parked.asks.clone();
        Ok(Resumed::Again(asks, self.park(parked)?))
    }
}

/// The time that parked calls have left when their replica is about to end.
const GRACE: Duration = Duration::from_secs(1);
