//! Routing table: the stream for each message of the server, as one pure function.

use crate::{
    backend::dialect::CallId,
    protocol::{LISTENER_STREAM, StreamId},
};

/// A call that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight<'a> {
    /// The gateway's id of the call; later calls have higher ids.
    pub(crate) call: CallId,
    /// The stream of its response.
    pub(crate) stream: StreamId,
    /// Whether that stream is SSE, or may still become SSE.
    pub(crate) is_carrier: bool,
    /// The raw id of the task whose result the call waits for.
    pub(crate) task: Option<&'a [u8]>,
}

/// The kind of a message, for its route.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About<'a> {
    /// Progress of a call.
    Progress(CallId),
    /// A request of the server, with the raw id of its related task.
    Ask(Option<&'a [u8]>),
    /// A log message, with the raw id of its related task.
    Log(Option<&'a [u8]>),
    /// Any other message.
    Other,
}

/// Returns the one stream for a message; none if the message has to be dropped.
pub(crate) fn route<'a>(
    about: About<'_>,
    calls: impl Iterator<Item = InFlight<'a>> + Clone,
) -> Option<StreamId> {
    let find = |id| calls.clone().find(|in_flight| in_flight.call == id);
    match about {
        About::Progress(call) => find(call)
            .filter(|in_flight| in_flight.is_carrier)
            .map(|in_flight| in_flight.stream),
        About::Ask(task) => Some(
            of_task(task, calls.clone())
                .or_else(|| only(calls.clone()))
                .or_else(|| youngest(calls))
                .unwrap_or(LISTENER_STREAM),
        ),
        About::Log(task) => Some(
            of_task(task, calls.clone())
                .or_else(|| only(calls))
                .unwrap_or(LISTENER_STREAM),
        ),
        About::Other => Some(LISTENER_STREAM),
    }
}

fn of_task<'a>(
    task: Option<&[u8]>,
    mut calls: impl Iterator<Item = InFlight<'a>>,
) -> Option<StreamId> {
    let task = task?;
    calls
        .find(|in_flight| in_flight.is_carrier && in_flight.task == Some(task))
        .map(|in_flight| in_flight.stream)
}

fn only<'a>(mut calls: impl Iterator<Item = InFlight<'a>>) -> Option<StreamId> {
    let first = calls.next()?;
    (calls.next().is_none() && first.is_carrier).then_some(first.stream)
}

fn youngest<'a>(calls: impl Iterator<Item = InFlight<'a>>) -> Option<StreamId> {
    calls
        .filter(|in_flight| in_flight.is_carrier)
        .max_by_key(|in_flight| in_flight.call)
        .map(|in_flight| in_flight.stream)
}

#[cfg(test)]
mod tests {
    use super::super::routes::*;

    const fn call(
        call: CallId,
        is_carrier: bool,
        task: Option<&'static [u8]>,
    ) -> InFlight<'static> {
        #[expect(clippy::cast_possible_truncation, reason = "small test numbers")]
        InFlight {
            call,
            stream: call as StreamId * 10,
            is_carrier,
            task,
        }
    }

    const LISTENER: Option<StreamId> = Some(LISTENER_STREAM);

    #[test]
    fn follows_the_table() {
        let none: &[InFlight<'_>] = &[];
        let one = &[call(1, true, None)];
        let one_json = &[call(1, false, None)];
        let two = &[call(1, true, None), call(2, true, None)];
        let mixed = &[call(1, true, None), call(2, false, None)];
        let waiting = &[call(1, true, Some(b"\"t\"")), call(2, true, None)];
        let task: Option<&[u8]> = Some(b"\"t\"");
        let cases: [(&str, About<'_>, &[InFlight<'_>], Option<StreamId>); 19] = [
            ("progress", About::Progress(1), two, Some(10)),
            ("progress of no carrier", About::Progress(2), mixed, None),
            ("progress of an unknown call", About::Progress(9), two, None),
            ("ask of a task", About::Ask(task), waiting, Some(10)),
            ("ask of an unknown task", About::Ask(task), two, Some(20)),
            ("ask in the only call", About::Ask(None), one, Some(10)),
            (
                "ask, the only call no carrier",
                About::Ask(None),
                one_json,
                LISTENER,
            ),
            ("ask among several", About::Ask(None), two, Some(20)),
            ("ask, youngest carrier", About::Ask(None), mixed, Some(10)),
            ("ask without calls", About::Ask(None), none, LISTENER),
            ("log of a task", About::Log(task), waiting, Some(10)),
            ("log in the only call", About::Log(None), one, Some(10)),
            (
                "log, the only call no carrier",
                About::Log(None),
                one_json,
                LISTENER,
            ),
            ("log among several", About::Log(None), two, LISTENER),
            ("log among mixed", About::Log(None), mixed, LISTENER),
            ("log without calls", About::Log(None), none, LISTENER),
            ("other", About::Other, one, LISTENER),
            ("other among several", About::Other, two, LISTENER),
            ("other without calls", About::Other, none, LISTENER),
        ];
        for (name, about, calls, to) in cases {
            assert_eq!(route(about, calls.iter().copied()), to, "{name}");
        }
    }
}
