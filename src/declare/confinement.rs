//! How a server's children are confined: what is asked for, and what a machine can hold them to.
//!
//! Not here: finding out what this machine offers, and doing it (`backend/sandbox`).

use std::path::PathBuf;

use super::catalog::{Home, Server};
use crate::config::{Fields, Node, Separation, Value, Wrong, reader::choice};
use crate::manifest::Reader;

/// What a child may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// What holds beside the knobs.
    pub(crate) profile: Profile,
    /// Whether what cannot be enforced here keeps the gateway from starting.
    pub(crate) required: bool,
    /// What it may read beside the system and its own programs (`standard`).
    pub(crate) read: Vec<PathBuf>,
    /// What it may write beside its private directory (`standard`).
    pub(crate) write: Vec<PathBuf>,
    /// Which TCP it may speak.
    pub(crate) tcp: Tcp,
}

impl Default for Confinement {
    fn default() -> Self {
        Self {
            profile: Profile::Standard,
            required: true,
            read: Vec::new(),
            write: Vec::new(),
            tcp: Tcp::Any,
        }
    }
}

/// What holds beside the knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Files by an allow-list, system calls by a deny-list, no capabilities.
    Standard,
    /// All that its user may do; only the gateway's own files are hidden.
    Open,
}

/// Which TCP a child may speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tcp {
    /// Any.
    Any,
    /// None at all: it has no such socket.
    Off,
    /// Only to (and on) these ports.
    Ports(Vec<u16>),
}

/// What this machine can hold a child to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of the machine, independent of the others"
)]
pub(crate) struct Offer {
    /// What keeps children apart.
    pub(crate) separation: Separation,
    /// The version of Landlock's interface; 0 is none.
    pub(crate) landlock: u32,
    /// Whether system calls can be filtered.
    pub(crate) has_seccomp: bool,
    /// Whether a cgroup bounds memory.
    pub(crate) bounds_memory: bool,
    /// Whether a cgroup, or a uid of its own, bounds processes.
    pub(crate) bounds_pids: bool,
    /// Whether a cgroup bounds processor time.
    pub(crate) bounds_cpu: bool,
    /// Whether connections to the gateway and to link-local addresses are refused.
    pub(crate) refuses_addresses: bool,
}

/// Something that was asked for and that cannot be enforced here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unenforced {
    /// The key below the server's.
    pub(crate) key: &'static str,
    /// What is missing.
    pub(crate) what: &'static str,
}

impl Offer {
    /// What does not hold for `server`, though it may start: for the log, and for metrics.
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

    /// What `server` asks for in vain.
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
                    && !(self.has_seccomp && self.landlock >= PORTS_SINCE),
                "sandbox.tcp",
                NO_PORTS,
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

impl Reader<'_> {
    /// The `sandbox` of a server.
    pub(crate) fn confinement(&mut self, server: &Fields<'_>) -> Confinement {
        for key in [
            "sandbox.profile",
            "sandbox.tcp",
            "limits.memory",
            "limits.pids",
            "limits.cpu",
        ] {
            let (outer, inner) = key.split_once('.').unwrap_or_default();
            let written = server.member(outer).map_or(&server.place, |node| {
                let Value::Map(entries) = &node.value else {
                    return &node.place;
                };
                let mut members = entries.iter().filter(|(name, _)| name == inner);
                members.next().map_or(&node.place, |(_, node)| &node.place)
            });
            self.places.insert(server.key(key), written.clone());
        }
        let default = Confinement::default();
        let known = ["profile", "required", "read", "write", "tcp"];
        let Some(fields) = self.inner(server, "sandbox", &known) else {
            return default;
        };
        let found = &mut self.mistakes;
        let profile = |node: &Node| choice(&node.text()?, &PROFILES);
        Confinement {
            profile: fields.read("profile", default.profile, profile, found),
            required: fields.read("required", default.required, Node::flag, found),
            read: fields.read("read", default.read, directories, found),
            write: fields.read("write", default.write, directories, found),
            tcp: fields.read("tcp", default.tcp, tcp, found),
        }
    }

    /// The limits that need a cgroup: memory, pids, cpu.
    pub(crate) fn group_limits(
        &mut self,
        limits: &Fields<'_>,
    ) -> (Option<u64>, Option<u32>, Option<u32>) {
        let found = &mut self.mistakes;
        let memory = |node: &Node| {
            node.size()
                .map(|bytes| Some(bytes).filter(|&bytes| bytes > 0))
        };
        let pids = |node: &Node| node.count(1).map(Some);
        (
            limits.read("memory", None, memory, found),
            limits.read("pids", None, pids, found),
            limits.read("cpu", None, cpu, found),
        )
    }
}

fn directories(node: &Node) -> Result<Vec<PathBuf>, Wrong> {
    let path = |item: &Node| {
        let path = PathBuf::from(item.text()?);
        if path.is_absolute() {
            Ok(path)
        } else {
            let what = format!("{:?} is not absolute", path.display().to_string());
            Err(Wrong::new(what, "write the whole path"))
        }
    };
    node.items()?.iter().map(path).collect()
}

