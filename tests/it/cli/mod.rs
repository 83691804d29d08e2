//! Tests of the commands.

pub(crate) mod commands;
mod doctor;
mod newcomers;
mod packaging;
mod service_manager;
mod terminal;
