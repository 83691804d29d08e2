//! Budgets: bounded amounts, of bytes or of things, that owners share without fixed parts.
//!
//! Not here: what is drawn, and from whose share (`hub/limits`, `http/edge`, `http/listen`).
//!
//! * `tree`: budgets and shares, and what is drawn from them
//! * `others_first`: letting all other tasks go first
//! * `stepped`: a socket that is read and written in steps
//! * `shares`: shares by owner
//! * `turns`: turns of which one owner has at most three quarters
//! * `rotation`: turns in rotation among tenants
//! * `large`: work on large messages, which no worker waits for
//! * `descriptors`: open files, which connections and children share
//! * `machine`: memory that the machine gives to this process
//! * `room`: room of queues

mod descriptors;
mod large;
mod machine;
mod others_first;
mod room;
mod rotation;
mod shares;
mod stepped;
mod tree;
mod turns;

pub(crate) use self::descriptors::Descriptors;
pub(crate) use self::large::LargeWork;
pub(crate) use self::machine::machine_memory;
pub(crate) use self::others_first::others_first;
pub(crate) use self::room::{drop_room, push_back};
pub(crate) use self::rotation::{Rotation, Turn};
pub(crate) use self::shares::Shares;
pub(crate) use self::stepped::Stepped;
pub(crate) use self::tree::{Budget, Drawn, LARGE_STEP, SMALL_STEP};
pub(crate) use self::turns::{Turn as OwnersTurn, Turns};
