//! `lockgate check`: every mistake, or a summary of the gateway and of this machine.
//!
//! Not here: the checks themselves (`config`, `manifest`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::runtime::said;
use crate::endpoint::{Endpoint, Kind};
use crate::{
    backend::sandbox::{Kernel, choice::out_of_reach},
    base::terminal::escaped,
    cli::serve::{
        credentials,
        descriptors::shortage,
        machine::{kernel, offer},
        private_dir, work,
    },
    config::{Config, Mistake, Separation, Sources, gateway::environment},
    declare::{Offer, Profile, STORE, Server, Tcp},
    manifest::{Manifest, checks, objects},
};

/// `lockgate check`
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Configuration file
    #[arg(long, value_name = "F")]
    config: Option<PathBuf>,
    /// Manifest of tenants and servers
    #[arg(long, value_name = "F")]
    apply: Option<PathBuf>,
    /// Any key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Prints the report. Without a flag, the manifest is that of `LOCKGATE_APPLY`.
pub(crate) fn check(args: CheckArgs) -> ExitCode {
    let sources = Sources {
        file: args.config,
        env: environment(),
        set: args.set,
        ..Sources::default()
    };
    match report(&sources, args.apply.as_deref(), &kernel()) {
        Ok(summary) => said(summary),
        Err(mistakes) => {
            for mistake in mistakes {
                eprintln!("{mistake}");
            }
            ExitCode::from(2)
        }
    }
}

/// Summary of the gateway, or every mistake in configuration and manifest.
fn report(
    sources: &Sources,
    apply: Option<&Path>,
    kernel: &Kernel,
) -> Result<String, Vec<Mistake>> {
    let default_manifest = sources
        .env
        .get("LOCKGATE_APPLY")
        .filter(|path| !path.is_empty())
        .map(Path::new);
    let config = Config::load(sources).map_err(|error| error.mistakes);
    let manifest = apply
        .or(default_manifest)
        .map(|file| objects::load(file, &sources.env).map(|read| read.manifest))
        .transpose();
    match (config, manifest) {
        (Ok(config), Ok(manifest)) => {
            let search = sources.env.get("PATH").map_or("", String::as_str);
            let mut mistakes = credentials::mistakes(&config);
            let data_dir = private_dir::check(&config);
            mistakes.extend(data_dir.as_ref().err().cloned());
            let offer = match offer(kernel, &config) {
                Ok(offer) => offer,
                Err(more) => return Err([more, mistakes].concat()),
            };
            let check = |manifest| checks::check(manifest, &config, search, &offer);
            mistakes.extend(manifest.as_ref().map(check).unwrap_or_default());
            let catalog = manifest.as_ref().map(|manifest| &manifest.catalog);
            let work = work::check(&config, &offer, catalog);
            mistakes.extend(work.as_ref().err().cloned());
            if mistakes.is_empty() {
                let mut summary = summary(&config, manifest.as_ref(), &offer);
                let warnings = shortage(&config, kernel.open_files)
                    .into_iter()
                    .chain(credentials::lapse(&config))
                    .chain(data_dir.ok().flatten())
                    .chain(work.into_iter().flatten());
                for warning in warnings {
                    summary += &format!("{}\n", escaped(&warning));
                }
                summary += &arguments(manifest.as_ref(), &offer, &sources.env);
                Ok(summary + &machine(kernel, &offer))
            } else {
                Err(mistakes)
            }
        }
        (config, manifest) => {
            // All that can be found without the part that is missing.
            let mut mistakes = match config {
                Ok(config) => {
                    let offered = offer(kernel, &config).err();
                    let unusable = credentials::mistakes(&config).into_iter();
                    let unusable = unusable.chain(private_dir::check(&config).err());
                    offered.into_iter().flatten().chain(unusable).collect()
                }
                Err(mistakes) => mistakes,
            };
            mistakes.extend(manifest.err().unwrap_or_default());
            Err(mistakes)
        }
    }
}

