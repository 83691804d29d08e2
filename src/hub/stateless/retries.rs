//! Retries: calls that are parked until their client answers, and read on then.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    parked::{Asked, Opened, Parked, Resumed},
    sessions::Stateless,
    ticket::{Binding, Ticket},
};
use crate::{
    auth::Access,
    error::Error,
    hub::core::or_never,
    protocol::{
        Message,
        modern::{self, InputRequest},
    },
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
        let ticket = Ticket::new(&self.sender.hub.0.owner.me, call, round);
        let sealed = self.tickets.seal(&ticket, &parked.binding);
        let sealed = sealed.ok_or(Error::Bug("no randomness"))?;
        self.keep_parked(call, parked);
        Ok(sealed)
    }

    /// Keeps a parked call under this number until it is taken.
    fn keep_parked(self: &Arc<Self>, call: u64, parked: Parked) {
        let round = parked.round;
        let wait = or_never(parked.ask);
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

    /// Asks its client to visit URLs before it makes the request again that a server has refused for them;
    /// none for any other answer.
    pub(crate) fn visits(
        &self,
        access: &Access,
        request: &Message,
        answer: &Message,
    ) -> Option<(Vec<InputRequest>, String)> {
        let asks = modern::url_elicitations(answer)?;
        let ticket = Ticket {
            owner: Default::default(),
            call: NO_CALL,
            round: 0,
        };
        let binding = Binding::of(access, &modern::salient(request)?);
        Some((asks, self.tickets.seal(&ticket, &binding)?))
    }

    /// Opens the ticket of a retry.
    pub(crate) fn open(&self, access: &Access, retry: &Message, ticket: &str) -> Opened {
        let binding = modern::salient(retry).map(|salient| Binding::of(access, &salient));
        let ticket = binding.and_then(|binding| self.tickets.open(ticket, &binding));
        let me = &self.sender.hub.0.owner.me;
        match ticket {
            None => Opened::Invalid,
            Some(ticket) if ticket.call == NO_CALL => Opened::CallAgain,
            Some(ticket) if ticket.is_of(me) => Opened::Here(ticket),
            Some(ticket) if *ticket.replica().address == *me.address => Opened::Lost,
            Some(ticket) => Opened::There(ticket.replica()),
        }
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
        ticket: &Ticket,
    ) -> Result<Resumed, Error> {
        let Some(mut parked) = self.parked.take(ticket.call, ticket.round) else {
            return Ok(Resumed::Used);
        };
        for (id, answer) in modern::responses(retry, &parked.asks) {
            match parked.call.reply(access, &id, &answer).await {
                Ok(()) => {}
                Err(Error::NoSession) => return Ok(Resumed::Ended),
                Err(error) => {
                    self.keep_parked(ticket.call, parked);
                    return Err(error);
                }
            }
            parked.asks.retain(|ask| ask.id != id);
        }
        if parked.asks.is_empty() {
            return Ok(Resumed::Here(Box::new(parked)));
        }
        Ok(Resumed::Again(Box::new(Asked {
            asks: parked.asks.clone(),
            server_info: parked.call.server_info(),
            ticket: self.park(parked)?,
        })))
    }
}

/// The number of no parked call: its client calls again.
const NO_CALL: u64 = 0;
/// The time that parked calls have left when their replica is about to end.
const GRACE: Duration = Duration::from_secs(1);
