//! Open files: how many this process may have, and what they suffice for.
//!
//! Not here: the bound of a child, which is its own (`limits.files`, `backend/confine`).

use rustix::process::{Resource, Rlimit};

use crate::config::Config;

/// Takes all that the hard limit grants: the soft one is low for programs that are not this one.
pub(crate) fn raise() {
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    let (current, maximum) = (hard, hard);
    // Up to the hard limit nobody is refused; and if, what there is is bounded and warned of.
    _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

/// Connections that are asked for and cannot be had.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// How many there can be.
    pub(crate) connections: usize,
    /// Key, what, and remedy.
    pub(crate) what: String,
}

/// What `files` open ones do not suffice for.
///
/// Without a bound below them a listener could say nothing to those beyond, and no listener could
/// accept: probes neither.
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

/// For the store and Redis, the listeners beside, and two hundred children.
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
