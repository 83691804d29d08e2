//! Files of the system and programs that a child in profile `standard` may access.
//!
//! An allow-list: the system, and the programs of PATH and of the command. Not here: what a child
//! gets besides (`choice`), and the enforcement (`domain`).

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Component, Path, PathBuf},
};

use super::looks::{Look, Place, is_below};
use crate::backend::linux::regular_file;

/// Existing directories of the system that programs need.
pub(super) fn system() -> Vec<PathBuf> {
    let resolver = fs::canonicalize("/etc/resolv.conf").ok();
    // Where another program writes it, it is replaced by a new file of the same directory.
    let resolver = resolver.as_deref().and_then(Path::parent);
    let resolver = resolver.filter(|dir| *dir != Path::new("/etc"));
    let roots = SYSTEM.iter().map(PathBuf::from);
    let roots = roots.chain(ETC.iter().map(|name| Path::new("/etc").join(name)));
    let runtimes = fs::read_dir("/etc").into_iter().flatten().flatten();
    let roots = roots.chain(runtimes.filter_map(|entry| {
        let name = entry.file_name();
        let is_runtime = RUNTIMES
            .iter()
            .any(|runtime| name.to_string_lossy().starts_with(runtime));
        is_runtime.then(|| entry.path())
    }));
    let roots = roots.chain(resolver.map(Path::to_owned));
    outermost(roots.filter_map(|path| fs::canonicalize(path).ok()))
}

/// Devices that a child may read and write.
pub(super) fn devices() -> impl Iterator<Item = PathBuf> {
    ["null", "zero", "full", "random", "urandom"]
        .into_iter()
        .map(|name| Path::new("/dev").join(name))
}

/// Directory trees of programs: those on PATH, and those of `command` and its interpreters.
///
/// A directory of programs includes its installation: `~/.nvm/versions/node/v22/bin` needs the
/// `lib` next to it. Never a whole home directory.
///
/// The server or its package wrote what is below `foreign`, which it may read anyway: a link there leads
/// to nothing more, and the first line of a script there to programs on PATH only.
///
/// # Errors
///
/// Those of [`FirstLine::of`].
pub(crate) fn programs(
    command: &OsStr,
    path: &OsStr,
    homes: &[PathBuf],
    foreign: &[PathBuf],
) -> io::Result<Vec<PathBuf>> {
    let foreign: Vec<PathBuf> = foreign.iter().filter_map(|dir| real(dir)).collect();
    let mut found = BTreeSet::new();
    let directories: Vec<PathBuf> = std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .collect();
    let mut on_path = BTreeSet::new();
    for dir in &directories {
        if let Some(Place { path, is_own: true }) = Place::of(dir, &foreign, link)
            && path.exists()
        {
            add_tree(&path, homes, &mut found);
            on_path.insert(path);
        }
    }
    let mut next = located(command, &directories);
    let mut is_named_by_operator = true;
    // The interpreter of a script may be a script again.
    for _ in 0..INTERPRETERS {
        let Some(program) = next else { break };
        let Some(place) =
            Place::of(&program, &foreign, link).filter(|place| is_program(&place.path))
        else {
            break;
        };
        let target = place.path;
        next = interpreter(&target, &directories)?;
        if is_below(&target, &foreign) {
            is_named_by_operator = false;
            continue;
        }
        let is_on_path = || {
            let dir = program.parent().and_then(real);
            dir.is_some_and(|dir| on_path.contains(&dir))
        };
        if !place.is_own || !(is_named_by_operator || is_on_path()) {
            break;
        }
        for dir in [program.parent(), target.parent()].into_iter().flatten() {
            add_tree(dir, homes, &mut found);
        }
        found.insert(target);
        is_named_by_operator = true;
    }
    Ok(outermost(found.into_iter()))
}

