//! `src/base`: the parts without I/O.

#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/base/clock.rs"]
mod clock;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/base/digest.rs"]
mod digest;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/base/reach.rs"]
pub(crate) mod reach;
#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/base/secret.rs"]
mod secret;
#[path = "../../src/base/table.rs"]
mod table;

pub(crate) use self::clock::LEEWAY_S;
pub(crate) use self::digest::sha256;
pub(crate) use self::secret::{Secret, without_user};
pub(crate) use self::table::Table;
