//! The sandboxing that a machine can enforce, and the settings of a server beyond it.
//!
//! Not here: probing the kernel, and the sandbox itself (`backend/sandbox`).

use super::{
    launch::{Home, Profile, Sockets, Tcp},
    server::Server,
};
use crate::config::Separation;

/// The sandboxing that this machine can enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of the machine, independent of the others"
)]
pub(crate) struct Offer {
    /// The separation of children.
    pub(crate) separation: Separation,
    /// Each child has mount and IPC namespaces of its own.
    pub(crate) has_mounts: bool,
    /// The ABI version of Landlock; 0 for none.
    pub(crate) landlock: u32,
    /// System calls can be filtered.
    pub(crate) has_seccomp: bool,
    /// A cgroup limits memory.
    pub(crate) bounds_memory: bool,
    /// A cgroup, or a separate uid, limits processes.
    pub(crate) bounds_pids: bool,
    /// A cgroup limits processor time.
    pub(crate) bounds_cpu: bool,
    /// Connections to the gateway and to link-local addresses are refused.
    pub(crate) refuses_addresses: bool,
}

/// A setting that this machine cannot enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unenforced {
    /// The key below the server's.
    pub(crate) key: &'static str,
    /// The missing feature.
    pub(crate) what: &'static str,
}

impl Offer {
    /// A machine that enforces nothing.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self {
            separation: Separation::None,
            has_mounts: false,
            landlock: 0,
            has_seccomp: false,
            bounds_memory: false,
            bounds_pids: false,
            bounds_cpu: false,
            refuses_addresses: false,
        }
    }

    /// Whether a child in profile `standard` can be kept to single UNIX sockets: the others are not in
    /// its mount namespace, and Landlock scopes abstract ones.
    pub(crate) fn confines_sockets(&self) -> bool {
        self.has_mounts && self.landlock >= SCOPES_ABI
    }

    /// What one child can use up for the gateway and all other children, if there is anything.
    pub(crate) fn shared_amounts(&self) -> Option<&'static str> {
        // Also in a user namespace: there the kernel counts for the user who made it, too.
        (self.separation != Separation::Uid).then_some(SHARED_AMOUNTS)
    }

    /// The settings of `server` that are not enforced though it may start, for the log and metrics.
    pub(crate) fn shortcomings(&self, server: &Server) -> Vec<Unenforced> {
        let confinement = &server.launch.confinement;
        let is_reachable = confinement.profile == Profile::Standard
            && confinement.tcp == Tcp::Any
            && !self.refuses_addresses;
        let mut found = self.unenforced(server);
        found.extend(is_reachable.then_some(Unenforced {
            key: "sandbox.tcp",
            what: NO_ADDRESSES,
        }));
        found
    }

    /// The settings of `server` that cannot be enforced.
    pub(crate) fn unenforced(&self, server: &Server) -> Vec<Unenforced> {
        let (confinement, limits) = (&server.launch.confinement, &server.limits);
        let is_standard = confinement.profile == Profile::Standard;
        let has_landlock = self.landlock > 0;
        let hides = has_landlock
            || matches!(self.separation, Separation::Uid | Separation::Namespace)
            || server.launch.home == Home::Caller;
        let asked = [
            (is_standard && !has_landlock, "sandbox.profile", NO_LANDLOCK),
            (
                is_standard && !self.has_seccomp,
                "sandbox.profile",
                NO_SECCOMP,
            ),
            (!is_standard && !hides, "sandbox.profile", NO_HIDING),
            (
                confinement.tcp == Tcp::Off && !self.has_seccomp,
                "sandbox.tcp",
                NO_SECCOMP,
            ),
            (
                matches!(confinement.tcp, Tcp::Ports(_))
                    && !(self.has_seccomp && self.landlock >= PORTS_ABI),
                "sandbox.tcp",
                NO_PORTS,
            ),
            (
                confinement.sockets == Sockets::Off && !self.has_seccomp,
                "sandbox.sockets",
                NO_SECCOMP,
            ),
            (
                matches!(&confinement.sockets, Sockets::Only(named) if !named.is_empty())
                    && !(is_standard && self.confines_sockets()),
                "sandbox.sockets",
                NO_NAMED_SOCKETS,
            ),
            (
                limits.memory.is_some() && !self.bounds_memory,
                "limits.memory",
                NO_MEMORY,
            ),
            (
                limits.pids.is_some() && !self.bounds_pids,
                "limits.pids",
                NO_PIDS,
            ),
            (
                limits.cpu.is_some() && !self.bounds_cpu,
                "limits.cpu",
                NO_CPU,
            ),
        ];
        asked
            .into_iter()
            .filter(|(is_missing, ..)| *is_missing)
            .map(|(_, key, what)| Unenforced { key, what })
            .collect()
    }
}

