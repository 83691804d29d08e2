//! Retries: calls that are parked until their client answers, and read on then.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time::sleep};

use super::{
    call::replies,
    parked::{Asked, Opened, Parked, Resumed},
    sessions::Stateless,
    ticket::{Binding, CallDigest, Carried, ForCall, MAX_STATE, Ticket, use_of},
};
use crate::{
    auth::Access,
    base::budget::LargeWork,
    error::Error,
    hub::{Hub, core::or_never, limits::Seats},
    protocol::{
        Message,
        modern::{self, InputRequest},
    },
};

impl Stateless {
    /// Parks a call until its client answers; returns its ticket. A client that does not answer has its
    /// call cancelled when the server would wait no longer (`clocks.ask`). Meanwhile it has no connection, and no seat
    /// among the streams.
    ///
    /// # Errors
    ///
    /// `Bug` if the system has no randomness.
    pub(crate) fn park(self: &Arc<Self>, mut parked: Parked) -> Result<String, Error> {
        parked.round += 1;
        parked.call.has_asked = true;
        parked.reader.hold(Seats::new());
        let (call, round) = (self.sender.next_id(), parked.round);
        let ticket = ForCall {
            ticket: Ticket::new(&self.sender.hub.0.owner.me, call, round),
            call: parked.digest.clone(),
        };
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
        let ticket = ForCall {
            ticket,
            call: CallDigest::at_once(access, request),
        };
        Some((asks, self.tickets.seal(&ticket, &Binding::of(access))?))
    }

    /// Opens the ticket of a retry. Only one that the gateway has made is worth a look at the retry, which may be
    /// large.
    pub(crate) fn open(&self, access: &Access, retry: &Message, ticket: &str) -> Opened {
        let (binding, me) = (Binding::of(access), &self.sender.hub.0.owner.me);
        let Some(opened) = self.tickets.open::<ForCall<Ticket>>(ticket, &binding) else {
            let opened = self.carried.open::<ForCall<Carried>>(ticket, &binding);
            return match opened.and_then(|opened| opened.of(retry)) {
                Some(carried) if carried.until > self.now_ms() => Opened::Carried(carried),
                _ => Opened::Invalid,
            };
        };
        match opened.of(retry) {
            None => Opened::Invalid,
            Some(ticket) if ticket.call == NO_CALL => Opened::CallAgain,
            Some(ticket) if ticket.is_of(me) => Opened::Here(ticket),
            Some(ticket) if *ticket.replica().address == *me.address => Opened::Lost,
            Some(ticket) => Opened::There(ticket.replica()),
        }
    }

    /// The ticket of a client that a server of its own era has asked for the `round`th time, with the raw state of
    /// that server, which it ends in the time for an answer (`clocks.ask`).
    ///
    /// # Errors
    ///
    /// The reason why it cannot be asked.
    pub(crate) fn carry(
        &self,
        access: &Access,
        request: &Message,
        state: Option<&[u8]>,
        round: u32,
    ) -> Result<String, &'static str> {
        if round > MAX_ROUNDS {
            return Err("the server asks without an end");
        }
        if state.is_some_and(|state| state.len() > MAX_STATE) {
            return Err("the server asks for too much at once");
        }
        let ask = or_never(access.server().clocks_of(request.tool().as_deref()).ask);
        let ask = i64::try_from(ask.as_millis()).unwrap_or(i64::MAX);
        let carried = Carried {
            state: state.map(|state| String::from_utf8_lossy(state).into_owned()),
            round,
            until: self.now_ms().saturating_add(ask),
        };
        let carried = ForCall {
            ticket: carried,
            call: CallDigest::at_once(access, request),
        };
        let sealed = self.carried.seal(&carried, &Binding::of(access));
        sealed.ok_or("there is no randomness")
    }

    /// Uses a carried ticket; none if it was used before, at any replica.
    ///
    /// # Errors
    ///
    /// `Limit` and `Busy` if more cannot be remembered.
    pub(crate) async fn use_carried(
        &self,
        access: &Access,
        ticket: &str,
        carried: Carried,
    ) -> Result<Option<UsedTicket>, Error> {
        let left = carried.until.saturating_sub(self.now_ms());
        let window = Duration::from_millis(u64::try_from(left).unwrap_or(0)) + CLOCKS;
        let limits = self.sender.hub.limits();
        let is_first = limits.once(access, use_of(ticket), window).await?;
        Ok(is_first.then(|| UsedTicket {
            hub: self.sender.hub.clone(),
            ticket: use_of(ticket),
            carried,
            is_sent: false,
        }))
    }

    fn now_ms(&self) -> i64 {
        self.sender.hub.0.snapshot.clock().now_ms()
    }

    /// Continues the call of a ticket with the answers of its client. The response to the retry may be a stream, like
    /// that to any POST.
    ///
    /// # Errors
    ///
    /// `Quota`, and those of the delivery to its session; the call stays parked then, under the same ticket.
    pub(crate) async fn resume(
        self: &Arc<Self>,
        access: &Access,
        retry: &Message,
        ticket: &Ticket,
    ) -> Result<Resumed, Error> {
        let limits = self.sender.hub.limits();
        let mut seats = limits.seats_for_post(access).await?;
        seats.extend(limits.became_stream(access).await);
        let turn = LargeWork::turn(&access.tenant().name, retry.bytes().len()).await;
        let Some(mut parked) = self.parked.take(ticket.call, ticket.round) else {
            return Ok(Resumed::Used);
        };
        for (id, reply) in turn.run(|| replies(retry, &parked.asks)) {
            match parked.call.reply(access, reply).await {
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
            parked.reader.hold(seats);
            return Ok(Resumed::Here(Box::new(parked)));
        }
        Ok(Resumed::Again(Box::new(Asked {
            asks: parked.asks.clone(),
            server_info: parked.call.server_info(),
            ticket: self.park(parked)?,
        })))
    }
}

/// The use of a carried ticket. It is taken back when this is dropped before the retry was sent to a server, so that the
/// answers of a person outlive a connection that breaks while the server is being started.
pub(crate) struct UsedTicket {
    hub: Hub,
    /// The value that the limiter remembers.
    ticket: [u8; 32],
    /// The meaning of the ticket.
    pub(super) carried: Carried,
    /// Whether a server may have the retry.
    pub(super) is_sent: bool,
}

impl UsedTicket {
    /// Takes the use back unless a server may have the retry, and returns when the ticket works again.
    pub(crate) async fn settle(mut self) {
        if let Some(given_back) = self.give_back() {
            let _ = given_back.await;
        }
    }

    /// Takes the use back in a task of its own: half of it would be done when a client leaves meanwhile.
    fn give_back(&mut self) -> Option<JoinHandle<()>> {
        if std::mem::replace(&mut self.is_sent, true) {
            return None;
        }
        let (hub, ticket) = (self.hub.clone(), self.ticket);
        let tracker = self.hub.0.tracker.clone();
        Some(tracker.spawn(async move { hub.limits().give_back(ticket).await }))
    }
}

impl Drop for UsedTicket {
    fn drop(&mut self) {
        drop(self.give_back());
    }
}

/// The most rounds of one call.
const MAX_ROUNDS: u32 = 64;
/// The difference that clocks of replicas may have: a ticket that has ended here may be good elsewhere.
const CLOCKS: Duration = Duration::from_secs(20);
/// The number of no parked call: its client calls again.
const NO_CALL: u64 = 0;
/// The time that parked calls have left when their replica is about to end.
const GRACE: Duration = Duration::from_secs(1);
