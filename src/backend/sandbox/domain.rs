//! Landlock domain of a child: the files, TCP ports and processes that it may access.
//!
//! Not here: their choice (`machine`).

use std::{
    io,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};

use super::{
    cgroup, files,
    namespace::SHARED_MEMORY,
    restrictions::{Files, Namespaces, Restrictions, Store, Tcp},
};

/// Puts this process into the domain of `restrictions`, if they need one.
///
/// # Errors
///
/// Landlock's, and `Unsupported` if nothing is enforced.
pub(crate) fn restrict(restrictions: &Restrictions, private: Option<&Path>) -> io::Result<()> {
    let hides = !restrictions.hide.is_empty()
        && !restrictions.has_own_processes()
        && restrictions.uid.is_none();
    let files = restrictions
        .files
        .clone()
        .or_else(|| hides.then(|| all_but_hidden(private)));
    let ports = match &restrictions.tcp {
        Tcp::Ports(ports) => ports.as_slice(),
        Tcp::Any | Tcp::Off => &[],
    };
    let is_wanted = files.is_some() || !ports.is_empty() || restrictions.is_scoped;
    if restrictions.landlock == 0 || !is_wanted {
        return Ok(());
    }
    let rules = || -> Result<_, landlock::RulesetError> {
        let abi = ABI::V7;
        // Missing features of older kernels are known before (`Offer`).
        let mut rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
        if files.is_some() {
            rules = rules.handle_access(AccessFs::from_all(abi))?;
        }
        if !ports.is_empty() {
            rules = rules.handle_access(AccessNet::from_all(abi))?;
        }
        if restrictions.is_scoped {
            rules = rules.scope(Scope::from_all(abi))?;
        }
        let mut rules = rules.create()?;
        if let Some(files) = &files {
            rules = add_files(rules, files, restrictions, private)?;
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

/// Adds what the child may access of files.
fn add_files(
    rules: RulesetCreated,
    files: &Files,
    restrictions: &Restrictions,
    private: Option<&Path>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    let abi = ABI::V7;
    // Exempt from `hide`: these lie in the gateway's own directories.
    let (mut reads, mut writes) = (None, [private.map(Path::to_owned), None]);
    match &restrictions.store {
        Some(Store::Read(path)) => reads = Some(path.clone()),
        Some(Store::Fill(path)) => writes[1] = Some(path.clone()),
        None => {}
    }
    let own_memory = (restrictions.namespaces != Namespaces::None).then_some(SHARED_MEMORY);
    let (hidden, groups) = (&restrictions.hide, own_groups(restrictions));
    let closed: Vec<PathBuf> = hidden.iter().chain(&groups).cloned().collect();
    rules
        .add_rules(path_beneath_rules(
            visible(&files.read, hidden).chain(reads),
            AccessFs::from_read(abi),
        ))?
        .add_rules(path_beneath_rules(
            // With the directories above them.
            visible(&files.write, hidden).filter(|_| !groups.is_empty()),
            AccessFs::from_read(abi),
        ))?
        .add_rules(path_beneath_rules(files::devices(), DEVICE))?
        .add_rules(path_beneath_rules(own_memory, AccessFs::from_all(abi)))?
        .add_rules(path_beneath_rules(
            visible(&files.write, &closed).chain(writes.into_iter().flatten()),
            AccessFs::from_all(abi),
        ))
}

/// All files; hidden ones are subtracted later.
fn all_but_hidden(private: Option<&Path>) -> Files {
    Files {
        read: Vec::new(),
        write: std::iter::once("/".into())
            .chain(private.map(Path::to_owned))
            .collect(),
    }
}

/// `roots` without hidden paths.
fn visible<'c>(roots: &'c [PathBuf], hidden: &'c [PathBuf]) -> impl Iterator<Item = PathBuf> + 'c {
    roots.iter().flat_map(|root| files::without(root, hidden))
}

/// The file systems with the cgroup of a child that has the uid of the gateway, which owns it: there it could
/// raise its limits, or leave it.
fn own_groups(restrictions: &Restrictions) -> Vec<PathBuf> {
    let is_owner = restrictions.group.is_some() && restrictions.uid.is_none();
    is_owner.then(cgroup::mounts).unwrap_or_default()
}

/// Access to devices such as `/dev/null`.
const DEVICE: landlock::BitFlags<AccessFs> = landlock::make_bitflags!(AccessFs::{
    ReadFile | WriteFile | Truncate | IoctlDev
});
