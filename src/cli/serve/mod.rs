//! The commands that serve: checks, preparations and the process around a gateway.
//!
//! Not here: the gateway itself (`gateway`).
//!
//! * `plan`: configuration, catalogue and confinement, all checked
//! * `process`: the process of a gateway, from flags to its exit code
//! * `workers`: threads of the runtime
//! * `machine`: capabilities of this machine
//! * `credentials`: certificates and keys of the settings
//! * `database`: lock and first reading of the database
//! * `private_dir`: the data directory and other directories of the gateway alone
//! * `work`: the directory for private files of children, and what killed gateways left of theirs
//! * `descriptors`: limit of open files
//! * `stores`: addresses of PostgreSQL and Redis, which children may not reach
//! * `sockets`: listener sockets and the address to advertise
//! * `signals`: SIGTERM, SIGINT and SIGHUP
//! * `service_manager`: readiness, reload, stop and watchdog under systemd

pub(crate) mod credentials;
pub(crate) mod database;
pub(crate) mod descriptors;
pub(crate) mod machine;
mod plan;
pub(crate) mod private_dir;
pub(crate) mod process;
mod service_manager;
mod signals;
mod sockets;
mod stores;
pub(crate) mod work;
mod workers;

pub(crate) use self::plan::{RunArgs, ServeArgs};
