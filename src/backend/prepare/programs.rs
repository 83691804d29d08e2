//! Program of a server in its store, as npm and uv installed it, and its version.
//!
//! Reads files only, and none outside the store. Not here: the recipes of npm and uv (`declare`).

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
};

use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{backend::linux::regular_file, declare::Start};

/// Program and version found in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Program that children start; none if the specification names it.
    pub(crate) program: Option<String>,
    /// Installed version, if any.
    pub(crate) version: Option<String>,
}

/// Needed members of a `package.json`.
#[derive(Deserialize)]
struct Package {
    version: Option<String>,
    #[serde(default)]
    bin: Value,
}

/// Limit of a `package.json`, in bytes.
const LARGEST: u64 = 1 << 20;

/// Links that a path in a store may have, as for the kernel.
const LINKS: usize = 40;

/// Finds the program that `start` needs.
///
/// # Errors
///
/// The missing part, for the operator.
pub(crate) fn find(start: &Start, store: &Path) -> Result<Found, String> {
    match start {
        Start::AsWritten => Ok(Found::default()),
        Start::Npm { package, bin, .. } => npm(store, package, bin.as_deref()),
        Start::Uv { bin, .. } => uv(store, bin),
    }
}

fn npm(store: &Path, package: &str, bin: Option<&str>) -> Result<Found, String> {
    let modules = store.join("node_modules");
    let path = modules.join(package).join("package.json");
    let mut text = Vec::new();
    let read = inside(store, &path)
        .and_then(|path| regular_file::open(&path))
        .and_then(|file| file.take(LARGEST).read_to_end(&mut text));
    read.map_err(|error| format!("{package} was not installed: {error}"))?;
    let found: Package = serde_json::from_slice(&text)
        .map_err(|error| format!("the package.json of {package} cannot be read: {error}"))?;
    let bin = match bin {
        Some(bin) => bin.to_owned(),
        None => npm_bin(package, &found.bin)
            .ok_or_else(|| format!("{package} does not say which of its programs to start"))?,
    };
    // The package chose the name: with a path it would be a program of others, whose directory the child could read.
    let program = Some(&bin)
        .filter(|bin| is_file_name(bin))
        .and_then(|bin| executable(store, modules.join(".bin").join(bin)))
        .ok_or_else(|| format!("{package} has no program {bin}"))?;
    Ok(Found {
        program: Some(program),
        version: found.version,
    })
}

/// Program of a package as npx chooses it: the only one, or the one with the package's name.
fn npm_bin(package: &str, bin: &Value) -> Option<String> {
    let name = package.rsplit('/').next().unwrap_or(package);
    match bin {
        Value::String(_) => Some(name.to_owned()),
        Value::Object(all) => {
            // Several names of one file count as one program.
            let mut names: Vec<&String> = all.keys().collect();
            let is_one = Map::values(all).all(|file| Some(file) == all.values().next());
            match names.pop() {
                Some(last) if is_one && !all.contains_key(name) => Some(last.clone()),
                Some(_) if all.contains_key(name) => Some(name.to_owned()),
                _ => None,
            }
        }
        _ => None,
    }
}

fn uv(store: &Path, bin: &str) -> Result<Found, String> {
    let names = [bin.to_owned(), normal(bin)];
    let program = names
        .iter()
        .find_map(|name| executable(store, store.join("bin").join(name)));
    let program = program.ok_or_else(|| format!("what was installed has no program {bin}"))?;
    Ok(Found {
        program: Some(program),
        version: uv_version(store),
    })
}

/// Version of the single tool in a store, from the name of its metadata.
fn uv_version(store: &Path) -> Option<String> {
    let tool = only_directory(store, &store.join("tools"))?;
    let name = normal(tool.file_name()?.to_str()?);
    let python = only_directory(store, &tool.join("lib"))?;
    let packages = inside(store, &python.join("site-packages")).ok()?;
    let entries = fs::read_dir(packages).ok()?;
    entries.flatten().find_map(|entry| {
        let entry = entry.file_name();
        let (package, version) = entry
            .to_str()?
            .strip_suffix(".dist-info")?
            .rsplit_once('-')?;
        (normal(package) == name).then(|| version.to_owned())
    })
}

