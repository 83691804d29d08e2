//! Reader of `sandbox`, and of the limits that need a cgroup.

use std::path::PathBuf;

use super::{
    reader::Reader,
    table::{Fields, JsonSchema, Parser, parse},
};
use crate::{
    config::{Node, Value, Wrong},
    declare::{Confinement, Limits, Profile, Sockets, Tcp},
};

impl Reader<'_> {
    /// Reads the `sandbox` of a server.
    pub(crate) fn confinement(&mut self, server: &Fields<'_>) -> Confinement {
        for key in [
            "sandbox.profile",
            "sandbox.tcp",
            "sandbox.sockets",
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
            self.places.insert(server.path_of(key), written.clone());
        }
        let default = Confinement::default();
        let Some(fields) = server.key("sandbox", "Confinement of a child.").table() else {
            return default;
        };
        let read = Confinement {
            profile: fields
                .key("profile", "The walls around a child.")
                .read(default.profile, parse::choice(&PROFILES)),
            required: fields
                .key(
                    "required",
                    "A wall that this machine cannot enforce is a mistake (true) or a warning \
                     (false).",
                )
                .read(default.required, parse::flag()),
            read: fields
                .key(
                    "read",
                    "Readable files and directories, beside those of the system.",
                )
                .optional(directories())
                .unwrap_or_default(),
            write: fields
                .key("write", "Writable files and directories.")
                .optional(directories())
                .unwrap_or_default(),
            tcp: fields
                .key("tcp", "TCP: all, none, or only these ports.")
                .read(default.tcp, tcp()),
            sockets: fields
                .key(
                    "sockets",
                    "UNIX sockets: all, none, or those of its own directories and these files and \
                     directories.",
                )
                .optional(sockets())
                .unwrap_or(default.sockets),
        };
        fields.end();
        read
    }
}

/// Reads the limits that need a cgroup: memory, pids, cpu.
pub(super) fn group_limits(
    limits: &Fields<'_>,
    default: &Limits,
) -> (Option<u64>, Option<u32>, Option<u32>) {
    let memory = limits
        .key(
            "memory",
            "Memory of all its processes; requires a delegated cgroup.",
        )
        .optional(parse::size())
        .map_or(default.memory, |bytes| (bytes > 0).then_some(bytes));
    let pids = limits
        .key(
            "pids",
            "Processes and threads; requires a cgroup, or a uid for each child.",
        )
        .optional(parse::count(1))
        .or(default.pids);
    let cpu = limits
        .key(
            "cpu",
            "Processor time: a share of one processor such as \"50%\", or a number of \
             processors; requires a delegated cgroup.",
        )
        .optional(cpu())
        .unwrap_or(default.cpu);
    (memory, pids, cpu)
}

fn directories<'p>() -> Parser<'p, Vec<PathBuf>> {
    parse::list(
        parse::text()
            .having("pattern", "^/")
            .and(|text| absolute(&text)),
    )
}

fn absolute(text: &str) -> Result<PathBuf, Wrong> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(Wrong::new(
            format!("{text:?} is not absolute"),
            "write the whole path",
        ))
    }
}

/// true, false, or a list of absolute paths.
fn sockets<'p>() -> Parser<'p, Sockets> {
    let schema = || {
        JsonSchema::default().with_any(
            "anyOf",
            vec![parse::flag().schema(), directories().schema()],
        )
    };
    Parser::new(schema, parse_sockets)
}

fn parse_sockets(node: &Node) -> Result<Sockets, Wrong> {
    let remedy = "write true, false or a list of paths like [/run/postgresql]";
    match &node.value {
        Value::Flag(true) => Ok(Sockets::Any),
        Value::Flag(false) => Ok(Sockets::Off),
        Value::List(items) => {
            let path = |item: &Node| match &item.value {
                Value::Text(text) => absolute(text),
                _ => Err(Wrong::new("has an item that is no path", remedy)),
            };
            items
                .iter()
                .map(path)
                .collect::<Result<_, _>>()
                .map(Sockets::Only)
        }
        _ => Err(Wrong::new("is neither true nor false", remedy)),
    }
}

/// true, false, or a list of ports.
fn tcp<'p>() -> Parser<'p, Tcp> {
    let schema = || {
        let port = JsonSchema::of("integer")
            .with("minimum", 1)
            .with("maximum", u16::MAX);
        let ports = JsonSchema::of("array").with_schema("items", port);
        JsonSchema::default().with_any("anyOf", vec![parse::flag().schema(), ports])
    };
    Parser::new(schema, parse_tcp).shown(|tcp| match tcp {
        Tcp::Any => true.into(),
        Tcp::Off => false.into(),
        Tcp::Ports(ports) => ports.as_slice().into(),
    })
}

fn parse_tcp(node: &Node) -> Result<Tcp, Wrong> {
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
fn cpu<'p>() -> Parser<'p, Option<u32>> {
    let schema = || {
        let number = JsonSchema::of("integer")
            .with("minimum", 1)
            .with("maximum", 10_000);
        let share = JsonSchema::of("string").with("pattern", "^([0-9]+%)?$");
        JsonSchema::default().with_any("anyOf", vec![number, share])
    };
    Parser::new(schema, parse_cpu)
}

fn parse_cpu(node: &Node) -> Result<Option<u32>, Wrong> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::{Format, Mistake};
    use crate::manifest::{Manifest, reader::parse};

    use super::super::sandbox::*;

    fn server(keys: &str) -> Result<Manifest, Vec<Mistake>> {
        let text = format!(
            "tenants: {{a: {{auth: {{mode: none}}, servers: {{x: {{command: cat, {keys}}}}}}}}}"
        );
        parse("F", &text, Format::Yaml, &BTreeMap::new())
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
        let sockets = |value: &str| read(&format!("sandbox: {{sockets: {value}}}")).0.sockets;
        assert_eq!(sockets("true"), Sockets::Any);
        assert_eq!(sockets("false"), Sockets::Off);
        assert_eq!(sockets("[]"), Confinement::default().sockets);
        assert_eq!(
            sockets("[/a, /b]"),
            Sockets::Only(vec!["/a".into(), "/b".into()])
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
            "sandbox: {sockets: all}",
            "sandbox: {sockets: [run/x]}",
            "sandbox: {sockets: [\"@abstract\"]}",
            "sandbox: {sockets: [5]}",
            "sandbox: {udp: false}",
            "limits: {pids: 0}",
            "limits: {cpu: \"0%\"}",
            "limits: {cpu: fast}",
        ] {
            assert_eq!(server(wrong).unwrap_err().len(), 1, "{wrong}");
        }
    }
}
