//! `src/oauth`: the parsers of what clients send.

#[path = "../../src/oauth/clients/client_id.rs"]
pub(crate) mod client_id;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/oauth/base/form.rs"]
pub(crate) mod form;
#[path = "../../src/oauth/clients/redirect.rs"]
pub(crate) mod redirect;
