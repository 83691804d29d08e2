//! The request of the gateway that a guard starts a program: one message on the stdin of the guard.
//!
//! Not here: its execution (`supervisor`).

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use crate::backend::sandbox::{Files, Namespaces, Restrictions, Scheduling, Sockets, Store, Tcp};

/// A server to start. No `Debug`: values of the environment may be secrets.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct LaunchRequest {
    /// The program: a path, or a name that is looked up in the PATH of `env`.
    pub(crate) command: OsString,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Its whole environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub(crate) cwd: PathBuf,
    /// Private directory, removed by the guard once no process is left below it.
    pub(crate) private: Option<PathBuf>,
    /// Open files (`RLIMIT_NOFILE`).
    pub(crate) files: u64,
    /// Bytes of one file that it writes (`RLIMIT_FSIZE`).
    pub(crate) file_size: u64,
    /// The restrictions of the process.
    pub(crate) restrictions: Restrictions,
}

impl LaunchRequest {
    /// Encodes the message, with its length in front.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = vec![0; 4];
        // First: the guard removes it even if the rest does not come. The empty path stands for none.
        text(
            &mut to,
            self.private
                .as_deref()
                .map_or(&[], |path| path.as_os_str().as_bytes()),
        );
        text(&mut to, self.command.as_bytes());
        text(&mut to, self.cwd.as_os_str().as_bytes());
        to.extend_from_slice(&self.files.to_le_bytes());
        to.extend_from_slice(&self.file_size.to_le_bytes());
        count(&mut to, self.args.len());
        for arg in &self.args {
            text(&mut to, arg.as_bytes());
        }
        count(&mut to, self.env.len());
        for (name, value) in &self.env {
            text(&mut to, name.as_bytes());
            text(&mut to, value.as_bytes());
        }
        self.restrictions.encode(&mut to);
        let length = u32::try_from(to.len() - 4)
            .unwrap_or(u32::MAX)
            .to_le_bytes();
        to[..4].copy_from_slice(&length);
        to
    }

    /// Decodes a message without its length; none unless the bytes are exactly one message.
    pub(super) fn decode(mut from: &[u8]) -> Option<Self> {
        let from = &mut from;
        let private = Self::private_in(from);
        text_of(from)?;
        let command = text_of(from)?;
        let cwd = PathBuf::from(text_of(from)?);
        let (files, file_size) = (long(from)?, long(from)?);
        let args = (0..number(from)?)
            .map(|_| text_of(from))
            .collect::<Option<_>>()?;
        let env = (0..number(from)?)
            .map(|_| Some((text_of(from)?, text_of(from)?)))
            .collect::<Option<_>>()?;
        let all = Self {
            command,
            args,
            env,
            cwd,
            private,
            files,
            file_size,
            restrictions: Restrictions::decode(from)?,
        };
        from.is_empty().then_some(all)
    }

    /// The private directory in a message, which may be cut off behind it.
    pub(super) fn private_in(mut message: &[u8]) -> Option<PathBuf> {
        let path = PathBuf::from(text_of(&mut message)?);
        Some(path).filter(|path| path != Path::new(""))
    }
}

impl Restrictions {
    fn encode(&self, to: &mut Vec<u8>) {
        let flags = [
            self.is_scoped,
            self.is_hardened,
            self.is_filtered,
            self.scheduling.is_batch,
            self.files.is_some(),
        ];
        to.extend(flags.map(u8::from));
        to.push(match self.namespaces {
            Namespaces::None => 0,
            Namespaces::Mounts => 1,
            Namespaces::All => 2,
        });
        let (kind, sockets) = match &self.sockets {
            Sockets::Any => (0, Vec::new()),
            Sockets::Off => (1, Vec::new()),
            Sockets::Root(paths) => (2, paths.clone()),
        };
        to.push(kind);
        to.push(self.scheduling.nice);
        // 0 stands for none: no child has uid 0, and none has a limit of no process.
        to.extend_from_slice(&self.uid.unwrap_or(0).to_le_bytes());
        to.extend_from_slice(&self.landlock.to_le_bytes());
        to.extend_from_slice(&self.processes.unwrap_or(0).to_le_bytes());
        let group = self.group.iter().cloned().collect();
        let files = self.files.clone().unwrap_or_default();
        let (mut reads, mut fills) = (Vec::new(), Vec::new());
        match &self.store {
            Some(Store::Read(path)) => reads.push(path.clone()),
            Some(Store::Fill(path)) => fills.push(path.clone()),
            None => {}
        }
        for paths in [
            &group,
            &self.hide,
            &files.read,
            &files.write,
            &reads,
            &fills,
            &sockets,
        ] {
            count(to, paths.len());
            for path in paths {
                text(to, path.as_os_str().as_bytes());
            }
        }
        let ports: &[u16] = match &self.tcp {
            Tcp::Any => &[],
            Tcp::Off => &[0],
            Tcp::Ports(ports) => ports,
        };
        count(to, ports.len());
        to.extend(ports.iter().flat_map(|port| port.to_le_bytes()));
    }

