//! Notes on files in the command of a server that its children will not find.
//!
//! Not here: the choice of what children may read (`backend::sandbox`).

use std::{
    collections::BTreeSet,
    env::current_dir,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;

use crate::{
    backend::sandbox::choice::{hides_files, out_of_reach},
    config::gateway::environment,
    declare::{Confinement, Home, Launch, Profile},
};

/// Notes on the server of this tenant and name, which the gateway of this machine starts in profile
/// `standard`. The gateway may have another PATH and home, so none of them is a mistake.
pub(crate) fn notes((tenant, name): (&str, &str), spec: &Json) -> Vec<String> {
    let launch = launch(spec);
    if launch.confinement.profile == Profile::Open {
        return Vec::new();
    }
    let here = current_dir().unwrap_or_default();
    let relative = launch.args.iter().filter(|arg| is_relative(arg, &here));
    let relative = relative.filter(|_| launch.cwd.is_none()).map(|arg| {
        let whole = here.join(arg);
        let whole = whole.canonicalize().unwrap_or(whole);
        format!(
            "{tenant}/{name}: {arg} is in this directory, and the server runs in another; write it \
             absolute: {}",
            whole.display()
        )
    });
    let mut notes: Vec<String> = relative.collect();
    let env = environment();
    let home = env.get("HOME").map(Path::new);
    let search = env.get("PATH").map_or("", String::as_str);
    let hidden = out_of_reach(&launch, search.as_ref(), home);
    if hides_files() && !hidden.is_empty() {
        let shown = hidden.iter().map(|file| shown(Path::new(file), home));
        let shown: BTreeSet<PathBuf> = launch
            .confinement
            .read
            .iter()
            .cloned()
            .chain(shown)
            .collect();
        let shown: Vec<Json> = shown
            .iter()
            .map(|path| path.to_string_lossy().into())
            .collect();
        let pair = format!("sandbox.read={}", Json::from(shown));
        notes.push(format!(
            "{tenant}/{name}: the sandbox of the server hides {}; to let it read them: \
             lockgate server set {tenant} {name} {}",
            hidden.join(", "),
            quoted(&pair)
        ));
    }
    notes
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@,+%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whether an argument is a relative path of what is in `here`. The name of a package is not that of a
/// directory.
fn is_relative(arg: &str, here: &Path) -> bool {
    let file = here.join(arg);
    Path::new(arg).is_relative() && (file.is_file() || arg.starts_with('.') && file.exists())
}

/// What to show for a file: its directory, unless others share that.
fn shown(file: &Path, home: Option<&Path>) -> PathBuf {
    let parent = file.parent().filter(|_| !file.is_dir());
    let is_own = |dir: &&Path| {
        dir.components().count() > 2 && home.is_none_or(|home| !home.starts_with(dir))
    };
    parent.filter(is_own).unwrap_or(file).to_owned()
}

/// The part of a declared server that decides what its children may read.
fn launch(spec: &Json) -> Launch {
    // "$$" is "$" in the syntax of manifests.
    let text = |value: &Json| value.as_str().map(|text| text.replace("$$", "$"));
    let texts = |list: &Json| -> Vec<String> {
        let items = list.as_array().into_iter().flatten();
        items.filter_map(text).collect()
    };
    let paths = |list: &Json| texts(list).into_iter().map(PathBuf::from).collect();
    let sandbox = &spec["sandbox"];
    Launch {
        command: text(&spec["command"]).unwrap_or_default(),
        args: texts(&spec["args"]),
        env: std::collections::BTreeMap::new(),
        cwd: text(&spec["cwd"])
            .filter(|cwd| !cwd.is_empty())
            .map(PathBuf::from),
        home: Home::Private,
        confinement: Confinement {
            profile: if sandbox["profile"] == "open" {
                Profile::Open
            } else {
                Profile::Standard
            },
            read: paths(&sandbox["read"]),
            write: paths(&sandbox["write"]),
            ..Confinement::default()
        },
        prepared: None,
        files: std::collections::BTreeMap::new(),
        is_preparing: false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::reach::*;

    #[test]
    fn hidden_files_come_with_the_remedy() {
        if !hides_files() {
            return;
        }
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let (own, file) = (dir.path(), dir.path().join("a b.py"));
        fs::write(&file, "").unwrap();
        let mut spec =
            json!({"command": "sh", "args": ["-u", file, "/etc/passwd", "/nonexistent"]});
        let wanted = format!(
            "a/x: the sandbox of the server hides {}; to let it read them: \
             lockgate server set a x 'sandbox.read=[\"{}\"]'",
            file.display(),
            own.display()
        );
        assert_eq!(notes(("a", "x"), &spec), [wanted]);
        // The list that is there stays in it.
        spec["sandbox"] = json!({"read": ["/srv/$$a"]});
        let wanted = format!("'sandbox.read=[\"/srv/$a\",\"{}\"]'", own.display());
        assert!(notes(("a", "x"), &spec)[0].ends_with(&wanted));
        let quiet = [
            json!({"sandbox": {"read": [own]}}),
            json!({"sandbox": {"write": [own]}}),
            json!({"sandbox": {"profile": "open"}}),
            json!({"cwd": own}),
        ];
        for part in quiet {
            let mut spec = json!({"command": "sh", "args": [file]});
            spec.as_object_mut()
                .unwrap()
                .extend(part.as_object().unwrap().clone());
            assert!(notes(("a", "x"), &spec).is_empty(), "{spec}");
        }
    }

    #[test]
    fn what_is_shown_is_no_home() {
        let home = Some(Path::new("/home/ada"));
        for (file, wanted) in [
            ("/x/own/server.py", "/x/own"),
            ("/home/ada/server.py", "/home/ada/server.py"),
            ("/home/server.py", "/home/server.py"),
        ] {
            assert_eq!(shown(Path::new(file), home), Path::new(wanted));
        }
    }

    #[test]
    fn relative_files_are_not_names_of_packages() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("server.py"), "").unwrap();
        fs::create_dir(dir.path().join("mcp")).unwrap();
        for (arg, is) in [
            ("server.py", true),
            ("./mcp", true),
            (".", true),
            ("mcp", false),
            ("-u", false),
        ] {
            assert_eq!(is_relative(arg, dir.path()), is, "{arg}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("-y"), "-y");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
