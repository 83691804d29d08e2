//! Recipes for `npx` and `uvx`: one installation instead of a download at every start.
//!
//! Pure. Only command lines with a certain meaning have a recipe; others are left to npx and uvx.
//! Not here: the recipe type (`recipe`).

use std::path::Path;

use super::{
    recipe::{Recipe, Start, is_url},
    specification::Launch,
};

/// The recipe of a specification; none for other commands.
pub(crate) fn derive(launch: &Launch) -> Option<Recipe> {
    let path = Path::new(&launch.command);
    let args = &launch.args;
    match path.file_name()?.to_str()? {
        "npx" => npx(launch, path, args),
        "uvx" => uvx(launch, path, args),
        "uv" if args.starts_with(&["tool".to_owned(), "run".to_owned()]) => {
            uvx(launch, path, &args[2..])
        }
        _ => None,
    }
}

/// The program `name` in the directory of another; just `name` if that was looked up in PATH.
fn beside(path: &Path, name: &str) -> String {
    path.with_file_name(name).to_string_lossy().into_owned()
}

/// `npx [OPTION…] PACKAGE[@VERSION] [ARG…]`, `npx --package PACKAGE [--] PROGRAM [ARG…]`
fn npx(launch: &Launch, path: &Path, args: &[String]) -> Option<Recipe> {
    let mut packages = Vec::new();
    let mut options = Vec::new();
    let mut rest = args.iter();
    let program = loop {
        let arg = rest.next()?;
        let (name, mut value) = option(arg);
        match name {
            "--" => break rest.next()?,
            "-p" | "--package" => packages.push(value.take().or_else(|| rest.next().cloned())?),
            "--registry" => {
                let registry = value.take().or_else(|| rest.next().cloned())?;
                options.push(format!("--registry={registry}"));
            }
            _ if value.is_none() && NPX.contains(&name) => {}
            // Other options may have any meaning, so they are left to npx.
            _ if name.starts_with('-') => return None,
            _ => break arg,
        }
    };
    let bin = (!packages.is_empty()).then(|| program.clone());
    if packages.is_empty() {
        packages.push(program.clone());
    }
    let names: Vec<_> = packages
        .iter()
        .map(|package| npm_package(package))
        .collect::<Option<_>>()?;
    // npx would first look for a program of this name in the surrounding project.
    if launch.cwd.is_some() && bin.is_none() && names[0].len() == program.len() {
        return None;
    }
    if bin.as_ref().is_some_and(|bin| bin.contains('/')) {
        return None;
    }
    let start = Start::Npm {
        package: names[0].to_owned(),
        bin,
        args: rest.cloned().collect(),
    };
    let mut words = vec![beside(path, "npm")];
    words.extend(
        [
            "install",
            "--prefix",
            ".",
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
        ]
        .map(str::to_owned),
    );
    words.append(&mut options);
    words.append(&mut packages);
    let env = [("npm_config_cache", "\0/.tmp/npm")];
    Some(Recipe::new(words, env, launch, start))
}

/// Options of npx without effect on the installation.
const NPX: [&str; 6] = [
    "-y",
    "--yes",
    "-q",
    "--quiet",
    "--silent",
    "--prefer-online",
];

/// The package of `NAME[@RANGE]` in the registry; none for a path, a URL or an alias.
fn npm_package(text: &str) -> Option<&str> {
    let is_word = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .is_some_and(|first| first.is_ascii_alphanumeric())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || "-_.~".contains(letter))
    };
    let end = text.get(1..)?.find('@').map_or(text.len(), |at| at + 1);
    let (name, range) = text.split_at(end);
    let is_name = match name.strip_prefix('@') {
        Some(scoped) => scoped
            .split_once('/')
            .is_some_and(|(scope, name)| is_word(scope) && is_word(name)),
        None => is_word(name),
    };
    let is_range = range.is_empty() || (range.len() > 1 && !range.contains([':', '/']));
    (is_name && is_range).then_some(name)
}