    fn decode(from: &mut &[u8]) -> Option<Self> {
        let mut flag = || match bytes::<1>(from)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        };
        let (is_scoped, is_hardened) = (flag()?, flag()?);
        let (is_filtered, is_batch, has_files) = (flag()?, flag()?, flag()?);
        let namespaces = match bytes::<1>(from)? {
            [0] => Namespaces::None,
            [1] => Namespaces::Mounts,
            [2] => Namespaces::All,
            _ => return None,
        };
        let [kind, nice] = bytes::<2>(from)?;
        let uid = u32::from_le_bytes(bytes(from)?);
        let landlock = u32::from_le_bytes(bytes(from)?);
        let processes = long(from)?;
        let mut paths = || -> Option<Vec<PathBuf>> {
            let count = number(from)?;
            (0..count).map(|_| text_of(from).map(Into::into)).collect()
        };
        let (group, hide, read, write) = (paths()?, paths()?, paths()?, paths()?);
        let (reads, fills, sockets) = (paths()?, paths()?, paths()?);
        let sockets = match (kind, sockets.is_empty()) {
            (0, true) => Sockets::Any,
            (1, true) => Sockets::Off,
            (2, _) => Sockets::Root(sockets),
            _ => return None,
        };
        let fills = fills.into_iter().next().map(Store::Fill);
        let store = reads.into_iter().next().map(Store::Read).or(fills);
        let ports: Vec<u16> = (0..number(from)?)
            .map(|_| bytes(from).map(u16::from_le_bytes))
            .collect::<Option<_>>()?;
        let tcp = match ports.as_slice() {
            [] => Tcp::Any,
            [0] => Tcp::Off,
            _ => Tcp::Ports(ports),
        };
        Some(Self {
            uid: Some(uid).filter(|&uid| uid != 0),
            scheduling: Scheduling { nice, is_batch },
            namespaces,
            is_scoped,
            is_hardened,
            is_filtered,
            landlock,
            files: has_files.then_some(Files { read, write }),
            hide,
            sockets,
            tcp,
            processes: Some(processes).filter(|&processes| processes != 0),
            group: group.into_iter().next(),
            store,
        })
    }
}

fn text(to: &mut Vec<u8>, bytes: &[u8]) {
    count(to, bytes.len());
    to.extend_from_slice(bytes);
}

fn count(to: &mut Vec<u8>, n: usize) {
    to.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes());
}

fn bytes<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*head)
}

fn number(from: &mut &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes(from)?)).ok()
}

fn long(from: &mut &[u8]) -> Option<u64> {
    bytes(from).map(u64::from_le_bytes)
}

fn text_of(from: &mut &[u8]) -> Option<OsString> {
    let length = number(from)?;
    let (head, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(OsString::from_vec(head.to_vec()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::protocol::*;

    fn text() -> impl Strategy<Value = OsString> {
        prop::collection::vec(any::<u8>(), 0..20).prop_map(OsString::from_vec)
    }

    fn paths() -> impl Strategy<Value = Vec<PathBuf>> {
        prop::collection::vec("/[a-z/]{0,9}".prop_map(PathBuf::from), 0..3)
    }

    prop_compose! {
        fn restrictions()(
            uid in prop::option::of(1u32..), nice: u8, flags: [bool; 5], landlock: u32,
            namespaces in prop_oneof![
                Just(Namespaces::None), Just(Namespaces::Mounts), Just(Namespaces::All),
            ],
            sockets in prop_oneof![
                Just(Sockets::Any), Just(Sockets::Off), paths().prop_map(Sockets::Root),
            ],
            (read, write, hide) in (paths(), paths(), paths()),
            processes in prop::option::of(1u64..), group in prop::option::of("/[a-z]{1,9}"),
            tcp in prop_oneof![
                Just(Tcp::Any), Just(Tcp::Off),
                prop::collection::vec(1u16.., 1..4).prop_map(Tcp::Ports),
            ],
            store in prop_oneof![
                Just(None),
                "/[a-z]{1,9}".prop_map(|path| Some(Store::Read(path.into()))),
                "/[a-z]{1,9}".prop_map(|path| Some(Store::Fill(path.into()))),
            ],
        ) -> Restrictions {
            let [is_scoped, is_hardened, is_filtered, is_batch, has_files] = flags;
            let files = has_files.then_some(Files { read, write });
            let group = group.map(PathBuf::from);
            Restrictions {
                uid, scheduling: Scheduling { nice, is_batch }, namespaces, is_scoped, is_hardened, is_filtered, landlock, files, hide, sockets,
                tcp, processes, group, store,
            }
        }
    }

    prop_compose! {
        fn request()(
            command in text(), cwd in text(), private in prop::option::of("/[a-z]{1,9}"),
            args in prop::collection::vec(text(), 0..5),
            env in prop::collection::vec((text(), text()), 0..5),
            files: u64, file_size: u64, restrictions in restrictions(),
        ) -> LaunchRequest {
            let private = private.map(PathBuf::from);
            LaunchRequest { command, args, env, cwd: cwd.into(), private, files, file_size, restrictions }
        }
    }

    proptest! {
        #[test]
        fn an_encoded_request_decodes_to_itself(request in request()) {
            let bytes = request.encode();
            prop_assert_eq!(bytes[..4].to_vec(), u32::try_from(bytes.len() - 4).unwrap().to_le_bytes());
            let private = request.private.clone();
            prop_assert_eq!(LaunchRequest::private_in(&bytes[4..]), private);
            prop_assert_eq!(LaunchRequest::decode(&bytes[4..]), Some(request));
        }

        #[test]
        fn a_cut_or_overlong_request_is_refused(request in request(), cut: prop::sample::Index) {
            let mut bytes = request.encode().split_off(4);
            prop_assert_eq!(LaunchRequest::decode(&bytes[..cut.index(bytes.len())]), None);
            bytes.push(0);
            prop_assert_eq!(LaunchRequest::decode(&bytes), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            _ = LaunchRequest::decode(&bytes);
        }
    }
}
