//! `src/config`: addresses, hosts and origins.

#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/config/address.rs"]
pub(crate) mod address;

/// What `address` needs of `src/config/reader.rs`, which reads whole documents.
mod reader {
    #[derive(Debug)]
    pub(crate) struct Wrong;

    impl Wrong {
        pub(crate) fn new(_: impl Into<String>, _: impl Into<String>) -> Self {
            Self
        }
    }
}
