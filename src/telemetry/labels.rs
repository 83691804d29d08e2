//! Labels: the values by which metrics are told apart.
//!
//! A variant's name in snake case is the value. Not here: the metrics (`metrics`).

use strum::{FromRepr, IntoStaticStr, VariantNames};

/// Kind of the route that answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Route {
    /// The MCP endpoint, any method.
    Mcp,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// `/livez` and `/readyz`.
    Health,
    /// Any other path.
    Other,
}

/// Reason why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Ended {
    /// The client deleted the session.
    Deleted,
    /// The principal may not use the server any more.
    Revoked,
    /// The session was idle for too long.
    Idle,
    /// The session reached its maximum age.
    Expired,
    /// The connection of an HTTP+SSE session closed.
    Disconnected,
    /// The child could not be replaced.
    Lost,
    /// The gateway stopped.
    Drained,
    /// Another replica claimed the session.
    Fenced,
    /// The replica was cut off from the others for too long.
    Orphaned,
}

/// Reason why a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Exit {
    /// The gateway stopped the child.
    Stopped,
    /// The child was idle for too long.
    Idle,
    /// The child ended by itself after its start.
    Crashed,
    /// The child ended before it responded to the first request.
    FailedStart,
    /// The child did not stop in time and was killed.
    Killed,
}

/// State of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames, FromRepr)]
#[strum(serialize_all = "snake_case", const_into_str)]
#[repr(u8)]
pub(crate) enum ChildState {
    /// The child has not responded to the first request yet.
    Starting,
    /// The child waits for its first call.
    Ready,
    /// The child has open calls.
    Busy,
    /// The child has had calls and has none open.
    Idle,
    /// The child is being stopped.
    Stopping,
}

/// Class of a call's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum MethodClass {
    /// `initialize`, `server/discover`.
    Initialize,
    /// `tools/call`.
    Tool,
    /// Any list.
    List,
    /// `resources/read`, `prompts/get`.
    Read,
    /// Everything else.
    Other,
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Outcome {
    /// The child returned a result.
    Result,
    /// The child returned an error.
    Error,
    /// The client cancelled the call.
    Cancelled,
    /// The call exceeded its time limit.
    TimedOut,
    /// The child or the session owner was lost.
    Lost,
}

/// Reason why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Dropped {
    /// No stream may carry the message.
    NoStream,
    /// The response belongs to no open request.
    Unknown,
    /// The message exceeds the size limit.
    TooLarge,
    /// The notification or response of a batch was refused, which no answer of the batch says.
    Refused,
    /// The message is long, and its caller has no room for it.
    NoRoom,
}

/// Outcome of the resumption of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Resumed {
    /// The stream continues behind the event.
    Continued,
    /// The stream has ended, and the client has all of it.
    Ended,
    /// Events behind the event are lost: trimmed, or with the data of the store.
    Lost,
    /// The store is away, or a limit is reached.
    Refused,
}

/// Reason why a caller was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Denied {
    /// No credentials; most clients begin like this.
    NoToken,
    /// Invalid credentials.
    BadToken,
    /// Valid credentials without access to this server.
    NoGrant,
    /// A wrong password, or a user that may not log in.
    BadPassword,
    /// Failed authentication of a client.
    BadClient,
    /// An invalid code or refresh token, or one of another client.
    BadGrant,
}

/// Outcome of a log-in of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Login {
    /// The person is logged in.
    Success,
    /// A wrong password, or a user that may not log in.
    BadPassword,
    /// The identity provider did not identify the person, or the tenant does not admit the person.
    Refused,
    /// The identity provider did not answer, or with nothing that could be used.
    Unavailable,
}

/// Outcome of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum HopOutcome {
    /// The other replica responded.
    Ok,
    /// The other replica refused the connection or never took the request.
    Refused,
    /// The other replica is not the owner of the session.
    Moved,
    /// The request was sent, and then the connection broke.
    Broken,
    /// The limit of concurrent requests to the other replica is reached.
    Full,
}

/// Class of the HTTP status of an answer, or what a request had instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum StatusClass {
    /// Informational.
    #[strum(serialize = "1xx")]
    Informational,
    /// Success.
    #[strum(serialize = "2xx")]
    Success,
    /// Redirection.
    #[strum(serialize = "3xx")]
    Redirection,
    /// Client error.
    #[strum(serialize = "4xx")]
    ClientError,
    /// Server error.
    #[strum(serialize = "5xx")]
    ServerError,
    /// No answer: the client left before.
    Aborted,
}

impl From<u16> for StatusClass {
    fn from(status: u16) -> Self {
        match status {
            ..200 => Self::Informational,
            200..300 => Self::Success,
            300..400 => Self::Redirection,
            400..500 => Self::ClientError,
            _ => Self::ServerError,
        }
    }
}
