//! Preparation of servers: installed once into a store, from which their children start.
//!
//! Not here: recipes (`declare`), and the start of children (`starter`).
//!
//! * `output`: last lines of a run, and its lines in the log
//! * `preparations`: runs of recipes, each shared by all servers that need its store
//! * `programs`: program of a server in its store
//! * `stores`: directories of prepared stores

mod output;
mod preparations;
mod programs;
mod stores;

pub(crate) use self::preparations::{PreparationStatus, Preparations, Ready};
