//! The access policy of a server, applied to messages: requests and notifications of clients, lists
//! and notifications of servers. Without I/O.
//!
//! Names and URIs are compared after JSON unescaping and nothing else: no case folding, dot
//! segments, percent encoding or Unicode normalization. The server receives the same bytes and so
//! acts on the judged name. Only the server knows which spellings it treats alike; hence `allow` is
//! safer than `deny`.
//!
//! Not here: the patterns (`declare::policy`, `declare::pattern`).
//!
//! A refusal repeats only the requested name, so that a denied name and an unknown one look the
//! same.

use bytes::{Bytes, BytesMut};

use super::access::Access;
use crate::{
    base::budget::Budget,
    declare::{Names, Policy},
    protocol::{Body, Message, Method, Span, json},
};

/// The error response to a request that policy refuses, in the form the server uses for unknown
/// names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PolicyRefusal {
    /// The JSON-RPC error code.
    pub(crate) code: i32,
    /// The message.
    pub(crate) message: String,
    /// The `data` member, as raw JSON.
    pub(crate) data: Option<String>,
}

/// A list that policy filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// `tools/list`
    Tools,
    /// `prompts/list`
    Prompts,
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    Templates,
}

impl Listed {
    /// The list that a method requests, if any.
    pub(crate) fn of(method: Method) -> Option<Self> {
        match method {
            Method::ToolsList => Some(Self::Tools),
            Method::PromptsList => Some(Self::Prompts),
            Method::ResourcesList => Some(Self::Resources),
            Method::TemplatesList => Some(Self::Templates),
            _ => None,
        }
    }

    /// The result member with the list.
    pub(crate) const fn list(self) -> &'static str {
        self.members().0
    }

    /// The result member with the list, and the entry member with the name.
    const fn members(self) -> (&'static str, &'static str) {
        match self {
            Self::Tools => ("tools", "name"),
            Self::Prompts => ("prompts", "name"),
            Self::Resources => ("resources", "uri"),
            Self::Templates => ("resourceTemplates", "uriTemplate"),
        }
    }

    fn is_open(self, policy: &Policy) -> bool {
        self.names(policy).is_open()
    }

    fn names(self, policy: &Policy) -> &Names {
        match self {
            Self::Tools => &policy.tools,
            Self::Prompts => &policy.prompts,
            Self::Resources | Self::Templates => &policy.resources,
        }
    }

    fn allows(self, policy: &Policy, name: &str) -> bool {
        match self {
            Self::Templates => policy.resources.allows_template(name),
            Self::Tools | Self::Prompts | Self::Resources => self.names(policy).allows(name),
        }
    }
}

/// The refusal of a client's request or notification, if any.
pub(crate) fn denied(policy: &Policy, message: &Message) -> Option<PolicyRefusal> {
    match message.method() {
        Method::ToolsCall => {
            let name = unless_allowed(&policy.tools, message.raw_name())?;
            Some(unknown(format!("Unknown tool: {name}")))
        }
        Method::PromptsGet => {
            let name = unless_allowed(&policy.prompts, message.raw_name())?;
            Some(unknown(format!("Unknown prompt: {name}")))
        }
        Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => {
            unless_allowed(&policy.resources, message.uri())?;
            Some(no_resource(message.uri()))
        }
        Method::Complete => completion(policy, message),
        Method::Other => other_method(policy, &message.method_name()),
        _ => None,
    }
}

/// Returns those of these raw URIs that are allowed. Many are judged in steps, between which others than the owner of
/// the share go first.
pub(crate) async fn allowed_resources(
    policy: &Policy,
    uris: Vec<Box<[u8]>>,
    share: &Budget,
) -> Vec<Box<[u8]>> {
    let (names, mut work) = (&policy.resources, 0);
    let (patterns, mut allowed) = (names.patterns(), Vec::new());
    for uri in uris {
        if work >= STEP {
            share.others_first().await;
            work = 0;
        }
        work += uri.len() * patterns;
        if unless_allowed(names, Some(&*uri)).is_none() {
            allowed.push(uri);
        }
    }
    allowed
}