/// Files that the kernel executes for a command in a working directory: its program and, of a script, the
/// interpreters, and the `env` that looks for one.
///
/// Before one that is looked for on PATH come the places in which it is not found: once there is one, it is
/// executed instead. A program is a file that its child may execute by one of the bits `by` of its mode.
///
/// # Errors
///
/// Those of [`FirstLine::of`].
pub(super) fn executed(
    (command, path): (&OsStr, &OsStr),
    cwd: Option<&Path>,
    by: u32,
    look: &Look,
) -> io::Result<Vec<PathBuf>> {
    let from_cwd = |path: &Path| cwd.unwrap_or(Path::new(".")).join(path);
    // Without a known one, a child begins in its private directory, where nothing is.
    let is_known = |dir: &PathBuf| dir.is_absolute() || (cwd.is_some() && dir != "");
    let directories = std::env::split_paths(path).filter(is_known);
    let directories: Vec<PathBuf> = directories.map(|dir| from_cwd(&dir)).collect();
    let is_program = |path: &Path| {
        let found = look.ask(path, Path::metadata).and_then(Result::ok);
        found.is_some_and(|found| found.is_file() && found.permissions().mode() & by != 0)
    };
    let mut executed = Vec::new();
    let mut search = |name: &OsStr| {
        if name.as_bytes().contains(&b'/') {
            executed.push(from_cwd(Path::new(name)));
            return executed.last().cloned();
        }
        for dir in &directories {
            executed.push(dir.join(name));
            if executed.last().is_some_and(|path| is_program(path)) {
                return executed.last().cloned();
            }
        }
        None
    };
    let mut next = search(command);
    for _ in 0..INTERPRETERS {
        let line = next.and_then(|script| look.ask(&script, FirstLine::of));
        let Some(line) = line.transpose()?.flatten() else {
            break;
        };
        next = search(from_cwd(&line.program).as_os_str());
        if line.is_by_env() {
            next = line.name().and_then(|name| search(OsStr::new(name)));
        }
    }
    Ok(executed)
}

/// Whether a path, or a link on the way to it, lies below one of these directories, which are real.
pub(super) fn is_through(path: &Path, dirs: &[PathBuf], look: &Look) -> bool {
    let place = Place::of(path, dirs, |path| look.link(path));
    place.is_none_or(|place| !place.is_own)
}

/// `paths` without those below `foreign` directories and those that a link there leads to. Of what a server may
/// write it has all that is there, and it may have put a link in the place of anything.
pub(super) fn beyond<'p>(
    paths: &'p [PathBuf],
    foreign: &[PathBuf],
) -> impl Iterator<Item = PathBuf> + use<'p> {
    let foreign: Vec<PathBuf> = foreign.iter().filter_map(|dir| real(dir)).collect();
    let is_own =
        move |path: &Path| Place::of(path, &foreign, link).is_some_and(|place| place.is_own);
    paths.iter().filter(move |path| is_own(path)).cloned()
}

/// `dirs` without those that lie below another of them, or that a link there leads to.
pub(super) fn outer(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let is_outer = |dir: &&PathBuf| {
        let others = dirs.iter().filter(|other| real(other) != real(dir));
        let others: Vec<PathBuf> = others.cloned().collect();
        beyond(std::slice::from_ref(*dir), &others).next().is_some()
    };
    dirs.iter().filter(is_outer).cloned().collect()
}

/// What a path leads to, if it is a link.
fn link(path: &Path) -> Option<PathBuf> {
    fs::read_link(path).ok()
}

/// Whether a path is an executable file: no socket, which must not be shown, and no directory.
fn is_program(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// `root`, or the paths below it without `hidden`.
///
/// Files created later beside a hidden path are not included, nor are links there: Landlock follows them,
/// and `hidden` has none.
pub(super) fn without(root: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    let root = &real(root).unwrap_or_else(|| root.to_owned());
    if hidden.iter().any(|hidden| root.starts_with(hidden)) {
        return Vec::new();
    }
    if !hidden.iter().any(|hidden| hidden.starts_with(root)) {
        return vec![root.to_owned()];
    }
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()))
        .flat_map(|entry| without(&entry.path(), hidden))
        .collect()
}

/// Adds a directory of programs with its installation.
fn add_tree(dir: &Path, homes: &[PathBuf], found: &mut BTreeSet<PathBuf>) {
    let is_shared = |path: &Path| {
        path.components().count() < 3 || homes.iter().any(|home| home.starts_with(path))
    };
    if is_shared(dir) {
        return;
    }
    found.insert(dir.to_owned());
    let is_bin = dir
        .file_name()
        .is_some_and(|name| ["bin", "sbin", "shims"].iter().any(|bin| name == *bin));
    let Some(prefix) = dir.parent().filter(|_| is_bin) else {
        return;
    };
    // These prefixes also hold private files: keyrings, registry tokens.
    let is_mixed = homes
        .iter()
        .any(|home| MIXED.iter().any(|name| prefix == home.join(name)));
    if is_mixed {
        found.insert(prefix.join("lib"));
    } else if !is_shared(prefix) {
        found.insert(prefix.to_owned());
    }
}

/// File of a command, if it exists.
fn located(command: &OsStr, directories: &[PathBuf]) -> Option<PathBuf> {
    let path = Path::new(command);
    if path.components().count() > 1 || path.is_absolute() {
        return Some(path.to_owned());
    }
    let mut candidates = directories.iter().map(|dir| dir.join(command));
    candidates.find(|path| path.is_file())
}

