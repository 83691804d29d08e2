//! `src/http/reply`

#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../../src/http/reply/header_name.rs"]
pub(crate) mod header_name;