/// The first Landlock ABI that scopes signals and abstract sockets (Linux 6.12).
pub(crate) const SCOPES_ABI: u32 = 6;

/// The first Landlock ABI with TCP ports (Linux 6.7).
const PORTS_ABI: u32 = 4;

const SHARED_AMOUNTS: &str = "amounts that the kernel counts per user, such as epoll watches and inotify instances, are \
     shared by all children and the gateway: one child can use them up; with separation uid each child has its own";
const NO_LANDLOCK: &str = "standard confines files by Landlock, which this kernel does not offer";
const NO_SECCOMP: &str = "seccomp filters, which it needs, are not available here";
const NO_HIDING: &str = "nothing here hides the data directory from its children";
const NO_PORTS: &str = "single TCP ports need Landlock of Linux 6.7 or newer, and seccomp";
const NO_NAMED_SOCKETS: &str = "single UNIX sockets need profile standard, a mount namespace of the \
     child's own, and Landlock of Linux 6.12 or newer; true allows all sockets";
const NO_ADDRESSES: &str = "its TCP reaches this gateway, its stores and link-local addresses: no cgroup v2 with BPF is delegated";
const NO_MEMORY: &str = "no cgroup v2 with the memory controller is delegated to this gateway";
const NO_PIDS: &str =
    "neither a cgroup v2 with the pids controller is delegated, nor has each child its own uid";
const NO_CPU: &str = "no cgroup v2 with the cpu controller is delegated to this gateway";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::{Format, Mistake};
    use crate::manifest::{Manifest, reader::parse};

    use super::super::offer::*;

    const ALL: Offer = Offer {
        separation: Separation::Namespace,
        has_mounts: true,
        landlock: 7,
        has_seccomp: true,
        bounds_memory: true,
        bounds_pids: true,
        bounds_cpu: true,
        refuses_addresses: true,
    };

    fn server(keys: &str) -> Result<Manifest, Vec<Mistake>> {
        let text = format!(
            "tenants: {{a: {{auth: {{mode: none}}, servers: {{x: {{command: cat, {keys}}}}}}}}}"
        );
        parse("F", &text, Format::Yaml, &BTreeMap::new())
    }

    fn missing(offer: Offer, keys: &str) -> Vec<&'static str> {
        let manifest = server(keys).unwrap();
        let (_, server) = manifest.catalog.find("a", "x").unwrap();
        let missing = offer.unenforced(&server);
        missing.iter().map(|missing| missing.key).collect()
    }

    #[test]
    fn amounts_of_a_user_are_shared_by_all_that_have_it() {
        let others = [
            Separation::Namespace,
            Separation::Landlock,
            Separation::None,
        ];
        let shared = |separation| Offer { separation, ..ALL }.shared_amounts();
        assert!(others.map(shared).iter().all(Option::is_some));
        assert_eq!(shared(Separation::Uid), None);
    }

    #[test]
    fn what_cannot_be_enforced() {
        let limits = "limits: {memory: 1GiB, pids: 64, cpu: 1}";
        assert_eq!(missing(ALL, limits), [""; 0]);
        let bare = Offer::none();
        assert_eq!(missing(bare, "args: []"), ["sandbox.profile"; 2]);
        assert_eq!(
            missing(bare, "sandbox: {profile: open, tcp: false}"),
            ["sandbox.profile", "sandbox.tcp"]
        );
        assert_eq!(
            missing(bare, &format!("sandbox: {{profile: open}}, {limits}")),
            [
                "sandbox.profile",
                "limits.memory",
                "limits.pids",
                "limits.cpu"
            ]
        );
        let old = Offer { landlock: 3, ..ALL };
        assert_eq!(missing(old, "sandbox: {tcp: [443]}"), ["sandbox.tcp"]);
        assert_eq!(missing(old, "sandbox: {tcp: false}"), [""; 0]);
        let apart = Offer {
            separation: Separation::Uid,
            has_seccomp: true,
            ..bare
        };
        assert_eq!(missing(apart, "sandbox: {profile: open}"), [""; 0]);
        let named = "sandbox: {sockets: [/run/x.sock]}";
        assert_eq!(missing(ALL, named), [""; 0]);
        let open = "sandbox: {profile: open, sockets: [/run/x.sock]}";
        assert_eq!(missing(ALL, open), ["sandbox.sockets"]);
        let shared = Offer {
            has_mounts: false,
            ..ALL
        };
        let unscoped = Offer { landlock: 5, ..ALL };
        for offer in [shared, unscoped] {
            assert_eq!(missing(offer, named), ["sandbox.sockets"]);
            assert_eq!(missing(offer, "sandbox: {sockets: true}"), [""; 0]);
        }
        assert_eq!(
            missing(bare, "sandbox: {profile: open, sockets: false}"),
            ["sandbox.profile", "sandbox.sockets"]
        );
    }
}