/// `uvx [OPTION…] PACKAGE[@VERSION] [ARG…]`, `uvx --from PACKAGE PROGRAM [ARG…]`
fn uvx(launch: &Launch, path: &Path, args: &[String]) -> Option<Recipe> {
    let mut from = None;
    let mut options = Vec::new();
    let mut rest = args.iter();
    let program = loop {
        let arg = rest.next()?;
        let (name, mut value) = option(arg);
        match name {
            "--" => break rest.next()?,
            "--from" => from = Some(value.take().or_else(|| rest.next().cloned())?),
            _ if UVX_VALUED.contains(&name) => {
                let value = value.take().or_else(|| rest.next().cloned())?;
                options.extend([name.to_owned(), value]);
            }
            _ if value.is_none() && UVX.contains(&name) => {}
            _ if name.starts_with('-') => return None,
            _ => break arg,
        }
    };
    let package = from.as_ref().unwrap_or(program);
    let (requirement, name) = uv_package(package)?;
    let bin = if from.is_some() { program } else { name };
    if bin.is_empty() || bin.contains('/') {
        return None;
    }
    let start = Start::Uv {
        bin: bin.to_owned(),
        args: rest.cloned().collect(),
    };
    let mut words = vec![beside(path, "uv"), "tool".to_owned(), "install".to_owned()];
    words.append(&mut options);
    words.push(requirement);
    let env = [
        ("UV_CACHE_DIR", "\0/.tmp/uv"),
        // Python cannot store compiled files in a read-only store.
        ("UV_COMPILE_BYTECODE", "1"),
        ("UV_NO_PROGRESS", "1"),
        ("UV_PYTHON_INSTALL_DIR", "\0/python"),
        ("UV_TOOL_BIN_DIR", "\0/bin"),
        ("UV_TOOL_DIR", "\0/tools"),
    ];
    Some(Recipe::new(words, env, launch, start))
}

/// Options of uvx without effect on the installation.
const UVX: [&str; 4] = ["-q", "--quiet", "--no-progress", "--isolated"];

/// Options with a value that `uv tool install` has too.
const UVX_VALUED: [&str; 10] = [
    "--with",
    "-p",
    "--python",
    "--index",
    "--default-index",
    "-i",
    "--index-url",
    "--extra-index-url",
    "--index-strategy",
    "--prerelease",
];

/// A requirement and its package name; none for a path.
fn uv_package(text: &str) -> Option<(String, &str)> {
    if is_url(text) {
        return Some((text.to_owned(), ""));
    }
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let (name, behind) = text.split_at(text.find(|l| !is_name(l)).unwrap_or(text.len()));
    if !name.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let (extras, version) = match behind.find(']') {
        Some(end) if behind.starts_with('[') => behind.split_at(end + 1),
        _ => ("", behind),
    };
    let requirement = match version.strip_prefix('@') {
        Some("latest") => format!("{name}{extras}"),
        Some(version) if !version.is_empty() && version.chars().all(is_version) => {
            format!("{name}{extras}=={version}")
        }
        None if version.is_empty() || version.starts_with(['=', '<', '>', '~', '!']) => {
            text.to_owned()
        }
        _ => return None,
    };
    Some((requirement, name))
}

fn is_version(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ".+!-_".contains(letter)
}

