//! The limit of open files.
//!
//! Not here: the limit of a child (`limits.files`).

use rustix::process::{Resource, Rlimit};

use crate::{base::budget::Descriptors, config::Config};

/// Raises the soft limit to the hard limit.
pub(crate) fn raise() {
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    let (current, maximum) = (hard, hard);
    // The kernel permits every value up to the hard limit; if not, the shortage is handled anyway.
    _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

/// Returns what to say of `http.max_connections` if `files` may be open and do not suffice: key, problem
/// and remedy.
pub(crate) fn shortage(config: &Config, files: u64) -> Option<String> {
    let (wanted, most) = (
        config.http.max_connections as u64,
        Descriptors::new(files).max_connections(),
    );
    (most < wanted).then(|| {
        format!(
            "http.max_connections: is {wanted}, of which {most} can be had, because {files} is the hard \
             limit of open files; raise it (ulimit -n, LimitNOFILE=), or write less"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::descriptors::*;
    use crate::config::Sources;

    #[test]
    fn few_open_files_are_told() {
        let mut sources = Sources::default();
        let home = ("HOME".to_owned(), "/home/ada".to_owned());
        sources.env.extend([home]);
        let told = |set: &str, files: u64| {
            let (set, env) = (vec![set.to_owned()], sources.env.clone());
            let config = Config::load(&Sources {
                set,
                env,
                ..Sources::default()
            });
            shortage(&config.unwrap(), files)
        };
        let usual = "http.max_connections=20000";
        assert_eq!(told(usual, 1 << 20), None);
        assert_eq!(told("http.max_connections=20", 100), None);
        let what = told(usual, 20_000).unwrap();
        assert!(what.starts_with("http.max_connections: is 20000, of which 17276 can be had"));
    }
}
