//! `src/config`: addresses, hosts and origins.

#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/config/address.rs"]
pub(crate) mod address;

pub(crate) use self::reader::Wrong;

/// What `address` and `declare::pattern` need of `src/config/reader.rs`, which reads whole documents.
mod reader {
    #[derive(Debug)]
    pub(crate) struct Wrong;

    impl Wrong {
        pub(crate) fn new(_: impl Into<String>, _: impl Into<String>) -> Self {
            Self
        }
    }
}
