//! The limit of open files, and the number of connections that it permits.
//!
//! Not here: the limit of a child (`limits.files`).

use rustix::process::{Resource, Rlimit};

use crate::config::Config;

/// Raises the soft limit to the hard limit.
pub(crate) fn raise() {
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    let (current, maximum) = (hard, hard);
    // The kernel permits every value up to the hard limit; if not, the shortage is handled anyway.
    _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

/// A limit of open files that is too low for the configured connections.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// The number of connections that it permits.
    pub(crate) connections: usize,
    /// Key, problem and remedy.
    pub(crate) what: String,
}

/// Returns the shortage if `files` may be open.
///
/// Without the lower number no listener could accept, not even for probes.
pub(crate) fn shortage(config: &Config, files: u64) -> Option<Shortage> {
    let wanted = config.http.max_connections;
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    let needed = wanted.saturating_add(RESERVE);
    let connections = files.saturating_sub(RESERVE.min(files / 2)).min(wanted);
    (files < needed).then(|| Shortage {
        connections,
        what: format!(
            "http.max_connections: is {wanted}, which takes {needed} open files, and {files} is the \
             hard limit: {connections} can be had; raise it (ulimit -n, LimitNOFILE=), or write less"
        ),
    })
}

/// Files reserved for the database, Redis, listeners and two hundred children.
const RESERVE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::super::descriptors::*;
    use crate::config::Sources;

    #[test]
    fn few_open_files_are_shared_out() {
        let mut sources = Sources::default();
        let home = ("HOME".to_owned(), "/home/ada".to_owned());
        sources.env.extend([home]);
        let connections = |set: &str, files: u64| {
            let (set, env) = (vec![set.to_owned()], sources.env.clone());
            let config = Config::load(&Sources {
                set,
                env,
                ..Sources::default()
            });
            shortage(&config.unwrap(), files).map(|shortage| shortage.connections)
        };
        let usual = "http.max_connections=20000";
        assert_eq!(connections(usual, u64::MAX), None);
        assert_eq!(connections(usual, 21_024), None);
        assert_eq!(connections(usual, 21_023), Some(19_999));
        assert_eq!(connections(usual, 4096), Some(3072));
        assert_eq!(connections(usual, 1024), Some(512));
        assert_eq!(connections(usual, 100), Some(50));
        assert_eq!(connections("http.max_connections=20", 100), Some(20));
    }
}