fn only_directory(store: &Path, path: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(inside(store, path).ok()?).ok()?.flatten();
    let mut directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let only = directories.next()?.path();
    directories.next().is_none().then_some(only)
}

/// Normalized name of a Python package.
fn normal(name: &str) -> String {
    let words = name.split(['-', '_', '.']).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// Whether a name has no path.
fn is_file_name(name: &str) -> bool {
    Path::new(name).file_name() == Some(OsStr::new(name))
}

/// The path as text, if it is an executable file in the store.
fn executable(store: &Path, program: PathBuf) -> Option<String> {
    let found = fs::symlink_metadata(inside(store, &program).ok()?).ok()?;
    let is_program = found.is_file() && found.permissions().mode() & 0o111 != 0;
    program
        .into_os_string()
        .into_string()
        .ok()
        .filter(|_| is_program)
}

/// Path in a store, without links.
///
/// A link out of the store is an error, and is not looked at: the package chose it, and the file system that it
/// leads to may never answer.
fn inside(store: &Path, path: &Path) -> io::Result<PathBuf> {
    let outside = || io::Error::other("it leads out of the store");
    let root = fs::canonicalize(store)?;
    let below = |path: &Path| {
        let below = path
            .strip_prefix(&root)
            .or_else(|_| path.strip_prefix(store));
        below.map(Path::to_owned).map_err(|_| outside())
    };
    let (mut found, mut rest) = (root.clone(), below(path)?);
    let mut links = 0;
    loop {
        let mut names = rest.components();
        let name = names.next();
        let behind = names.as_path().to_owned();
        match name {
            None => return Ok(found),
            Some(Component::Normal(name)) => found.push(name),
            Some(Component::CurDir) => {}
            Some(Component::ParentDir) if found != root => {
                found.pop();
            }
            Some(_) => return Err(outside()),
        }
        rest = behind;
        if fs::symlink_metadata(&found)?.is_symlink() {
            links += 1;
            if links > LINKS {
                return Err(Errno::LOOP.into());
            }
            let target = fs::read_link(&found)?;
            found.pop();
            rest = if target.is_absolute() {
                found.clone_from(&root);
                below(&target)?.join(rest)
            } else {
                target.join(rest)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::programs::*;

    #[test]
    fn a_package_has_one_program_or_one_of_its_name() {
        for (package, bin, program) in [
            ("x", json!("a.js"), Some("x")),
            ("@s/x", json!("a.js"), Some("x")),
            ("@s/x", json!({"y": "a.js"}), Some("y")),
            ("@s/x", json!({"y": "a.js", "x": "b.js"}), Some("x")),
            ("x", json!({"y": "a.js", "z": "a.js"}), Some("z")),
            ("x", json!({"y": "a.js", "x": "a.js"}), Some("x")),
            ("x", json!({"y": "a.js", "z": "b.js"}), None),
            ("x", json!({}), None),
            ("x", json!(null), None),
            ("x", json!(["a.js"]), None),
        ] {
            assert_eq!(
                npm_bin(package, &bin).as_deref(),
                program,
                "{package} {bin}"
            );
        }
    }

    fn write(store: &Path, path: &str, text: &str) {
        let path = store.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn npm_says_what_it_installed() {
        let dir = tempfile::tempdir().unwrap();
        let (store, args) = (dir.path(), Vec::new());
        let start = |bin: Option<&str>| Start::Npm {
            package: "@s/x".to_owned(),
            bin: bin.map(str::to_owned),
            args: args.clone(),
        };
        assert!(find(&start(None), store).unwrap_err().contains("@s/x"));
        let package = "node_modules/@s/x/package.json";
        write(store, package, "{");
        assert!(find(&start(None), store).is_err());
        write(
            store,
            package,
            r#"{"version": "1.2.3-a", "bin": {"x": "t", "y": "t2"}}"#,
        );
        assert_eq!(
            find(&start(None), store).unwrap_err(),
            "@s/x has no program x"
        );
        for bin in ["x", "y"] {
            write(store, &format!("node_modules/.bin/{bin}"), "");
        }
        for (bin, name) in [(None, "x"), (Some("y"), "y")] {
            let found = find(&start(bin), store).unwrap();
            let program = store.join("node_modules/.bin").join(name);
            assert_eq!(found.program.as_deref(), program.to_str());
            assert_eq!(found.version.as_deref(), Some("1.2.3-a"));
        }
        assert!(find(&start(Some("z")), store).is_err());
    }

    /// Its child read the whole directory of that program, which may be another tenant's.
    #[test]
    fn a_package_names_no_program_by_its_path() {
        let (dir, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = dir.path();
        write(others.path(), "run", "");
        write(store, "node_modules/y/run", "");
        fs::create_dir_all(store.join("node_modules/.bin")).unwrap();
        let outside = others.path().join("run");
        for name in [outside.to_str().unwrap(), "../y/run", "../y/run/", "..", ""] {
            let package = json!({"bin": {name: "run"}}).to_string();
            write(store, "node_modules/x/package.json", &package);
            let found = npm(store, "x", None);
            assert!(found.unwrap_err().contains("has no program"), "{name}");
        }
    }

    /// The file system behind a link may not answer, and the preparation waited for it.
    #[test]
    fn a_link_out_of_a_store_is_not_followed() {
        use std::os::unix::fs::symlink;

        let (dir, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = dir.path();
        write(others.path(), "run", "");
        write(others.path(), "package.json", r#"{"bin": "run"}"#);
        let package = store.join("node_modules/x/package.json");
        let program = store.join("node_modules/.bin/x");
        write(store, "node_modules/x/run", "");
        write(store, "node_modules/.bin/x", "");
        symlink(others.path().join("package.json"), &package).unwrap();
        let found = npm(store, "x", None).unwrap_err();
        assert!(found.contains("leads out of the store"), "{found}");
        fs::remove_file(&package).unwrap();
        write(store, "node_modules/x/package.json", r#"{"bin": "run"}"#);
        let (absolute, away) = (store.join("node_modules/x/run"), others.path().join("run"));
        let up = Path::new("../../..").join(others.path().file_name().unwrap());
        for (target, is_found) in [
            (Path::new("../x/run"), true),
            (&*absolute, true),
            (&*away, false),
            (&*up.join("run"), false),
            (Path::new("x"), false),
        ] {
            fs::remove_file(&program).unwrap();
            symlink(target, &program).unwrap();
            let found = npm(store, "x", None).ok().and_then(|found| found.program);
            let expected = program.to_str().filter(|_| is_found);
            assert_eq!(found.as_deref(), expected, "{}", target.display());
        }
    }

    /// The open of a FIFO waited for its writer, and the preparation with it.
    #[test]
    fn a_package_without_a_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().to_owned();
        fs::create_dir_all(store.join("node_modules/x")).unwrap();
        let (at, kind) = (rustix::fs::CWD, rustix::fs::FileType::Fifo);
        let fifo = store.join("node_modules/x/package.json");
        rustix::fs::mknodat(at, &fifo, kind, rustix::fs::Mode::RWXU, 0).unwrap();
        let (found, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || found.send(npm(&store, "x", None)));
        let found = seen.recv_timeout(std::time::Duration::from_secs(10));
        assert!(found.unwrap().unwrap_err().contains("no regular file"));
    }

    #[test]
    fn uv_says_what_it_installed() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path();
        let start = |bin: &str| Start::Uv {
            bin: bin.to_owned(),
            args: Vec::new(),
        };
        assert!(find(&start("some.tool"), store).is_err());
        write(store, "bin/some-tool", "");
        assert_eq!(find(&start("some-tool"), store).unwrap().version, None);
        let packages = "tools/some-tool/lib/python3.12/site-packages";
        write(
            store,
            &format!("{packages}/other-1.0.dist-info/METADATA"),
            "",
        );
        write(
            store,
            &format!("{packages}/Some_Tool-2.0.dist-info/METADATA"),
            "",
        );
        let found = find(&start("Some_Tool"), store).unwrap();
        assert_eq!(found.version.as_deref(), Some("2.0"));
        assert_eq!(
            found.program.as_deref(),
            store.join("bin/some-tool").to_str()
        );
    }
}
