//! What the gateway tells a guard, as bytes on the guard's stdin.
//!
//! Not here: who acts on it (`launch`). std only, like that.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// What a guard is to start; the environment's values may be secrets, hence no `Debug`.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Orders {
    /// The program: a path, or a name that is looked up in the PATH of `env`.
    pub(crate) command: OsString,
    /// Its arguments, passed as they are.
    pub(crate) args: Vec<OsString>,
    /// Its whole environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub(crate) cwd: PathBuf,
    /// A directory that the guard removes when nothing is left below it.
    pub(crate) private: Option<PathBuf>,
    /// Open files (`RLIMIT_NOFILE`).
    pub(crate) files: u64,
    /// Bytes of one file that it writes (`RLIMIT_FSIZE`).
    pub(crate) file_size: u64,
}

impl Orders {
    /// The message that the guard reads from its stdin, with its length in front.
    pub(crate) fn encode(&self) -> Vec<u8> {
        fn text(to: &mut Vec<u8>, bytes: &[u8]) {
            to.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
            to.extend_from_slice(bytes);
        }
        fn count(to: &mut Vec<u8>, n: usize) {
            to.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes());
        }
        let mut to = vec![0; 4];
        text(&mut to, self.command.as_bytes());
        text(&mut to, self.cwd.as_os_str().as_bytes());
        // No directory of a child is the empty path, so that it can stand for none.
        text(
            &mut to,
            self.private
                .as_deref()
                .map_or(&[], |path| path.as_os_str().as_bytes()),
        );
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
        let length = u32::try_from(to.len() - 4)
            .unwrap_or(u32::MAX)
            .to_le_bytes();
        to[..4].copy_from_slice(&length);
        to
    }

    /// Reads what follows the length of an encoded message; none if it is not exactly one.
    pub(super) fn decode(mut from: &[u8]) -> Option<Self> {
        fn number(from: &mut &[u8]) -> Option<usize> {
            let (head, rest) = from.split_first_chunk::<4>()?;
            *from = rest;
            usize::try_from(u32::from_le_bytes(*head)).ok()
        }
        fn long(from: &mut &[u8]) -> Option<u64> {
            let (head, rest) = from.split_first_chunk::<8>()?;
            *from = rest;
            Some(u64::from_le_bytes(*head))
        }
        fn text(from: &mut &[u8]) -> Option<OsString> {
            let length = number(from)?;
            let (head, rest) = from.split_at_checked(length)?;
            *from = rest;
            Some(OsString::from_vec(head.to_vec()))
        }
        let from = &mut from;
        let command = text(from)?;
        let cwd = PathBuf::from(text(from)?);
        let private = Some(PathBuf::from(text(from)?)).filter(|path| path != Path::new(""));
        let (files, file_size) = (long(from)?, long(from)?);
        let args = (0..number(from)?)
            .map(|_| text(from))
            .collect::<Option<_>>()?;
        let env = (0..number(from)?)
            .map(|_| Some((text(from)?, text(from)?)))
            .collect::<Option<_>>()?;
        let all = Self {
            command,
            args,
            env,
            cwd,
            private,
            files,
            file_size,
        };
        from.is_empty().then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = OsString> {
        prop::collection::vec(any::<u8>(), 0..20).prop_map(OsString::from_vec)
    }

    prop_compose! {
        fn orders()(
            command in text(), cwd in text(), private in prop::option::of("/[a-z]{1,9}"),
            args in prop::collection::vec(text(), 0..5),
            env in prop::collection::vec((text(), text()), 0..5),
            files: u64, file_size: u64,
        ) -> Orders {
            let private = private.map(PathBuf::from);
            Orders { command, args, env, cwd: cwd.into(), private, files, file_size }
        }
    }

    proptest! {
        #[test]
        fn orders_come_back_as_they_were(orders in orders()) {
            let bytes = orders.encode();
            prop_assert_eq!(bytes[..4].to_vec(), u32::try_from(bytes.len() - 4).unwrap().to_le_bytes());
            prop_assert_eq!(Orders::decode(&bytes[4..]), Some(orders));
        }

        #[test]
        fn torn_or_long_orders_are_refused(orders in orders(), cut: prop::sample::Index) {
            let mut bytes = orders.encode().split_off(4);
            prop_assert_eq!(Orders::decode(&bytes[..cut.index(bytes.len())]), None);
            bytes.push(0);
            prop_assert_eq!(Orders::decode(&bytes), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            _ = Orders::decode(&bytes);
        }
    }
}