/// Says which arguments of servers their children may not read.
fn arguments(manifest: Option<&Manifest>, offer: &Offer, env: &BTreeMap<String, String>) -> String {
    let search = env.get("PATH").map_or("", String::as_str);
    let home = env.get("HOME").map(Path::new);
    let servers = manifest.into_iter();
    let servers = servers.flat_map(|one| one.catalog.servers());
    let mut lines = String::new();
    for server in servers.filter(|_| offer.landlock > 0) {
        for arg in out_of_reach(&server.launch, search.as_ref(), home) {
            lines += &format!(
                "{}/{}: may not read its argument {}; add its directory to sandbox.read\n",
                server.tenant,
                server.name,
                escaped(arg)
            );
        }
    }
    lines
}

fn summary(config: &Config, manifest: Option<&Manifest>, offer: &Offer) -> String {
    let mut lines = vec![format!(
        "listens on {}, known as {}",
        config.http.listen, config.public_url
    )];
    if let Some(ops) = config.ops.listen {
        lines.push(format!("operations on {ops}"));
    }
    let tenants = manifest.map(Manifest::tenants).unwrap_or_default();
    let servers = tenants.iter().flat_map(|tenant| tenant.servers.values());
    lines.extend(servers.flat_map(|server| {
        let endpoint = Endpoint::new(&server.tenant, &server.name, Kind::Mcp);
        let url = endpoint.url(&config.public_url);
        let command = server.launch.command.replace(STORE, "${prepared}");
        let served = format!("serves {url}: {command}");
        let prepared = server.recipe.as_ref().map(|recipe| {
            let (tenant, name) = (&server.tenant, &server.name);
            format!("{tenant}/{name}: prepared once: {}", recipe.subject())
        });
        let lines = std::iter::once(served).chain(prepared);
        lines.chain(sandbox_lines(server, offer))
    }));
    if let Some((tenant, server)) = &config.default {
        lines.push(format!(
            "serves {}{}: the same as {tenant}/{server}",
            config.public_url,
            Kind::Mcp.alias()
        ));
    }
    if manifest.is_none() {
        lines.push("serves nothing: no manifest was named (--apply)".to_owned());
    }
    if config.auth.insecure {
        lines.push("warning: auth.insecure allows everybody who reaches it".to_owned());
    }
    lines.extend(
        config
            .separate_databases()
            .map(|what| format!("warning: {what}")),
    );
    if config.sandbox.shared_uid && offer.separation == Separation::None {
        lines.push(
            "warning: sandbox.shared_uid lets tenants' processes reach each other".to_owned(),
        );
    }
    let lines = lines.iter().map(|line| escaped(line));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// Describes this machine, and the sandboxing that children get.
fn machine(kernel: &Kernel, offer: &Offer) -> String {
    let offered = |is_offered| if is_offered { "yes" } else { "no" };
    let landlock = match kernel.landlock {
        0 => "no".to_owned(),
        version => format!("interface {version}"),
    };
    let cgroup = match &kernel.cgroup {
        None => "not mounted".to_owned(),
        Some(group) => format!(
            "{}, {}, controllers: {}",
            group.path.display(),
            if group.is_delegated {
                "delegated"
            } else {
                "not delegated"
            },
            if group.controllers.is_empty() {
                "none".to_owned()
            } else {
                group.controllers.join(" ")
            }
        ),
    };
    let separation = match offer.separation {
        Separation::Uid => "uid: each child has its own",
        Separation::Namespace => "namespace: each child has its own of users, pids, mounts and IPC",
        Separation::Landlock => "landlock: each child has a domain of its own",
        Separation::None => "none; a second tenant needs sandbox.shared_uid",
    };
    let shared = offer.shared_amounts();
    let shared = shared.map(|what| format!("\n{what}")).unwrap_or_default();
    let walls = offer.walls();
    let width = walls.iter().map(|wall| wall.what.len()).max();
    let walls = walls.map(|wall| {
        let holds = if wall.holds { "yes" } else { "no" };
        format!("  {:1$}  {holds}", wall.what, width.unwrap_or_default())
    });
    [
        format!("separation of children: {separation}{shared}"),
        "out of reach of a child in profile standard, or limited:".to_owned(),
        walls.join("\n"),
        format!("this machine: Landlock {landlock}"),
        format!("this machine: seccomp {}", offered(kernel.has_seccomp)),
        format!(
            "this machine: namespaces of a child's own {}",
            offered(kernel.has_namespaces)
        ),
        format!(
            "this machine: right to change users {}",
            offered(kernel.has_users)
        ),
        format!("this machine: cgroup v2 {cgroup}"),
        format!(
            "this machine: refuses connections by address {}",
            offered(offer.refuses_addresses)
        ),
    ]
    .join("\n")
        + "\n"
}

/// Describes the sandbox of one server's children.
fn sandbox_lines(server: &Server, offer: &Offer) -> Vec<String> {
    let name = format!("{}/{}", server.tenant, server.name);
    let wanted = &server.launch.confinement;
    let profile = match wanted.profile {
        Profile::Standard => "standard",
        Profile::Open => "open",
    };
    let tcp = match &wanted.tcp {
        Tcp::Any => "any TCP".to_owned(),
        Tcp::Off => "no TCP".to_owned(),
        Tcp::Ports(ports) => format!("TCP ports {ports:?}"),
    };
    let unenforced = offer.shortcomings(server).into_iter();
    std::iter::once(format!("{name}: profile {profile}, {tcp}"))
        .chain(
            unenforced.map(|missing| {
                format!("{name}: {} is not enforced: {}", missing.key, missing.what)
            }),
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use super::super::check::*;

    const KERNEL: Kernel = Kernel {
        landlock: 7,
        has_seccomp: true,
        has_namespaces: false,
        has_mounts: false,
        has_users: false,
        is_root: false,
        has_filters: false,
        open_files: u64::MAX,
        cgroup: None,
    };

    fn sources(set: &[&str]) -> Sources {
        // A directory that is there, for whoever runs the tests.
        let env = BTreeMap::from([
            ("HOME", "/home/ada"),
            ("PATH", "/bin:/usr/bin"),
            ("LOCKGATE_DATA_DIR", "/tmp"),
        ]);
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
        let summary = report(&sources(&set), Some(&file), &KERNEL).unwrap();
        insta::assert_snapshot!(summary, @r###"
        listens on 127.0.0.1:8080, known as http://127.0.0.1:8080
        operations on 127.0.0.1:9090
        serves http://127.0.0.1:8080/t/a/x/mcp: sh
        a/x: profile standard, any TCP
        a/x: sandbox.tcp is not enforced: its TCP reaches this gateway, its stores and link-local addresses: no cgroup v2 with BPF is delegated
        serves http://127.0.0.1:8080/mcp: the same as a/x
        separation of children: landlock: each child has a domain of its own
        amounts that the kernel counts per user, such as epoll watches and inotify instances, are shared by all children and the gateway: one child can use them up; with separation uid each child has its own
        out of reach of a child in profile standard, or limited:
          files of other children and of the gateway         yes
          modes, owners and times of files it may not write  no
          signals to other processes                         yes
          memory and environment of other processes          yes
          command lines of other processes                   no
          UNIX sockets of others                             yes
          abstract UNIX sockets of others                    yes
          System V IPC and message queues of others          yes
          /dev/shm of others                                 yes
          TCP to the gateway, its stores and replicas        no
          TCP to metadata addresses                          no
          memory above limits.memory                         no
          processes above limits.pids                        no
        this machine: Landlock interface 7
        this machine: seccomp yes
        this machine: namespaces of a child's own no
        this machine: right to change users no
        this machine: cgroup v2 not mounted
        this machine: refuses connections by address no
        "###);
        let mut by_variable = sources(&set);
        by_variable
            .env
            .insert("LOCKGATE_APPLY".to_owned(), file.display().to_string());
        assert_eq!(report(&by_variable, None, &KERNEL).unwrap(), summary);
        assert!(
            report(&sources(&[]), None, &KERNEL)
                .unwrap()
                .contains("serves nothing")
        );
    }

    #[test]
    fn warns_of_replicas_that_share_sessions_and_no_store() {
        let warned = |set: &[&str]| {
            let summary = report(&sources(set), None, &KERNEL).unwrap();
            summary.contains("warning: sql.url: is not set while redis.url is")
        };
        assert!(warned(&["redis.url=redis://h"]));
        assert!(!warned(&["redis.url=redis://h", "sql.url=postgres://h/x"]));
        assert!(!warned(&[]));
    }

    #[test]
    fn reports_mistakes_of_both_files() {
        let (_dir, file) = manifest("tenants: 5\n");
        assert_eq!(
            report(&sources(&["log.events=0"]), Some(&file), &KERNEL)
                .unwrap_err()
                .len(),
            2
        );
        let data_dir = ["data_dir=/proc/x"];
        for apply in [None, Some(file.as_path())] {
            let found = report(&sources(&data_dir), apply, &KERNEL).unwrap_err();
            assert_eq!(found[0].key, "data_dir", "{found:?}");
        }
        let work_dir = format!("work_dir=/{}", "w".repeat(28));
        let found = report(&sources(&[&work_dir]), None, &KERNEL).unwrap_err();
        assert_eq!(found[0].key, "work_dir", "{found:?}");
        // A manifest that cannot be read hides no certificate that cannot be read.
        let tls = ["http.tls.cert=/no/such.pem", "http.tls.key=/no/such.pem"];
        let found = report(&sources(&tls), Some(&file), &KERNEL).unwrap_err();
        let keys: Vec<&str> = found.iter().map(|mistake| &*mistake.key).collect();
        assert_eq!(keys, ["http.tls.cert", "tenants"]);
        let (_dir, file) = manifest(
            "tenants:\n  a:\n    auth: {mode: none}\n    servers:\n      x: {command: nosuch}\n",
        );
        let found = report(&sources(&[]), Some(&file), &KERNEL).unwrap_err();
        assert_eq!(found[0].what, "nosuch not found");
        assert!(found[0].place.ends_with(":5"), "{found:?}");
    }

    #[test]
    fn warns_of_a_directory_above_the_files_of_children_that_servers_write() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let work_dir = format!("work_dir={}", dir.path().join("w").display());
        let kernel = Kernel {
            has_users: true,
            ..KERNEL
        };
        let uids = ["sandbox.uids=100000-165535", &work_dir];
        for (profile, is_warned_of) in [("open", true), ("standard", false)] {
            let (_dir, file) = manifest(&format!(
                "tenants: {{a: {{auth: {{mode: none}}, servers: {{x: {{command: sh, sandbox: {{profile: {profile}}}}}}}}}}}"
            ));
            let summary = report(&sources(&uids), Some(&file), &kernel).unwrap();
            let wanted = format!("warning: work_dir: {} lies above", dir.path().display());
            assert_eq!(summary.contains(&wanted), is_warned_of, "{summary}");
        }
    }

    #[test]
    fn says_what_cannot_be_enforced() {
        let (_dir, file) = manifest(
            "tenants:\n  a:\n    auth: {mode: none}\n    servers:\n      x: {command: sh, limits: {cpu: 1}, sandbox: {required: false}}\n",
        );
        let summary = report(&sources(&[]), Some(&file), &KERNEL).unwrap();
        assert!(summary.contains("a/x: limits.cpu is not enforced: no cgroup"));
        let script = file.with_file_name("server.js");
        fs::write(&script, "").unwrap();
        for (read, is_told) in [
            ("/nonexistent", true),
            (file.parent().unwrap().to_str().unwrap(), false),
        ] {
            let text = format!(
                "tenants: {{a: {{auth: {{mode: none}}, servers: {{x: {{command: sh, args: [{}, /etc/passwd], sandbox: {{read: [{read}]}}}}}}}}}}",
                script.display()
            );
            let (_dir, file) = manifest(&text);
            let summary = report(&sources(&[]), Some(&file), &KERNEL).unwrap();
            assert_eq!(
                summary.contains("a/x: may not read its argument /"),
                is_told
            );
            assert!(!summary.contains("passwd"));
        }
        let uids = ["sandbox.uids=100000-165535"];
        let found = report(&sources(&uids), Some(&file), &KERNEL).unwrap_err();
        assert_eq!(found[0].key, "sandbox.uids");
    }
}