/// The first line of a script.
struct FirstLine {
    /// The program that the kernel executes.
    program: PathBuf,
    /// Its arguments.
    words: Vec<String>,
}

impl FirstLine {
    /// That of a file, if it is a script.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if another process has a lease on it: what it executes cannot be seen.
    fn of(script: &Path) -> io::Result<Option<Self>> {
        match regular_file::open(script) {
            Ok(file) => Ok(Self::read(file)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let why = format!("sandbox: a process has a lease on {}", script.display());
                Err(io::Error::new(error.kind(), why))
            }
            Err(_) => Ok(None),
        }
    }

    fn read(file: File) -> Option<Self> {
        let mut line = Vec::new();
        // As much as the kernel reads (BINPRM_BUF_SIZE).
        let mut head = BufReader::new(file.take(256));
        head.read_until(b'\n', &mut line).ok()?;
        let line = String::from_utf8(line.strip_prefix(b"#!")?.to_vec()).ok()?;
        let mut words = line.split_ascii_whitespace().map(str::to_owned);
        Some(Self {
            program: words.next()?.into(),
            words: words.collect(),
        })
    }

    /// Whether the interpreter is looked for on PATH.
    fn is_by_env(&self) -> bool {
        self.program.as_os_str().as_bytes().ends_with(b"/env")
    }

    /// The interpreter that `env` looks for.
    fn name(&self) -> Option<&str> {
        let mut words = self.words.iter().map(String::as_str);
        let is_name = |word: &&str| word.starts_with('-') || !word.contains('=');
        let name = words.find(|word| !ENV_FLAGS.contains(word) && is_name(word))?;
        // Of another option the next word may be the argument.
        Some(name).filter(|name| !name.starts_with('-'))
    }
}

/// Interpreter in the first line of a script.
fn interpreter(script: &Path, directories: &[PathBuf]) -> io::Result<Option<PathBuf>> {
    let Some(line) = FirstLine::of(script)? else {
        return Ok(None);
    };
    if line.is_by_env() {
        let name = line.name().map(OsStr::new);
        return Ok(name.and_then(|name| located(name, directories)));
    }
    Ok(Some(line.program))
}

pub(super) fn real(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

/// `paths` without those below others of them.
fn outermost(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let sorted: BTreeSet<PathBuf> = paths
        .filter(|path| !path.components().any(|part| part == Component::ParentDir))
        .collect();
    let mut kept: Vec<PathBuf> = Vec::new();
    // Sorted by components, a directory precedes all paths below it.
    for path in sorted {
        if !kept.last().is_some_and(|outer| path.starts_with(outer)) {
            kept.push(path);
        }
    }
    kept
}

/// Files of `/etc` that programs need to run: settings that every program of the machine may know. Others
/// may be those of one service, with its passwords.
const ETC: [&str; 57] = [
    // The dynamic linker and libraries.
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "ld-musl-x86_64.path",
    "ld-musl-aarch64.path",
    "malloc.conf",
    // TLS; not `ssl/private`.
    "ssl/certs",
    "ssl/cert.pem",
    "ssl/openssl.cnf",
    "pki/ca-trust",
    "pki/java",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "krb5.conf",
    "krb5.conf.d",
    // Names of hosts, services, users.
    "resolv.conf",
    "hosts",
    "host.conf",
    "hostname",
    "gai.conf",
    "nsswitch.conf",
    "services",
    "protocols",
    "networks",
    "passwd",
    "group",
    // Time, language, the system's name.
    "localtime",
    "timezone",
    "locale.alias",
    "locale.conf",
    "os-release",
    "debian_version",
    // Kinds of files, fonts, terminals, and what browsers read at their start.
    "mime.types",
    "magic",
    "fonts",
    "terminfo",
    "alternatives",
    "chromium.d",
    "glvnd",
    "OpenCL",
    "vulkan",
    "odbcinst.ini",
    "xdg",
    // Package managers, Git and shells, most of which fail at a file that is there and refused.
    "uv",
    "pip.conf",
    "npmrc",
    "gitconfig",
    "wgetrc",
    "profile",
    "profile.d",
    "bash.bashrc",
    "inputrc",
];

/// Beginnings of names in `/etc` of what runtimes read at their start, of whatever version.
const RUNTIMES: [&str; 7] = [
    "java-",
    "python3",
    "perl",
    "dotnet",
    "R",
    "ImageMagick",
    "libreoffice",
];

const SYSTEM: [&str; 17] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/snap",
    "/proc",
    "/sys",
    "/run/systemd/resolve",
    "/var/lib/ca-certificates",
    "/var/lib/snapd/snap",
    "/home/linuxbrew/.linuxbrew",
];

