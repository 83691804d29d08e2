//! The sandboxing features of this machine, and those that children get by the settings.
//!
//! Not here: the probes themselves (`backend::sandbox`).

use std::{collections::BTreeMap, path::Path};

use crate::{
    backend::{
        guard::stages::offered_namespaces,
        sandbox::{Kernel, MOST_NETWORKS},
    },
    config::{Config, Mistake, Wrong},
    declare::Offer,
};

/// The kernel features of this machine, and those that children get.
///
/// # Errors
///
/// The mistake in settings that require more.
pub(super) fn probe(config: &Config) -> Result<(Kernel, Offer), Vec<Mistake>> {
    let kernel = kernel();
    offer(&kernel, config).map(|offer| (kernel, offer))
}

/// The kernel features of this machine.
pub(crate) fn kernel() -> Kernel {
    Kernel::probe(&offered_namespaces(Path::new(OWN_BINARY)))
}

/// The features of `kernel` that children get.
///
/// # Errors
///
/// The mistake in settings that require more.
pub(crate) fn offer(kernel: &Kernel, config: &Config) -> Result<Offer, Vec<Mistake>> {
    let mistake = |(key, what, remedy): (&str, &str, &str)| {
        vec![Wrong::new(what, remedy).at(config.place(key), key)]
    };
    let offer = kernel.offer(config.sandbox.separation, config.sandbox.uids);
    let offer = offer.map_err(mistake)?;
    match config.sandbox.refuse.len() {
        0 => Ok(offer),
        _ if !offer.refuses_addresses => Err(mistake((REFUSE, NO_FILTERS, USE_A_FILTER))),
        1..=MOST_NETWORKS => Ok(offer),
        _ => Err(mistake((
            REFUSE,
            "has more than 64 networks",
            "name larger ones",
        ))),
    }
}

/// The search path in an environment.
pub(super) fn path_of(env: &BTreeMap<String, String>) -> &str {
    env.get("PATH").map_or("", String::as_str)
}

const REFUSE: &str = "sandbox.refuse";
const NO_FILTERS: &str = "cannot be enforced: no cgroup v2 with BPF is delegated to this gateway";
const USE_A_FILTER: &str = "leave it out, and use a packet filter or a network policy";

/// The binary of this process, even after its file was replaced.
pub(super) const OWN_BINARY: &str = "/proc/self/exe";
