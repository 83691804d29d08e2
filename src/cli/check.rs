//! `lockgate check`: every mistake, or what would be served and what this kernel offers.
//!
//! Not here: what is a mistake (`config`, `control`).

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use crate::{
    config::{Config, Mistake, Sources, environment},
    control::{
        checks,
        manifest::{self, Manifest},
    },
};

/// Reports on stderr or stdout; the manifest without a flag is that of `LOCKGATE_APPLY`.
pub(crate) fn check(
    config_file: Option<PathBuf>,
    apply_file: Option<&Path>,
    set: Vec<String>,
) -> ExitCode {
    let sources = Sources {
        file: config_file,
        env: environment(),
        set,
        ..Sources::default()
    };
    match report(&sources, apply_file) {
        Ok(summary) => {
            print!("{summary}{}", Kernel::probe(Path::new("/")));
            ExitCode::SUCCESS
        }
        Err(mistakes) => {
            for mistake in mistakes {
                eprintln!("{mistake}");
            }
            ExitCode::from(2)
        }
    }
}

/// What would be served, or every mistake in configuration and manifest.
fn report(sources: &Sources, apply: Option<&Path>) -> Result<String, Vec<Mistake>> {
    let named = sources
        .env
        .get("LOCKGATE_APPLY")
        .filter(|path| !path.is_empty())
        .map(Path::new);
    let config = Config::load(sources).map_err(|error| error.mistakes);
    let manifest = apply
        .or(named)
        .map(|file| manifest::load(file, &sources.env))
        .transpose();
    match (config, manifest) {
        (Ok(config), Ok(manifest)) => {
            let search = sources.env.get("PATH").map_or("", String::as_str);
            let check = |manifest| checks::check(manifest, &config, search);
            let mistakes = manifest.as_ref().map(check).unwrap_or_default();
            if mistakes.is_empty() {
                Ok(summary(&config, manifest.as_ref()))
            } else {
                Err(mistakes)
            }
        }
        (config, manifest) => {
            let mut mistakes = config.err().unwrap_or_default();
            mistakes.extend(manifest.err().unwrap_or_default());
            Err(mistakes)
        }
    }
}

fn summary(config: &Config, manifest: Option<&Manifest>) -> String {
    let mut lines = vec![format!(
        "listens on {}, known as {}",
        config.http.listen, config.public_url
    )];
    if let Some(ops) = config.ops.listen {
        lines.push(format!("operations on {ops}"));
    }
    let tenants = manifest.map(Manifest::tenants).unwrap_or_default();
    let servers = tenants.iter().flat_map(|tenant| tenant.servers.values());
    lines.extend(servers.map(|server| {
        let (url, command) = (&config.public_url, &server.launch.command);
        format!(
            "serves {url}/t/{}/{}/mcp: {command}",
            server.tenant, server.name
        )
    }));
    if let Some((tenant, server)) = &config.default {
        lines.push(format!(
            "serves {}/mcp: the same as {tenant}/{server}",
            config.public_url
        ));
    }
    if manifest.is_none() {
        lines.push("serves nothing: no manifest was named (--apply)".to_owned());
    }
    if config.auth.insecure {
        lines.push("warning: auth.insecure allows everybody who reaches it".to_owned());
    }
    if config.sandbox.shared_uid {
        lines.push(
            "warning: sandbox.shared_uid lets tenants' processes reach each other".to_owned(),
        );
    }
    lines.join("\n") + "\n"
}

/// What this kernel offers to keep children in and apart.
#[derive(Debug, PartialEq, Eq)]
struct Kernel {
    has_landlock: bool,
    user_namespaces: u64,
    /// Where cgroup v2 is mounted, and whether this process may make groups there.
    cgroup: Option<(String, bool)>,
}

