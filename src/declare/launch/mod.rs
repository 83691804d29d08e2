//! Launch: the program of a server, and its preparation.
//!
//! Not here: starts and preparations (`backend`).
//!
//! * `packages`: recipes for `npx` and `uvx`
//! * `recipe`: preparation of a server, run once before its first start
//! * `sandbox`: sandbox of a server's children
//! * `slots`: secrets that a server needs, and that its manifest does not contain
//! * `specification`: program, arguments, environment and confinement

mod packages;
mod recipe;
mod sandbox;
mod slots;
mod specification;

pub(crate) use self::packages::derive;
pub(crate) use self::recipe::{Recipe, STORE, Start};
pub(crate) use self::sandbox::{Confinement, Profile, Sockets, Tcp};
pub(crate) use self::slots::{
    Holder, SECRET_MAX, SLOTS_MAX, Slot, SlotForm, Slots, TokenFrom, is_secret, is_slot_name,
};
pub(crate) use self::specification::{Digest, Home, Launch};
