//! The last steps of a process before it becomes the server: it puts up its own walls.
//!
//! Each step is final, so that their order matters: what needs a right comes before what takes it
//! away. Not here: the guard (`launch`), and what was decided (`sandbox`).

use std::{
    io,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::{
    fs::Mode,
    process::{Pid, Resource, Rlimit, Signal},
    thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets},
};

use super::{files, seccomp};
use crate::backend::guard::{Cage, Files, Orders, Store, Tcp, launch};

/// Becomes the server of `orders`; returns only why that failed.
///
/// `parent` is the process whose end must be this one's.
pub(crate) fn become_server(orders: &Orders, parent: Option<Pid>) -> io::Error {
    match put_up(orders, parent) {
        Ok(()) => launch::exec(&orders.command, &orders.args, &orders.env),
        Err(error) => error,
    }
}

fn put_up(orders: &Orders, parent: Option<Pid>) -> io::Result<()> {
    let cage = &orders.cage;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::setsid()?;
    limit(Resource::Nofile, orders.files)?;
    limit(Resource::Fsize, orders.file_size)?;
    limit(Resource::Core, 0)?;
    if let Some(processes) = cage.processes {
        limit(Resource::Nproc, processes)?;
    }
    // A domain holds no one who has them: CAP_PERFMON alone reads the memory maps and environment
    // of any process past Landlock (Linux 6.13, `may_access_mm`).
    let loses_capabilities = cage.is_hardened || cage.is_apart();
    if loses_capabilities {
        bound_capabilities();
    }
    if let Some(uid) = cage.uid {
        become_user(uid)?;
    }
    if loses_capabilities {
        let none = CapabilitySet::empty();
        let (effective, permitted, inheritable) = (none, none, none);
        let sets = CapabilitySets {
            effective,
            permitted,
            inheritable,
        };
        rustix::thread::set_capabilities(None, sets)?;
    }
    // After the change of user, which forgets it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent that ended before the line above sends no signal any more.
    if rustix::process::getppid() != parent {
        return Err(io::ErrorKind::Interrupted.into());
    }
    rustix::process::chdir(&orders.cwd)?;
    rustix::thread::set_no_new_privs(true)?;
    // The gateway's allocator forbids huge pages, and execve keeps that.
    _ = rustix::thread::disable_transparent_huge_pages(false);
    launch::default_signals();
    launch::close_all_but_streams()?;
    let private = orders.private.as_deref();
    restrict(cage, private).map_err(|error| step("Landlock", &error))?;
    seccomp::apply(cage).map_err(|error| step("seccomp", &error))
}

fn step(name: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("cannot be confined by {name}: {error}"))
}

/// Sets a soft and hard limit, no higher than the hard limit that is there.
fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let hard = rustix::process::getrlimit(resource)
        .maximum
        .unwrap_or(u64::MAX);
    let value = Some(value.min(hard)).filter(|&value| value != u64::MAX);
    let (current, maximum) = (value, value);
    Ok(rustix::process::setrlimit(
        resource,
        Rlimit { current, maximum },
    )?)
}

/// A uid and a gid of its own, and no further groups.
fn become_user(uid: u32) -> io::Result<()> {
    let (user, group) = (
        rustix::fs::Uid::from_raw(uid),
        rustix::fs::Gid::from_raw(uid),
    );
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    Ok(rustix::thread::set_thread_res_uid(user, user, user)?)
}

/// Sees to it that no program that is executed later gets a capability.
///
/// Without the right to do so there is nothing to lose: `no_new_privs` holds in any case.
fn bound_capabilities() {
    _ = rustix::thread::clear_ambient_capability_set();
    for capability in CapabilitySet::all().iter() {
        _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let no_root = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    _ = rustix::thread::set_capabilities_secure_bits(no_root);
}

/// The Landlock domain, as far as this child has one.
fn restrict(cage: &Cage, private: Option<&Path>) -> io::Result<()> {
    let hides = !cage.hide.is_empty() && !cage.has_namespaces && cage.uid.is_none();
    let files = cage
        .files
        .clone()
        .or_else(|| hides.then(|| all_but_hidden(private)));
    let ports = match &cage.tcp {
        Tcp::Ports(ports) => ports.as_slice(),
        Tcp::Any | Tcp::Off => &[],
    };
    // Past what is hidden: these lie in the gateway's own directories.
    let (mut reads, mut writes) = (None, [private.map(Path::to_owned), None]);
    match &cage.store {
        Some(Store::Read(path)) => reads = Some(path.clone()),
        Some(Store::Fill(path)) => writes[1] = Some(path.clone()),
        None => {}
    }
    let is_wanted = files.is_some() || !ports.is_empty() || cage.is_scoped;
    if cage.landlock == 0 || !is_wanted {
        return Ok(());
    }
    let rules = || -> Result<_, landlock::RulesetError> {
        let abi = ABI::V7;
        // What an older kernel does not know was weighed before (`Offer`).
        let mut rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        if files.is_some() {
            rules = rules.handle_access(AccessFs::from_all(abi))?;
        }
        if !ports.is_empty() {
            rules = rules.handle_access(AccessNet::from_all(abi))?;
        }
        if cage.is_scoped {
            rules = rules.scope(Scope::from_all(abi))?;
        }
        let mut rules = rules.create()?;
        if let Some(files) = &files {
            rules = rules
                .add_rules(path_beneath_rules(
                    visible(&files.read, cage).chain(reads),
                    AccessFs::from_read(abi),
                ))?
                .add_rules(path_beneath_rules(files::devices(), DEVICE))?
                .add_rules(path_beneath_rules(
                    visible(&files.write, cage).chain(writes.into_iter().flatten()),
                    AccessFs::from_all(abi),
                ))?;
        }
        for &port in ports {
            rules = rules.add_rule(NetPort::new(port, AccessNet::from_all(abi)))?;
        }
        rules.restrict_self()
    };
    match rules() {
        Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
            Err(io::ErrorKind::Unsupported.into())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// All files: what is hidden is taken out of them.
fn all_but_hidden(private: Option<&Path>) -> Files {
    Files {
        read: Vec::new(),
        write: std::iter::once("/".into())
            .chain(private.map(Path::to_owned))
            .collect(),
    }
}

/// `roots` without what is hidden.
fn visible<'c>(roots: &'c [PathBuf], cage: &'c Cage) -> impl Iterator<Item = PathBuf> + 'c {
    roots
        .iter()
        .flat_map(|root| files::without(root, &cage.hide))
}

/// What may be done with a device such as `/dev/null`.
const DEVICE: landlock::BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{
    ReadFile | WriteFile | Truncate | IoctlDev
});
