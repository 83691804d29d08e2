//! Commands that call the administration API of a running gateway.
//!
//! Not here: commands without a gateway (`local`), and the API itself (`http::admin`).
//!
//! * `apply`: `lockgate apply`
//! * `audit`: `lockgate audit` and `logins`
//! * `client`: the HTTP client of the administration API, and the result of a command
//! * `document`: documents in files and on stdin
//! * `identity`: `lockgate user`, `client`, `provider`, `upstream`, `connection` and `grant`
//! * `keys`: `lockgate key`, on a gateway
//! * `object`: list, show, add and remove, for every kind of declared object; the columns of a list
//!   are in the file of its command
//! * `reference`: `lockgate openapi --markdown`
//! * `server`: `lockgate server`
//! * `session`: `lockgate session`
//! * `status`: `lockgate status`
//! * `table`: tables and objects on a terminal
//! * `tenant`: `lockgate tenant`

mod apply;
mod audit;
mod client;
mod document;
mod identity;
mod keys;
mod object;
mod reference;
mod server;
mod session;
mod status;
mod table;
mod tenant;

pub(crate) use self::{
    apply::ApplyArgs,
    audit::{AuditArgs, LoginsArgs},
    identity::{Clients, ConnectionArgs, GrantArgs, Providers, Upstreams, UserArgs},
    keys::KeyCommand,
    object::ObjectArgs,
    reference::reference,
    server::{ServerArgs, forgotten_dashes},
    session::SessionArgs,
    status::StatusArgs,
    tenant::TenantArgs,
};
