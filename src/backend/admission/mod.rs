//! Admission of starts: how many may run at a time, and how soon after failures.
//!
//! Not here: the starts themselves (`starter`, `prepare`).
//!
//! * `circuit`: restart policy, from backoff to an open circuit
//! * `circuits`: circuits of all launch specifications
//! * `failures`: last failed start of each server, for people
//! * `remembered`: entries of servers, of which no tenant takes those of others
//! * `start_slots`: slots for starts that are under way, shared fairly by tenants
//! * `refused`: reasons why there is no child; their texts are in `hub::call::error`

mod circuit;
mod circuits;
mod failures;
mod refused;
mod remembered;
mod start_slots;

pub(crate) use self::circuit::{Circuit, Verdict};
pub(crate) use self::circuits::{Attempt, Cause, Circuits, Spec, spec};
pub(crate) use self::failures::{Stage, StartFailure};
pub(crate) use self::refused::{NO_ANSWER, Refused, is_shortage};
pub(crate) use self::remembered::Remembered;
pub(crate) use self::start_slots::{Lapse, StartSlot, StartSlots};
