//! Capabilities that a client declares in `initialize`, as far as they decide what a server may ask
//! (2025-11-25 lifecycle, "Capability Negotiation").

use super::{json, message::Message};

/// What a server may ask its client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientCapabilities {
    has_roots: bool,
    has_sampling: bool,
    has_sampling_tools: bool,
    has_form: bool,
    has_url: bool,
    has_tasks: bool,
}

impl ClientCapabilities {
    /// The capabilities in an `initialize`.
    pub(crate) fn of(initialize: &Message) -> Self {
        let capabilities = initialize
            .params()
            .and_then(|params| json::get(params, "capabilities"));
        let Some(capabilities) = capabilities else {
            return Self::default();
        };
        let sampling = declared(capabilities, "sampling");
        let elicitation = declared(capabilities, "elicitation");
        let has = |of: Option<&[u8]>, name| of.is_some_and(|of| declared(of, name).is_some());
        let has_url = has(elicitation, "url");
        Self {
            has_roots: declared(capabilities, "roots").is_some(),
            has_sampling: sampling.is_some(),
            has_sampling_tools: has(sampling, "tools"),
            // "An empty capabilities object is equivalent to declaring support for form mode only"
            // (2025-11-25 elicitation, "Capabilities").
            has_form: elicitation.is_some() && (!has_url || has(elicitation, "form")),
            has_url,
            has_tasks: declared(capabilities, "tasks").is_some(),
        }
    }

    /// The code and the text of the error to a request of the server that the client did not declare;
    /// none for one that it did, and for methods that this build does not know.
    pub(crate) fn refusal(self, request: &Message) -> Option<(i32, &'static str)> {
        let param = |name| request.params().and_then(|params| declared(params, name));
        let (is_declared, code, text) = match &*request.method_name() {
            // 2025-11-25 roots, "Error Handling".
            "roots/list" => (self.has_roots, -32601, "the client has no roots"),
            "sampling/createMessage" if !self.has_sampling => {
                (false, -32601, "the client does not sample")
            }
            "sampling/createMessage" => {
                let has_tools = param("tools").is_some() || param("toolChoice").is_some();
                let is_declared = self.has_sampling_tools || !has_tools;
                (is_declared, -32602, "the client does not sample with tools")
            }
            "elicitation/create" if !self.has_form && !self.has_url => {
                (false, -32601, "the client does not elicit")
            }
            // 2025-11-25 elicitation, "Error Handling": −32602 for a mode that was not declared.
            "elicitation/create" => {
                let is_declared = match param("mode").and_then(json::decoded).as_deref() {
                    None | Some("form") => self.has_form,
                    Some("url") => self.has_url,
                    Some(_) => true,
                };
                (
                    is_declared,
                    -32602,
                    "the client does not elicit in this mode",
                )
            }
            method if method.starts_with("tasks/") => {
                (self.has_tasks, -32601, "the client has no tasks")
            }
            _ => return None,
        };
        (!is_declared).then_some((code, text))
    }
}

/// The value of a capability, or of a parameter, that is there.
fn declared<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    json::get(object, name).filter(|value| !matches!(*value, b"null" | b"false"))
}