fn tcp(node: &Node) -> Result<Tcp, Wrong> {
    let remedy = "write true, false or a list of ports like [443]";
    match &node.value {
        Value::Flag(true) => Ok(Tcp::Any),
        Value::Flag(false) => Ok(Tcp::Off),
        Value::List(items) => {
            let port = |item: &Node| match item.value {
                Value::Whole(port) => u16::try_from(port).ok().filter(|&port| port > 0),
                _ => None,
            };
            let ports: Option<Vec<u16>> = items.iter().map(port).collect();
            match ports {
                Some(ports) if ports.is_empty() => Ok(Tcp::Off),
                Some(ports) => Ok(Tcp::Ports(ports)),
                None => Err(Wrong::new("has an item that is no port", remedy)),
            }
        }
        _ => Err(Wrong::new("is neither true nor false", remedy)),
    }
}

/// Percents of one processor: `"50%"`, or a number of processors.
fn cpu(node: &Node) -> Result<Option<u32>, Wrong> {
    let remedy = "write a share of one processor like \"50%\", or a number of processors";
    let percents = match &node.value {
        Value::Whole(processors) => u32::try_from(*processors)
            .ok()
            .and_then(|processors| processors.checked_mul(100)),
        Value::Text(text) if text.is_empty() => return Ok(None),
        Value::Text(text) => text.strip_suffix('%').and_then(|text| text.parse().ok()),
        _ => None,
    };
    match percents {
        Some(percents @ 1..=1_000_000) => Ok(Some(percents)),
        _ => Err(Wrong::new("is no share of a processor", remedy)),
    }
}

const PROFILES: [(&str, Profile); 2] = [("standard", Profile::Standard), ("open", Profile::Open)];

/// Landlock knows TCP ports since its interface 4 (Linux 6.7).
const PORTS_SINCE: u32 = 4;

const NO_LANDLOCK: &str = "standard confines files by Landlock, which this kernel does not offer";
const NO_SECCOMP: &str = "seccomp filters, which it needs, are not available here";
const NO_HIDING: &str = "nothing here hides the data directory from its children";
const NO_PORTS: &str = "single TCP ports need Landlock of Linux 6.7 or newer, and seccomp";
const NO_ADDRESSES: &str =
    "its TCP reaches this gateway and link-local addresses: no cgroup v2 with BPF is delegated";
const NO_MEMORY: &str = "no cgroup v2 with the memory controller is delegated to this gateway";
const NO_PIDS: &str =
    "neither a cgroup v2 with the pids controller is delegated, nor has each child its own uid";
const NO_CPU: &str = "no cgroup v2 with the cpu controller is delegated to this gateway";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::{Format, Mistake};
    use crate::manifest::{Manifest, reader::parse};

    use super::super::confinement::*;

    const ALL: Offer = Offer {
        separation: Separation::Landlock,
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
    fn what_is_asked_for() {
        let read = |keys: &str| {
            let (_, server) = server(keys).unwrap().catalog.find("a", "x").unwrap();
            (server.launch.confinement.clone(), server.limits)
        };
        assert_eq!(read("args: []").0, Confinement::default());
        let keys = "sandbox: {profile: open, required: false, read: [/a], write: [/b], tcp: false}";
        let (confinement, _) = read(keys);
        assert_eq!(confinement.profile, Profile::Open);
        assert!(!confinement.required);
        assert_eq!(confinement.read, [PathBuf::from("/a")]);
        assert_eq!(confinement.write, [PathBuf::from("/b")]);
        assert_eq!(confinement.tcp, Tcp::Off);
        assert_eq!(read("sandbox: {tcp: []}").0.tcp, Tcp::Off);
        assert_eq!(
            read("sandbox: {tcp: [443, 80]}").0.tcp,
            Tcp::Ports(vec![443, 80])
        );
        let (_, limits) = read("limits: {memory: 1GiB, pids: 64, cpu: \"50%\"}");
        assert_eq!(
            (limits.memory, limits.pids, limits.cpu),
            (Some(1 << 30), Some(64), Some(50))
        );
        assert_eq!(read("limits: {cpu: 2}").1.cpu, Some(200));
        assert_eq!(read("limits: {memory: \"\", cpu: \"\"}").1.memory, None);
        for wrong in [
            "sandbox: {profile: strict}",
            "sandbox: {read: [a]}",
            "sandbox: {tcp: 443}",
            "sandbox: {tcp: [0]}",
            "sandbox: {tcp: [70000]}",
            "sandbox: {udp: false}",
            "limits: {pids: 0}",
            "limits: {cpu: \"0%\"}",
            "limits: {cpu: fast}",
        ] {
            assert_eq!(server(wrong).unwrap_err().len(), 1, "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_enforced() {
        let limits = "limits: {memory: 1GiB, pids: 64, cpu: 1}";
        assert_eq!(missing(ALL, limits), [""; 0]);
        let bare = Offer {
            separation: Separation::None,
            landlock: 0,
            has_seccomp: false,
            bounds_memory: false,
            bounds_pids: false,
            bounds_cpu: false,
            refuses_addresses: false,
        };
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
    }
}
