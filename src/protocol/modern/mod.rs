//! Messages of the modern era (revision 2026-07-28 and later), and the same messages for session-based
//! servers and clients.
//!
//! Pure functions over bytes. Not here: the sessions in between (`hub::stateless`) and HTTP
//! (`http::mcp`).
//!
//! * `answer`: answers of session-based servers, completed for modern clients
//! * `cache`: results that may be kept
//! * `discover`: answers to `server/discover` and the filters of `subscriptions/listen`
//! * `input`: requests of a server to its client as `input_required`, and the client's answers
//! * `mirrored`: values of header fields that mirror the body
//! * `tool_headers`: header fields that mirror arguments of tools
//! * `tasks`: states of tasks, and the messages that carry them
//! * `request`: what a request says in `_meta`, and the request for a session-based server
//! * `session_client`: the other way round: requests of session-based clients for servers of this era

mod answer;
mod cache;
mod discover;
mod input;
mod mirrored;
mod request;
mod session_client;
mod tasks;
mod tool_headers;

pub(crate) use self::answer::{Caching, Completion, with_subscription};
pub(crate) use self::cache::{CacheHint, CacheKey, Change};
pub(crate) use self::discover::{Filter, discover_result, is_change};
pub(crate) use self::input::{
    AnswersAhead, InputRequest, input_required, responses, url_elicitations,
};
pub(crate) use self::mirrored::{Mirrored, is_mirrored};
pub(crate) use self::request::{
    RequestMeta, Round, capability_of, for_session, input_responses, is_removed, may_be_asked,
    request_state, salient,
};
pub(crate) use self::session_client::{
    ClientMeta, Mark, ServerAnswer, WantedInput, for_session_client, initialize_result,
    is_stateless, leave_unacknowledged, push_ask, retry, server_capabilities, subscription_of,
    unmarked, without_subscription,
};
pub(crate) use self::tasks::{
    TASKS_REQUIRED, TaskState, TaskStatus, declares_tasks, failed, is_about_task, is_over,
    task_acknowledged, task_created, task_found, task_notification,
};
pub(crate) use self::tool_headers::{ToolHeaders, without_invalid_tools};