/// Prefixes in a home that hold more than programs.
const MIXED: [&str; 3] = [".local", ".cargo", ""];

/// Options of `env` without an argument; what follows `-S` is as good as a line of its own.
const ENV_FLAGS: [&str; 9] = [
    "-",
    "--",
    "-i",
    "-S",
    "-v",
    "-iS",
    "-vS",
    "--ignore-environment",
    "--split-string",
];

/// Limit of nested interpreters.
const INTERPRETERS: usize = 4;

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::super::files::*;
    use crate::backend::linux::regular_file::tests::Lease;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_program_brings_what_is_installed_beside_it_and_no_home() {
        let root = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(root.path()).unwrap().join("home/ada");
        let node = home.join(".nvm/versions/node/v22");
        write(&node.join("bin/node"), "\u{7f}ELF");
        write(&node.join("lib/npx.js"), "#!/usr/bin/env node\n");
        symlink("../lib/npx.js", node.join("bin/npx")).unwrap();
        write(&home.join(".local/share/uv/tools/x/bin/x"), "#!/bin/sh\n");
        fs::create_dir_all(home.join(".local/bin")).unwrap();
        symlink("../share/uv/tools/x/bin/x", home.join(".local/bin/x")).unwrap();
        let path = [node.join("bin"), home.join(".local/bin"), home.join("bin")];
        fs::create_dir_all(home.join("bin")).unwrap();
        let path = std::env::join_paths(path).unwrap();
        let homes = [home.clone()];
        let below = |command: &str| {
            let found = programs(OsStr::new(command), &path, &homes, &[]).unwrap();
            let inside = |path: &PathBuf| path.strip_prefix(&home).ok().map(Path::to_owned);
            found.iter().filter_map(inside).collect::<Vec<_>>()
        };
        let always = [".local/bin", ".local/lib", ".nvm/versions/node/v22"];
        let mut npx: Vec<PathBuf> = always.map(PathBuf::from).to_vec();
        npx.extend(["bin".into(), "lib".into()]);
        assert_eq!(below("npx"), npx);
        let tool = PathBuf::from(".local/share/uv/tools/x");
        let mut uvx = npx.clone();
        uvx.insert(2, tool);
        assert_eq!(below("x"), uvx);
        assert_eq!(below("no-such-program"), npx);
    }

    #[test]
    fn scripts_lead_to_their_interpreters() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (script, python) = (root.join("a/serve"), root.join("py/v3/bin/python"));
        write(&python, "\u{7f}ELF");
        write(&script, &format!("#!{} -u\n", python.display()));
        let found = programs(script.as_os_str(), OsStr::new(""), &[], &[]).unwrap();
        assert_eq!(found, [root.join("a"), root.join("py/v3")]);
    }

    /// The first line of a package gave its server the files of another, and any socket.
    #[test]
    fn a_script_of_a_package_leads_to_programs_of_path_only() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let [bin, store, secret] = ["path/bin", "store/bin/x", "b/data/x"].map(|it| root.join(it));
        write(&root.join("node/v22/bin/node"), "\u{7f}ELF");
        fs::create_dir_all(&bin).unwrap();
        symlink(root.join("node/v22/bin/node"), bin.join("node")).unwrap();
        write(&secret, "");
        let foreign = [root.join("store")];
        let found = |command: &Path, line: &str| {
            _ = fs::remove_file(&store);
            write(&store, line);
            programs(command.as_os_str(), bin.as_os_str(), &[], &foreign).unwrap()
        };
        let path = [root.join("path")];
        let with_node = [root.join("node/v22"), root.join("path")];
        for line in ["#!/usr/bin/env node\n", "#!/usr/bin/env -S A=b node -u\n"] {
            assert_eq!(found(&store, line), with_node, "{line}");
        }
        let absolute = bin.join("node");
        assert_eq!(
            found(&store, &format!("#!{}", absolute.display())),
            with_node
        );
        let secret = secret.display();
        for line in ["", "/usr/bin/env ", "/proc/self/root"] {
            assert_eq!(
                found(&store, &format!("#!{line}{secret}\n")),
                path,
                "{line}"
            );
        }
        let wrapper = root.join("a/wrapper");
        write(&wrapper, &format!("#!{}\n", store.display()));
        let seen = found(&wrapper, &format!("#!{secret}\n"));
        assert_eq!(seen, [root.join("a"), root.join("path")]);
    }

    #[test]
    fn a_link_of_a_package_leads_to_nothing_more() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        write(&root.join("b/data/x"), "");
        fs::create_dir_all(root.join("store")).unwrap();
        symlink("../b/data/x", root.join("store/x")).unwrap();
        symlink("../b/data", root.join("store/bin")).unwrap();
        // By way of a link of the operator, too.
        symlink("store/x", root.join("y")).unwrap();
        let foreign = [root.join("store")];
        for command in ["store/x", "store/bin/x", "y"] {
            let command = root.join(command);
            let path = root.join("store/bin");
            let found = programs(command.as_os_str(), path.as_os_str(), &[], &foreign).unwrap();
            assert_eq!(found, [""; 0].map(PathBuf::from), "{command:?}");
        }
    }

    #[test]
    fn only_programs_are_interpreters() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (script, socket) = (root.join("a/serve"), root.join("run/x.sock"));
        let (python, text) = (root.join("py/v3/bin/python"), root.join("b/text"));
        fs::create_dir_all(root.join("run")).unwrap();
        let _socket = UnixListener::bind(&socket).unwrap();
        write(&python, "\u{7f}ELF");
        write(&text, "");
        fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
        let found = |line: String| {
            write(&script, &line);
            programs(script.as_os_str(), OsStr::new(""), &[], &[]).unwrap()
        };
        let (python, alone) = (python.display(), [root.join("a")]);
        for path in [&socket, &root.join("run"), &text] {
            assert_eq!(found(format!("#!{}\n", path.display())), alone);
        }
        for option in ["-u", "-C", "--unset", "--chdir", "-iu"] {
            let line = format!("#!/usr/bin/env -S {option} {python} node\n");
            assert_eq!(found(line), alone, "{option}");
        }
        let line = format!("#!/usr/bin/env -S {python} -u\n");
        assert_eq!(found(line), [root.join("a"), root.join("py/v3")]);
    }

    /// The open of a FIFO waited for its writer, and a worker of the runtime with it.
    #[test]
    fn a_program_without_a_file_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("fifo");
        let (at, kind) = (rustix::fs::CWD, rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(at, &fifo, kind, rustix::fs::Mode::RWXU, 0).unwrap();
        let (read, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || read.send(interpreter(&fifo, &[])));
        let interpreter = seen.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(interpreter.unwrap().unwrap(), None);
    }

    /// Of a script that could not be read nobody looked at the interpreter, and its child was refused it.
    #[test]
    fn a_script_under_a_lease_is_no_other_program() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (script, python) = (root.join("a/serve"), root.join("py/v3/bin/python"));
        write(&python, "\u{7f}ELF");
        write(&script, &format!("#!{}\n", python.display()));
        let found = || programs(script.as_os_str(), OsStr::new(""), &[], &[]);
        let lease = Lease::on(&script);
        let refused = found().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(refused.to_string().ends_with("a/serve"), "{refused}");
        drop(lease);
        assert_eq!(found().unwrap(), [root.join("a"), root.join("py/v3")]);
    }

    #[test]
    fn what_is_hidden_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for file in ["a/x", "b/data/key", "b/other/y"] {
            write(&root.join(file), "");
        }
        let hidden = [root.join("b/data")];
        let mut seen = without(root, &hidden);
        seen.sort();
        assert_eq!(seen, [root.join("a"), root.join("b/other")]);
        assert_eq!(
            without(&root.join("b/data/key"), &hidden),
            [""; 0].map(PathBuf::from)
        );
        assert_eq!(without(&root.join("a"), &hidden), [root.join("a")]);
    }

    /// A link to a directory above hidden files, such as /var/run, made all of it readable.
    #[test]
    fn what_is_hidden_is_hidden_behind_links() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        for file in ["a/x", "run/secrets/key", "run/other", "var/data/key"] {
            write(&root.join(file), "");
        }
        symlink("../run", root.join("var/run")).unwrap();
        let hidden = [root.join("run/secrets"), root.join("var/data")];
        let mut seen = without(&root, &hidden);
        seen.sort();
        assert_eq!(seen, [root.join("a"), root.join("run/other")]);
        assert_eq!(
            without(&root.join("var/run"), &hidden),
            [root.join("run/other")]
        );
    }

    #[test]
    fn the_system_is_there() {
        let system = system();
        assert!(system.contains(&"/usr".into()) && system.contains(&"/etc/passwd".into()));
        let etc = Path::new("/etc");
        assert!(!system.iter().any(|path| etc.starts_with(path)));
    }
}
