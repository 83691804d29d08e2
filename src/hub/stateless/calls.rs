//! Calls of clients without sessions, each in a session that is kept for it.

use std::sync::Arc;

use super::{
    call::{Begun, CallInFlight},
    group::Caller,
    leases::TRIES,
    retries::UsedTicket,
    sessions::Stateless,
};
use crate::{
    base::budget::LargeWork,
    error::Error,
    hub::{
        core::or_never,
        stream::{Answer, Form},
    },
    protocol::{
        Body, Message,
        modern::{self, Round},
    },
};

impl Stateless {
    /// Begins the call that a request makes, of a tool that has to be called as a task of 2025-11-25 if
    /// `is_for_tasks`: its session goes on to the result. The retry of a carried ticket that was `used` is one for a
    /// server of this era alone, since any other would execute it as a new call.
    ///
    /// # Errors
    ///
    /// `Scopes`, `Quota`, `Busy`, `Draining`; `NoSession` if each session has ended before it had the call.
    pub(crate) async fn call(
        &self,
        caller: &Caller<'_>,
        request: &Message,
        level: Option<&str>,
        is_for_tasks: bool,
        mut used: Option<&mut UsedTicket>,
    ) -> Result<Begun, Error> {
        let clocks = caller.access.server().clocks_of(request.tool().as_deref());
        let mut tries = 0;
        loop {
            let lease = match self.lease_at(caller, level).await? {
                Ok(lease) => lease,
                Err(line) => return Ok(Begun::Failed(line)),
            };
            let carried = used.as_deref().map(|used| &used.carried);
            if carried.is_some() && !lease.is_stateless() {
                return Ok(Begun::Lost);
            }
            // Also where the client cannot be asked: it is told what it lacks, and its server may ask for nothing but
            // the request once more. A call that may become a task is asked in its session where it has one alone, since
            // that goes on when it has become one.
            let is_carried = lease.is_stateless()
                && (caller.may_carry() || !lease.is_alone())
                && modern::is_mirrored(&request.method_name());
            let carries = carried.is_some() || is_carried;
            let round = carries.then(|| Round {
                state: carried.and_then(|carried| carried.state.as_deref()),
                is_told: modern::may_be_asked(caller.capabilities),
            });
            let id = self.sender.next_id();
            // Where a server declares no tasks, "clients MUST NOT attempt to use task augmentation"
            // (2025-11-25 tasks, "Tool-Level Negotiation").
            let task = (is_for_tasks && lease.has_tasks()).then(|| or_never(clocks.call_max));
            let tenant = &caller.access.tenant().name;
            let turn = LargeWork::turn(tenant, request.bytes().len()).await;
            let message = turn
                .run(|| modern::for_session(request, id, task, round.as_ref()))
                .map_err(|_| Error::Bug("a request of a client for its session"))?;
            let sender = Arc::clone(&self.sender);
            let mut call = CallInFlight::new(sender, lease, caller.access.clone(), id);
            call.carried = carries.then(|| carried.map_or(0, |carried| carried.round));
            let answer = self
                .send_call(&call, message, caller, used.as_deref_mut())
                .await;
            tries += 1;
            match answer {
                // The session ended at this moment, and no server has seen the call.
                Answer::Refused(Error::NoSession) if tries < TRIES => call.finish(),
                Answer::Refused(error) => {
                    call.finish();
                    return Err(error);
                }
                answer => return Ok(Begun::Sent(answer, Box::new(call))),
            }
        }
    }

    /// Sends a call to its session; its first answer. A server may have the retry that has `used` a ticket from then on,
    /// unless it is refused.
    async fn send_call(
        &self,
        call: &CallInFlight,
        message: Message,
        caller: &Caller<'_>,
        mut used: Option<&mut UsedTicket>,
    ) -> Answer {
        if let Some(used) = &mut used {
            used.is_sent = true;
        }
        let marks = (None, caller.trace.clone());
        let (handle, body) = (&call.lease.handle, Body::One(message));
        let sent = self
            .sender
            .hub
            .deliver_to(handle, caller.access, body, Form::Auto, marks);
        let answer = match sent.await {
            Ok(pending) => pending.answer().await,
            Err(error) => Answer::Refused(error),
        };
        if let (Some(used), Answer::Refused(_)) = (used, &answer) {
            used.is_sent = false;
        }
        answer
    }
}
