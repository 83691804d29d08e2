//! `src/http/edge`

#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../../src/http/edge/address.rs"]
pub(crate) mod address;
