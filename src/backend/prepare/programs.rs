//! Program of a server in its store, as npm and uv installed it, and its version.
//!
//! Reads files only. Not here: the recipes of npm and uv (`declare`).

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

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
    let read = regular_file::open(&path).and_then(|file| file.take(LARGEST).read_to_end(&mut text));
    read.map_err(|error| format!("{package} was not installed: {error}"))?;
    let found: Package = serde_json::from_slice(&text)
        .map_err(|error| format!("the package.json of {package} cannot be read: {error}"))?;
    let bin = match bin {
        Some(bin) => bin.to_owned(),
        None => npm_bin(package, &found.bin)
            .ok_or_else(|| format!("{package} does not say which of its programs to start"))?,
    };
    let program = executable(modules.join(".bin").join(&bin))
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
        .find_map(|name| executable(store.join("bin").join(name)));
    let program = program.ok_or_else(|| format!("what was installed has no program {bin}"))?;
    Ok(Found {
        program: Some(program),
        version: uv_version(store),
    })
}

/// Version of the single tool in a store, from the name of its metadata.
fn uv_version(store: &Path) -> Option<String> {
    let tool = only_directory(&store.join("tools"))?;
    let name = normal(tool.file_name()?.to_str()?);
    let python = only_directory(&tool.join("lib"))?;
    let entries = fs::read_dir(python.join("site-packages")).ok()?;
    entries.flatten().find_map(|entry| {
        let entry = entry.file_name();
        let (package, version) = entry
            .to_str()?
            .strip_suffix(".dist-info")?
            .rsplit_once('-')?;
        (normal(package) == name).then(|| version.to_owned())
    })
}

fn only_directory(path: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(path).ok()?.flatten();
    let mut directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let only = directories.next()?.path();
    directories.next().is_none().then_some(only)
}

/// Normalized name of a Python package.
fn normal(name: &str) -> String {
    let words = name.split(['-', '_', '.']).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// The path as text, if it is an executable file.
fn executable(path: PathBuf) -> Option<String> {
    let found = fs::metadata(&path).ok()?;
    let is_program = found.is_file() && found.permissions().mode() & 0o111 != 0;
    path.into_os_string()
        .into_string()
        .ok()
        .filter(|_| is_program)
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
