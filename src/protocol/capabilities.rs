//! Capabilities that a client declares in `initialize`, as far as they decide what a server may ask
//! (2025-11-25 lifecycle, "Capability Negotiation").

use super::{json, message::Message};

/// What a server may ask its client: the capabilities that the client declared, by their paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientCapabilities(Vec<&'static str>);

/// A capability that a client did not declare, with the code and the text of the error to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// The capability, by its path.
    pub(crate) capability: &'static str,
    /// The code.
    pub(crate) code: i32,
    /// The text.
    pub(crate) text: &'static str,
}

impl Lacking {
    /// The data of the error that tells a client so (2026-07-28 basic, "Per-request protocol fields").
    pub(crate) fn data(capability: &str) -> String {
        let inside = |value: String, name: &str| format!(r#"{{"{name}":{value}}}"#);
        let required = capability.rsplit('.').fold("{}".to_owned(), inside);
        format!(r#"{{"requiredCapabilities":{required}}}"#)
    }

    /// The message of that error.
    pub(crate) const MESSAGE: &str = "Missing required client capability";
    /// Its code.
    pub(crate) const CODE: i32 = -32021;
}

impl ClientCapabilities {
    /// The capabilities in an `initialize`.
    pub(crate) fn of(initialize: &Message) -> Self {
        let capabilities = initialize
            .params()
            .and_then(|params| json::get(params, "capabilities"));
        capabilities.map_or_else(Self::default, Self::declared_in)
    }

    /// The capabilities in this raw object.
    pub(crate) fn declared_in(capabilities: &[u8]) -> Self {
        let is_declared = |path: &str| {
            let mut value = Some(capabilities);
            for name in path.split('.') {
                value = value.and_then(|value| declared(value, name));
            }
            value.is_some()
        };
        let mut found: Vec<_> = PATHS.into_iter().filter(|path| is_declared(path)).collect();
        // "An empty capabilities object is equivalent to declaring support for form mode only"
        // (2025-11-25 elicitation, "Capabilities").
        if is_declared(ELICITATION) && !found.contains(&URL) && !found.contains(&FORM) {
            found.push(FORM);
        }
        Self(found)
    }

    fn has(&self, path: &str) -> bool {
        self.0.contains(&path)
    }

    /// What a request of the server needs that the client did not declare; none if it declared it, and for
    /// methods that this build does not know.
    pub(crate) fn refusal(&self, request: &Message) -> Option<Lacking> {
        let param = |name| request.params().and_then(|params| declared(params, name));
        let method = request.method_name();
        let (is_declared, code, text) = match &*method {
            // 2025-11-25 roots, "Error Handling".
            "roots/list" => (self.has(ROOTS), -32601, "the client has no roots"),
            "sampling/createMessage" if !self.has(SAMPLING) => {
                (false, -32601, "the client does not sample")
            }
            "sampling/createMessage" => {
                let has_tools = param("tools").is_some() || param("toolChoice").is_some();
                let is_declared = self.has(TOOLS) || !has_tools;
                (is_declared, -32602, "the client does not sample with tools")
            }
            "elicitation/create" if !self.has(FORM) && !self.has(URL) => {
                (false, -32601, "the client does not elicit")
            }
            // 2025-11-25 elicitation, "Error Handling": −32602 for a mode that was not declared.
            "elicitation/create" => {
                let is_declared = match param("mode").and_then(json::decoded).as_deref() {
                    None | Some("form") => self.has(FORM),
                    Some("url") => self.has(URL),
                    Some(_) => true,
                };
                (
                    is_declared,
                    -32602,
                    "the client does not elicit in this mode",
                )
            }
            method if method.starts_with("tasks/") => {
                (self.has(TASKS), -32601, "the client has no tasks")
            }
            _ => return None,
        };
        let capability = match method.split('/').next() {
            Some("roots") => ROOTS,
            Some("sampling") if self.has(SAMPLING) => TOOLS,
            Some("sampling") => SAMPLING,
            Some("elicitation") if self.has(FORM) => URL,
            Some("elicitation") if self.has(URL) => FORM,
            Some("elicitation") => ELICITATION,
            _ => TASKS,
        };
        (!is_declared).then_some(Lacking {
            capability,
            code,
            text,
        })
    }
}

const ROOTS: &str = "roots";
const SAMPLING: &str = "sampling";
const TOOLS: &str = "sampling.tools";
const ELICITATION: &str = "elicitation";
const FORM: &str = "elicitation.form";
const URL: &str = "elicitation.url";
const TASKS: &str = "tasks";
const PATHS: [&str; 6] = [ROOTS, SAMPLING, TOOLS, FORM, URL, TASKS];

/// The value of a capability, or of a parameter, that is there.
fn declared<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    json::get(object, name).filter(|value| !matches!(*value, b"null" | b"false"))
}