/// An option, and the value behind its `=`.
fn option(arg: &str) -> (&str, Option<String>) {
    match arg.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
        _ => (arg, None),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{sandbox::Confinement, specification::Home};

    use super::super::packages::*;

    fn launch(line: &str) -> Launch {
        let mut words = line.split(' ').map(str::to_owned);
        Launch {
            command: words.next().unwrap(),
            args: words.collect(),
            env: BTreeMap::new(),
            cwd: None,
            home: Home::Private,
            confinement: Confinement::default(),
            prepared: None,
            files: BTreeMap::new(),
            is_preparing: false,
        }
    }

    /// The install command and the start command of a recipe, as text.
    fn derived(line: &str) -> Option<(String, String)> {
        let recipe = derive(&launch(line))?;
        let started = match &recipe.start {
            Start::AsWritten => String::new(),
            Start::Npm { package, bin, args } => {
                format!(
                    "{package} {} {}",
                    bin.as_deref().unwrap_or("?"),
                    args.join(" ")
                )
            }
            Start::Uv { bin, args } => format!("{bin} {}", args.join(" ")),
        };
        let words = recipe.words.join(" ");
        let words = words.replace(" --prefix . --no-audit --no-fund --no-update-notifier", "");
        Some((words, started.trim_end().to_owned()))
    }

    #[test]
    fn what_is_derived() {
        for (line, words, started) in [
            ("npx -y x@1.2.3 a -b", "npm install x@1.2.3", "x ? a -b"),
            ("npx --yes @s/x", "npm install @s/x", "@s/x ?"),
            ("npx @s/x@latest -y", "npm install @s/x@latest", "@s/x ? -y"),
            ("npx -q -y x@^1", "npm install x@^1", "x ?"),
            ("npx -y -- x --", "npm install x", "x ? --"),
            ("/opt/bin/npx x@1", "/opt/bin/npm install x@1", "x ?"),
            ("npx -p @s/x@2 y z", "npm install @s/x@2", "@s/x y z"),
            (
                "npx -y --package=x --package y -- z",
                "npm install x y",
                "x z",
            ),
            ("npx --registry=r x", "npm install --registry=r x", "x ?"),
            ("npx --registry r x", "npm install --registry=r x", "x ?"),
            ("uvx x", "uv tool install x", "x"),
            ("uvx x@1.2 -v", "uv tool install x==1.2", "x -v"),
            ("uvx x@latest", "uv tool install x", "x"),
            ("uvx x[cli]@1.0", "uv tool install x[cli]==1.0", "x"),
            ("uvx --from x@1 y z", "uv tool install x==1", "y z"),
            ("uvx --from=x>=1 y", "uv tool install x>=1", "y"),
            ("uv tool run -q x", "uv tool install x", "x"),
            (
                "/b/uvx --with y -p 3.12 --python=3.13 x",
                "/b/uv tool install --with y -p 3.12 --python 3.13 x",
                "x",
            ),
            (
                "uvx --from git+https://u:p@h/x y",
                "uv tool install git+https://u:p@h/x",
                "y",
            ),
        ] {
            let expected = Some((words.to_owned(), started.to_owned()));
            assert_eq!(derived(line), expected, "{line}");
        }
    }

    #[test]
    fn what_only_npx_and_uvx_know() {
        for line in [
            "node x",
            "npx",
            "npx -y",
            "npx -c x",
            "npx --no-install x",
            "npx --offline x",
            "npx --yes=false x",
            "npx ./x",
            "npx ../x",
            "npx /x",
            "npx user/repo",
            "npx github:user/repo",
            "npx x@npm:y",
            "npx x@file:y",
            "npx x@",
            "npx @s",
            "npx @s/x/y",
            "npx .x",
            "npx https://h/x.tgz",
            "npx -p x",
            "npx -p x ../y",
            "npm exec x",
            "uvx",
            "uvx ./x",
            "uvx git+https://h/x",
            "uvx x@",
            "uvx x@../y",
            "uvx --refresh x",
            "uvx --from . x",
            "uvx --from x",
            "uvx --from x ../y",
            "uvx x[cli",
            "uv run x",
            "uv tool install x",
        ] {
            assert_eq!(derived(line), None, "{line}");
        }
    }

    #[test]
    fn a_project_around_it_may_have_the_program() {
        for (line, is_derived) in [("npx x", false), ("npx x@1", true), ("npx -p x y", true)] {
            let mut launch = launch(line);
            launch.cwd = Some("/project".into());
            assert_eq!(derive(&launch).is_some(), is_derived, "{line}");
        }
    }

    #[test]
    fn secrets_of_the_server_are_not_given_to_installers() {
        let mut with = launch("npx x");
        let without = derive(&with).unwrap();
        with.env.insert("TOKEN".to_owned(), "t0".to_owned());
        assert_eq!(derive(&with), Some(without.clone()));
        with.env
            .insert("npm_config_registry".to_owned(), "r".to_owned());
        let set = derive(&with).unwrap();
        assert_ne!(
            set.digest("a", &with.confinement),
            without.digest("a", &with.confinement),
            "settings decide what is installed"
        );
        assert_eq!(
            set.launch(&with, Path::new("/s")).env["npm_config_registry"],
            "r"
        );
        assert!(!format!("{set:?}").contains("\"r\""));
        let url = derive(&launch("uvx --from git+https://u:p@h/x y")).unwrap();
        assert_eq!(url.subject(), "y");
    }
}