/// Returns the shortened name for a refusal, unless the name is allowed.
fn unless_allowed(names: &Names, raw: Option<&[u8]>) -> Option<String> {
    if names.is_open() {
        return None;
    }
    // A value that is not a string, or has lone surrogates, has no name to compare.
    let name = raw.and_then(json::decoded).unwrap_or_default();
    let is_allowed = raw.and_then(json::decoded).is_some() && names.allows(&name);
    (!is_allowed).then(|| name.chars().take(REPEATED).collect())
}

/// Makes the error of 2025-11-25 tools, "Error Handling", and prompts, "Error Handling".
fn unknown(message: String) -> PolicyRefusal {
    let (code, data) = (-32602, None);
    PolicyRefusal {
        code,
        message,
        data,
    }
}

/// Makes the error of 2025-11-25 resources, "Error Handling".
fn no_resource(uri: Option<&[u8]>) -> PolicyRefusal {
    let uri = uri.filter(|uri| uri.len() <= REPEATED);
    let uri = uri.and_then(|uri| std::str::from_utf8(uri).ok());
    PolicyRefusal {
        code: -32002,
        message: "Resource not found".to_owned(),
        data: uri.map(|uri| format!(r#"{{"uri":{uri}}}"#)),
    }
}

/// Checks both members of a reference, regardless of its type, because a server may ignore the type.
fn completion(policy: &Policy, message: &Message) -> Option<PolicyRefusal> {
    if policy.prompts.is_open() && policy.resources.is_open() {
        return None;
    }
    let (name, uri) = message.reference();
    if let Some(name) = name.and_then(|name| unless_allowed(&policy.prompts, Some(name))) {
        return Some(unknown(format!("Unknown prompt: {name}")));
    }
    let Some(raw) = uri else {
        let is_known = name.is_some() && message.has_reference();
        return (!is_known).then(|| unknown("Unknown reference".to_owned()));
    };
    // 2025-11-25 schema, `ResourceTemplateReference`: a URI or a URI template.
    let text = json::decoded(raw).unwrap_or_default();
    let is_allowed = policy.resources.is_open()
        || policy.resources.allows(&text) && !text.contains('{')
        || text.contains('{') && policy.resources.allows_template(&text);
    (!is_allowed || text.is_empty()).then(|| {
        let text: String = text.chars().take(REPEATED).collect();
        unknown(format!("Unknown resource template: {text}"))
    })
}

/// Refuses an unknown method whose kind of object the policy restricts: it might reach a denied
/// object.
fn other_method(policy: &Policy, method: &str) -> Option<PolicyRefusal> {
    let is_open = |kind: &str| match kind {
        "tools" => policy.tools.is_open() && !policy.has_scopes(),
        "prompts" => policy.prompts.is_open(),
        "resources" => policy.resources.is_open(),
        "completion" => policy.prompts.is_open() && policy.resources.is_open(),
        _ => true,
    };
    let all = ["tools", "prompts", "resources", "completion"];
    if all.into_iter().all(is_open) {
        return None;
    }
    // A server that ignores case must not offer a bypass.
    let folded: String = method
        .chars()
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect();
    let kind = folded.split('/').next().unwrap_or_default().trim();
    (!is_open(kind)).then(|| PolicyRefusal {
        code: -32601,
        message: "Method not found".to_owned(),
        data: None,
    })
}

/// Reports whether a server's notification concerns a resource that policy denies.
pub(crate) fn is_muted(policy: &Policy, message: &Message) -> bool {
    message.method() == Method::Updated
        && unless_allowed(&policy.resources, message.uri()).is_some()
}

/// Returns all scopes that the caller should have, present ones included, if the body needs more
/// than the access has (2025-11-25 authorization, "Runtime Insufficient Scope Errors", the
/// recommended approach).
pub(crate) fn missing_scopes(access: &Access, body: &Body) -> Option<Vec<String>> {
    let policy = access.policy();
    if !policy.has_scopes() {
        return None;
    }
    let mut lacking: Vec<String> = Vec::new();
    let mut add = |message: &Message| {
        if message.method() != Method::ToolsCall || denied(policy, message).is_some() {
            return;
        }
        let name = message.name();
        let needed: Vec<&String> = match &name {
            Some(name) => policy.scopes_of(name).collect(),
            // An unreadable name may stand for any tool.
            None => policy.all_scopes().into_iter().collect(),
        };
        for scope in needed {
            if !policy.covers(access.scopes(), scope) && !lacking.contains(scope) {
                lacking.push(scope.clone());
            }
        }
    };
    match body {
        Body::One(message) => add(message),
        Body::Batch(items) => items.iter().flatten().for_each(add),
    }
    if lacking.is_empty() {
        return None;
    }
    Some(access.scopes().items().cloned().chain(lacking).collect())
}

/// The response to a list request with allowed entries only, byte for byte. A long list is judged in
/// steps, between which others than the owner of the share go first.
pub(crate) async fn filtered(
    policy: &Policy,
    listed: Listed,
    answer: Bytes,
    share: &Budget,
) -> Bytes {
    if listed.is_open(policy) {
        return answer;
    }
    let list = listed.list();
    let mut cuts: Vec<(Span, BytesMut)> = Vec::new();
    for (key, result) in json::members(&answer, Span::whole(&answer)) {
        if !is(&answer, key, "result") {
            continue;
        }
        for (key, value) in json::members(&answer, result) {
            if is(&answer, key, list) {
                let kept = kept(policy, listed, value.of(&answer), share).await;
                cuts.extend(kept.map(|kept| (value, kept)));
            }
        }
    }
    if cuts.is_empty() {
        return answer;
    }
    let cuts: Vec<(Span, &[u8])> = cuts.iter().map(|(span, kept)| (*span, &**kept)).collect();
    let mut out = BytesMut::with_capacity(answer.len());
    json::splice(&mut out, &answer, &cuts);
    out.freeze()
}

/// Removes denied entries from a list; `None` if all entries are allowed.
async fn kept(policy: &Policy, listed: Listed, list: &[u8], share: &Budget) -> Option<BytesMut> {
    let (_, name) = listed.members();
    let (mut kept, mut is_whole) = (BytesMut::from(&b"["[..]), true);
    let (mut items, mut work) = (json::Items::of(list), 0);
    let patterns = listed.names(policy).patterns();
    loop {
        let entry = match items.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(_) => {
                // A value that is not a list is emptied.
                kept.truncate(1);
                is_whole = false;
                break;
            }
        };
        let name = json::get(entry, name).and_then(json::decoded);
        // An empty name is compared with each pattern, too.
        work += entry.len() + patterns * name.as_ref().map_or(0, |name| name.len() + 1);
        if name.is_some_and(|name| listed.allows(policy, &name)) {
            if kept.len() > 1 {
                kept.extend_from_slice(b",");
            }
            kept.extend_from_slice(entry);
        } else {
            is_whole = false;
        }
        if work >= STEP {
            work = 0;
            share.others_first().await;
        }
    }
    kept.extend_from_slice(b"]");
    (!is_whole).then_some(kept)
}

fn is(text: &[u8], key: Span, name: &str) -> bool {
    json::decoded(key.of(text)).is_some_and(|key| key == name)
}

/// Maximum characters (bytes of a URI) of a name in a response.
const REPEATED: usize = 1024;
/// Bytes of entries, and of names for each pattern, that are judged at once: a millisecond at most.
const STEP: usize = 64 << 10;

#[cfg(test)]
#[path = "tests/policy.rs"]
mod tests;