impl Kernel {
    /// Reads `/proc` and `/sys` below `root`.
    fn probe(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let mount = cgroup_mount(&read("proc/self/mountinfo"));
        let own = read("proc/self/cgroup");
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .unwrap_or("/")
            .to_owned();
        let cgroup = mount.map(|mount| {
            let group = root
                .join(mount.trim_start_matches('/'))
                .join(own.trim_start_matches('/'));
            let is_delegated = rustix::fs::access(&group, rustix::fs::Access::WRITE_OK).is_ok()
                && rustix::fs::access(group.join("cgroup.procs"), rustix::fs::Access::WRITE_OK)
                    .is_ok();
            (mount, is_delegated)
        });
        Self {
            has_landlock: read("sys/kernel/security/lsm")
                .trim()
                .split(',')
                .any(|lsm| lsm == "landlock"),
            user_namespaces: read("proc/sys/user/max_user_namespaces")
                .trim()
                .parse()
                .unwrap_or(0),
            cgroup,
        }
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let offered = |is_offered| if is_offered { "offered" } else { "not found" };
        let cgroup = match &self.cgroup {
            None => "not mounted".to_owned(),
            Some((mount, true)) => format!("at {mount}, delegated"),
            Some((mount, false)) => format!("at {mount}, not delegated"),
        };
        let mut text = String::new();
        writeln!(
            text,
            "separation of children: (d) nothing; a second tenant needs sandbox.shared_uid"
        )?;
        writeln!(
            text,
            "confinement of children: rlimits yes, no_new_privs yes"
        )?;
        writeln!(text, "this kernel: Landlock {}", offered(self.has_landlock))?;
        writeln!(
            text,
            "this kernel: user namespaces {}",
            offered(self.user_namespaces > 0)
        )?;
        writeln!(text, "this kernel: cgroup v2 {cgroup}")?;
        writeln!(
            text,
            "this build uses only rlimits and no_new_privs of these"
        )?;
        f.write_str(&text)
    }
}

/// The mount point of cgroup v2 (`proc_pid_mountinfo(5)`: fields, " - ", type).
fn cgroup_mount(mountinfo: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let (fields, of_type) = line.split_once(" - ")?;
        let is_cgroup = of_type.split(' ').next() == Some("cgroup2");
        is_cgroup
            .then(|| fields.split(' ').nth(4).map(str::to_owned))
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sources(set: &[&str]) -> Sources {
        let env = BTreeMap::from([("HOME", "/home/ada"), ("PATH", "/bin:/usr/bin")]);
        Sources {
            env: env
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            set: set.iter().map(|set| (*set).to_owned()).collect(),
            ..Sources::default()
        }
    }

    fn manifest(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.yaml");
        fs::write(&file, text).unwrap();
        (dir, file)
    }

    #[test]
    fn says_what_would_be_served() {
        let (_dir, file) = manifest(
            "tenants:\n  a:\n    auth: {mode: none}\n    servers:\n      x: {command: sh}\n",
        );
        let set = ["default.tenant=a", "default.server=x"];
        let summary = report(&sources(&set), Some(&file)).unwrap();
        insta::assert_snapshot!(summary, @r###"
        listens on 127.0.0.1:8080, known as http://127.0.0.1:8080
        operations on 127.0.0.1:9090
        serves http://127.0.0.1:8080/t/a/x/mcp: sh
        serves http://127.0.0.1:8080/mcp: the same as a/x
        "###);
        let mut by_variable = sources(&set);
        by_variable
            .env
            .insert("LOCKGATE_APPLY".to_owned(), file.display().to_string());
        assert_eq!(report(&by_variable, None).unwrap(), summary);
        assert!(
            report(&sources(&[]), None)
                .unwrap()
                .contains("serves nothing")
        );
    }

    #[test]
    fn reports_mistakes_of_both_files() {
        let (_dir, file) = manifest("tenants: 5\n");
        assert_eq!(
            report(&sources(&["log.events=0"]), Some(&file))
                .unwrap_err()
                .len(),
            2
        );
        let (_dir, file) = manifest(
            "tenants:\n  a:\n    auth: {mode: none}\n    servers:\n      x: {command: nosuch}\n",
        );
        let found = report(&sources(&[]), Some(&file)).unwrap_err();
        assert_eq!(found[0].what, "nosuch not found");
        assert!(found[0].place.ends_with(":5"), "{found:?}");
    }

    #[test]
    fn probes_the_kernel() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let bare = Kernel::probe(root.path());
        assert_eq!(
            bare,
            Kernel {
                has_landlock: false,
                user_namespaces: 0,
                cgroup: None
            }
        );
        write("sys/kernel/security/lsm", "lockdown,landlock,yama\n");
        write("proc/sys/user/max_user_namespaces", "15000\n");
        write(
            "proc/self/mountinfo",
            "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
        );
        write("proc/self/cgroup", "0::/user.slice\n");
        write("sys/fs/cgroup/user.slice/cgroup.procs", "");
        let kernel = Kernel::probe(root.path());
        assert!(kernel.has_landlock && kernel.user_namespaces == 15_000);
        assert_eq!(kernel.cgroup, Some(("/sys/fs/cgroup".to_owned(), true)));
        assert!(kernel.to_string().contains("delegated"));
    }
}
