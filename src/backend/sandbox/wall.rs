//! Walls of profile `standard`: what it holds back from a child, by the features of a machine.
//!
//! The table of `lockgate check` and that of `docs/containment.md`. Not here: single settings that a
//! machine cannot enforce (`declare/offer`).

use crate::{
    config::Separation,
    declare::{Offer, SCOPES_ABI},
};

/// A thing beyond a child's own, and whether profile `standard` holds it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wall {
    /// The thing.
    pub(crate) what: &'static str,
    /// It is out of reach, or can be limited.
    pub(crate) holds: bool,
}

impl Offer {
    /// The walls around a child in profile `standard` with the default settings.
    pub(crate) fn walls(&self) -> [Wall; 13] {
        let is_alone = matches!(self.separation, Separation::Uid | Separation::Namespace);
        let has_landlock = self.landlock > 0;
        let no_sockets = self.confines_sockets() || self.has_seccomp;
        [
            (
                "files of other children and of the gateway",
                is_alone || has_landlock,
            ),
            (
                // Landlock has no rule for them.
                "modes, owners and times of files it may not write",
                self.separation == Separation::Uid
                    || self.separation == Separation::Namespace && has_landlock,
            ),
            (
                "signals to other processes",
                is_alone || self.landlock >= SCOPES_ABI,
            ),
            (
                "memory and environment of other processes",
                is_alone || has_landlock,
            ),
            (
                "command lines of other processes",
                self.separation == Separation::Namespace,
            ),
            ("UNIX sockets of others", no_sockets),
            ("abstract UNIX sockets of others", no_sockets),
            (
                "System V IPC and message queues of others",
                self.has_mounts || self.has_seccomp,
            ),
            ("/dev/shm of others", self.has_mounts || has_landlock),
            (
                "TCP to the gateway, its stores and replicas",
                self.refuses_addresses,
            ),
            ("TCP to metadata addresses", self.refuses_addresses),
            ("memory above limits.memory", self.bounds_memory),
            ("processes above limits.pids", self.bounds_pids),
        ]
        .map(|(what, holds)| Wall { what, holds })
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Write, fs, path::Path};

    use super::super::wall::*;

    const COLUMNS: [Separation; 4] = [
        Separation::Uid,
        Separation::Namespace,
        Separation::Landlock,
        Separation::None,
    ];

    /// The table of a machine that offers everything.
    fn table() -> String {
        let mut table = String::from(
            "| out of reach, or limited | `uid` | `namespace` | `landlock` | `none` |\n|---|---|---|---|---|\n",
        );
        let columns = COLUMNS.map(|separation| {
            let all = Offer {
                separation,
                has_mounts: separation <= Separation::Namespace,
                landlock: SCOPES_ABI,
                has_seccomp: true,
                bounds_memory: true,
                bounds_pids: true,
                bounds_cpu: true,
                refuses_addresses: true,
            };
            all.walls()
        });
        for row in 0..columns[0].len() {
            let cells = columns.map(|walls| if walls[row].holds { "yes" } else { "**no**" });
            let what = columns[0][row].what;
            writeln!(table, "| {what} | {} |", cells.join(" | ")).unwrap();
        }
        table
    }

    #[test]
    fn the_table_is_in_the_docs() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/containment.md");
        let page = fs::read_to_string(page).unwrap();
        let table = table();
        assert!(page.contains(&table), "docs/containment.md wants\n{table}");
    }

    #[test]
    fn a_bare_machine_holds_nothing() {
        assert!(Offer::none().walls().iter().all(|wall| !wall.holds));
    }
}
