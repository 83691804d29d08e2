//! `lockgate import`: conversion of a desktop client's `mcp.json` into a manifest.
//!
//! Every dropped or changed part is reported on stderr.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::{
    base::terminal::{escaped, steers},
    config::{
        Format, Mistake, Node, Value, Wrong,
        reader::{name, syntax_mistakes},
    },
    manifest::interpolation::escape,
};

/// `lockgate import`
#[derive(Args)]
#[expect(clippy::doc_markdown, reason = "shown to people as it stands")]
pub(crate) struct ImportArgs {
    /// mcp.json, claude_desktop_config.json or VS Code's mcp.json, also with comments; - for stdin
    file: PathBuf,
    /// The tenant of the servers
    #[arg(long, value_name = "T")]
    tenant: String,
}

/// Prints the manifest on stdout and the notes on stderr.
pub(crate) fn import(args: &ImportArgs) -> ExitCode {
    convert_file(
        &args.file,
        &args.tenant,
        &mut io::stdout(),
        &mut io::stderr(),
    )
}

/// Writes the manifest for `tenant` to `out`, and a note on each changed or dropped part to
/// `notes`.
fn convert_file(file: &Path, tenant: &str, out: &mut dyn Write, notes: &mut dyn Write) -> ExitCode {
    let (manifest, lines, code) = match read(file, tenant) {
        Ok((manifest, lines)) => (manifest, lines, 0),
        Err(mistakes) => (
            String::new(),
            mistakes.iter().map(ToString::to_string).collect(),
            USAGE,
        ),
    };
    let noted = lines
        .iter()
        .try_for_each(|line| writeln!(notes, "{}", escaped(line)));
    let written = out
        .write_all(manifest.as_bytes())
        .and_then(|()| out.flush());
    ExitCode::from(if noted.and(written).is_ok() { code } else { 1 })
}

fn read(file: &Path, tenant: &str) -> Result<(String, Vec<String>), Vec<Mistake>> {
    if let Err(wrong) = name(tenant) {
        return Err(vec![wrong.at("--tenant", "tenant")]);
    }
    let is_stdin = file == Path::new("-");
    let (place, text) = if is_stdin {
        ("stdin".to_owned(), io::read_to_string(io::stdin().lock()))
    } else {
        (file.display().to_string(), fs::read_to_string(file))
    };
    let text = text.map_err(|error| {
        let wrong = Wrong::new(format!("cannot be read: {error}"), "name a readable file");
        vec![wrong.at(&place, "file")]
    })?;
    convert(&place, &text, tenant)
}

/// The JSON in a text that editors also read with a byte order mark, comments and trailing commas.
/// These become spaces, so that lines keep their numbers.
fn without_comments(text: &str) -> String {
    let mut out: Vec<u8> = text.trim_start_matches('\u{feff}').into();
    let (mut at, mut comma) = (0, None);
    while at < out.len() {
        let begin = at;
        match (out[at], out.get(at + 1)) {
            (b'"', _) => {
                at = end_of_string(&out, at);
                comma = None;
                continue;
            }
            (b'/', Some(b'/')) => {
                at = memchr::memchr(b'\n', &out[at..]).map_or(out.len(), |end| begin + end);
            }
            (b'/', Some(b'*')) => {
                let end = memchr::memmem::find(&out[at + 2..], b"*/");
                at = end.map_or(out.len(), |end| begin + 2 + end + 2);
            }
            (letter, _) => {
                match letter {
                    b',' => comma = Some(at),
                    b'}' | b']' => {
                        if let Some(comma) = comma.take() {
                            out[comma] = b' ';
                        }
                    }
                    letter if !letter.is_ascii_whitespace() => comma = None,
                    _ => {}
                }
                at += 1;
                continue;
            }
        }
        let comment = out[begin..at].iter_mut();
        comment
            .filter(|byte| **byte != b'\n')
            .for_each(|byte| *byte = b' ');
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

/// Where the string ends that begins at `at`.
fn end_of_string(text: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < text.len() && text[end] != b'"' {
        end += if text[end] == b'\\' { 2 } else { 1 };
    }
    end + 1
}

/// Converts `text` of `file` into a manifest and notes.
fn convert(file: &str, text: &str, tenant: &str) -> Result<(String, Vec<String>), Vec<Mistake>> {
    let (tree, errors) = Format::Json.parse(file, &without_comments(text));
    let Some(tree) = tree else {
        return Err(syntax_mistakes(file, errors));
    };
    let mut import = Import::default();
    let lists = LISTS.iter();
    let lists = lists.filter_map(|list| Some((*list, member(&tree, list)?)));
    let lists: Vec<_> = lists.collect();
    if lists.is_empty() {
        let wrong = Wrong::new("has no mcpServers and no servers", "name an mcp.json");
        return Err(vec![wrong.at(&tree.place, LISTS[0])]);
    }
    let mistakes = lists.iter();
    let mistakes = mistakes.flat_map(|(key, list)| mistakes_in(key, list));
    let mistakes: Vec<Mistake> = mistakes.collect();
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    for (key, node) in entries(&tree) {
        if key != "inputs" && !LISTS.contains(&key.as_str()) {
            import.note(node, &format!("{key} is not known: dropped"));
        }
    }
    let servers = lists.iter().flat_map(|(_, list)| entries(list));
    let kept = servers
        .clone()
        .filter_map(|(original, _)| name(original).ok());
    import.kept = kept.collect();

    let mut body = String::new();
    for (name, node) in servers {
        body.push_str(&import.server(name, node));
    }
    if !body.is_empty() {
        import.notes.push(format!(
            "the tenant {tenant} has auth: {{mode: none}}: every client that reaches the gateway may use \
             its servers; write mode: builtin for people who log in, or mode: keys for API keys"
        ));
    }
    let head = format!("version: 1\ntenants:\n  {tenant:?}:\n    auth: {{mode: none}}\n");
    let servers = if body.is_empty() {
        "    servers: {}\n"
    } else {
        "    servers:\n"
    };
    Ok((format!("{head}{servers}{body}"), import.notes))
}

/// Servers with a name that stands twice, and commands that are no text: another program than the one meant would start.
fn mistakes_in(key: &str, list: &Node) -> Vec<Mistake> {
    let (mut mistakes, mut known) = (Vec::new(), BTreeMap::new());
    for (name, node) in entries(list) {
        let key = format!("{key}.{name}");
        if let Some(first) = known.insert(name, &node.place) {
            let wrong = Wrong::new(format!("also at {first}"), "keep one of the two");
            mistakes.push(wrong.at(&node.place, &key));
        }
        let command = member(node, "command");
        let is_other = |command: &&Node| !matches!(command.value, Value::Text(_) | Value::Nothing);
        if let Some(command) = command.filter(is_other) {
            let wrong = command.unexpected("a text");
            mistakes.push(wrong.at(&command.place, &format!("{key}.command")));
        }
    }
    mistakes
}

/// The notes of a conversion, and the names that are taken.
#[derive(Default)]
struct Import {
    notes: Vec<String>,
    names: BTreeSet<String>,
    /// Valid original names, reserved for their servers.
    kept: BTreeSet<String>,
}

impl Import {
    fn note(&mut self, node: &Node, what: &str) {
        self.notes.push(format!("{}: {what}", node.place));
    }

    /// Lines of the manifest for one server; empty if it is dropped.
    fn server(&mut self, original: &str, node: &Node) -> String {
        if member(node, "url").is_some() || member(node, "serverUrl").is_some() {
            let what = "is a remote server, which a gateway serves with remote upstreams only";
            self.note(node, &format!("{original} {what}: left out"));
            return String::new();
        }
        let disabled = member(node, "disabled").map(|node| &node.value);
        if disabled == Some(&Value::Flag(true)) {
            self.note(node, &format!("{original} is disabled: left out"));
            return String::new();
        }
        let Some(command) = member(node, "command").and_then(plain) else {
            self.note(node, &format!("{original} has no command: dropped"));
            return String::new();
        };
        let name = self.server_name(original, node);
        let mut lines = format!("      {}:\n", quoted(&name));
        let command = self.variables(&command, node, original);
        writeln!(lines, "        command: {}", quoted(&command)).expect("a String takes it");
        for (key, value) in entries(node) {
            match key.as_str() {
                "command" => {}
                "type" if plain(value).as_deref() == Some("stdio") => {}
                "disabled" if value.value == Value::Flag(false) => {}
                "args" => lines.push_str(&self.args(value, original)),
                "env" => lines.push_str(&self.env(value, original)),
                "cwd" => lines.push_str(&self.cwd(value, original)),
                _ => self.note(value, &format!("{key} of {original} is not known: dropped")),
            }
        }
        lines
    }

    fn args(&mut self, node: &Node, server: &str) -> String {
        let Value::List(items) = &node.value else {
            self.note(node, &format!("args of {server} is no list: dropped"));
            return String::new();
        };
        let mut args = Vec::with_capacity(items.len());
        for item in items {
            match plain(item) {
                Some(arg) => args.push(quoted(&self.variables(&arg, item, server))),
                None => self.note(
                    item,
                    &format!("an argument of {server} is no text: dropped"),
                ),
            }
        }
        format!("        args: [{}]\n", args.join(", "))
    }

    fn env(&mut self, node: &Node, server: &str) -> String {
        let mut lines = String::new();
        for (key, value) in entries(node) {
            if key.is_empty() || key.contains(['=', '\0']) {
                self.note(
                    value,
                    &format!("env of {server}: {key:?} is no name: dropped"),
                );
            } else if let Some(text) = plain(value) {
                let text = self.variables(&text, value, server);
                writeln!(lines, "          {}: {}", quoted(key), quoted(&text))
                    .expect("a String takes it");
            } else {
                self.note(
                    value,
                    &format!("env of {server}: {key} is no text: dropped"),
                );
            }
        }
        if lines.is_empty() {
            lines
        } else {
            format!("        env:\n{lines}")
        }
    }

    fn cwd(&mut self, node: &Node, server: &str) -> String {
        let text = plain(node).unwrap_or_default();
        let text = self.variables(&text, node, server);
        if text.starts_with('/') || text.starts_with("${env:") {
            return format!("        cwd: {}\n", quoted(&text));
        }
        self.note(node, &format!("cwd of {server} is not absolute: dropped"));
        String::new()
    }

    /// Returns a unique name that is valid in a URL.
    fn server_name(&mut self, original: &str, node: &Node) -> String {
        let letter = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        };
        let text: String = original.chars().map(letter).collect();
        let base: String = text.trim_matches('-').chars().take(59).collect();
        let base = if base.is_empty() {
            "server".to_owned()
        } else {
            base
        };
        let base = if name(original).is_ok() {
            original.to_owned()
        } else {
            base
        };
        let mut name = base.clone();
        let mut number = 2;
        while (name != original && self.kept.contains(&name)) || !self.names.insert(name.clone()) {
            let short: String = base.chars().take(59).collect();
            name = format!("{short}-{number}");
            number += 1;
        }
        if name != original {
            self.note(node, &format!("{original:?} is named {name}"));
        }
        name
    }

    /// Converts variables of other clients' syntaxes to `${env:NAME}`, and escapes every other `$`.
    fn variables(&mut self, text: &str, node: &Node, server: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            out.push_str(&escape(&rest[..at]));
            let Some((inner, behind)) = rest[at + 2..].split_once('}') else {
                rest = &rest[at..];
                break;
            };
            match self.variable(inner, node, server) {
                Some(variable) => write!(out, "${{env:{variable}}}").expect("a String takes it"),
                None => write!(out, "$${{{}}}", escape(inner)).expect("a String takes it"),
            }
            rest = behind;
        }
        out.push_str(&escape(rest));
        out
    }

    fn variable(&mut self, inner: &str, node: &Node, server: &str) -> Option<String> {
        if let Some(input) = inner.strip_prefix("input:") {
            let variable = variable_name(input);
            self.note(
                node,
                &format!("{server} asks for {input}: set {variable} in its place"),
            );
            return Some(variable);
        }
        let named = inner.strip_prefix("env:").unwrap_or(inner);
        let (variable, default) = match named.split_once(":-") {
            Some((variable, default)) => (variable, Some(default)),
            None => (named, None),
        };
        if !is_variable(variable) || VSCODE.contains(&variable) {
            self.note(
                node,
                &format!("{server}: ${{{inner}}} is not known: kept as plain text"),
            );
            return None;
        }
        if default.is_some() {
            let what = format!("{server}: the default of {variable} is dropped, set the variable");
            self.note(node, &what);
        }
        Some(variable.to_owned())
    }
}

fn entries(node: &Node) -> &[(String, Node)] {
    match &node.value {
        Value::Map(entries) => entries,
        _ => &[],
    }
}

fn member<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    entries(node)
        .iter()
        .find(|(name, _)| name == key)
        .map(|(_, member)| member)
}

/// A text, or a scalar that clients convert into text.
fn plain(node: &Node) -> Option<String> {
    match &node.value {
        Value::Text(text) => Some(text.clone()),
        Value::Whole(whole) => Some(whole.to_string()),
        Value::Flag(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn is_variable(text: &str) -> bool {
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(starts) && text.chars().all(|c| starts(c) || c.is_ascii_digit())
}

/// The variable name for the id of an input: `api-key` becomes `API_KEY`.
fn variable_name(id: &str) -> String {
    let letter = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    let name: String = id.chars().map(letter).collect();
    if is_variable(&name) {
        name
    } else {
        format!("INPUT_{name}")
    }
}

/// This text as a YAML scalar in double quotes.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            // Printable characters of YAML 1.2 (5.1), except what steers a terminal, as line breaks do.
            ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fdcf}' if !steers(c) => {
                out.push(c);
            }
            _ => write!(out, "\\U{:08X}", u32::from(c)).expect("a String takes it"),
        }
    }
    out.push('"');
    out
}

/// Keys with the servers of a client; the second is VS Code's.
const LISTS: [&str; 2] = ["mcpServers", "servers"];
/// Names with another meaning than a variable in VS Code.
const VSCODE: [&str; 4] = [
    "workspaceFolder",
    "workspaceFolderBasename",
    "userHome",
    "pathSeparator",
];
/// The exit status for mistakes in usage, configuration or manifest.
const USAGE: u8 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::import::*;
    use crate::manifest::reader::parse;

    fn env() -> BTreeMap<String, String> {
        ["TOKEN", "API_KEY", "HOME"]
            .map(|name| (name.to_owned(), format!("<{name}>")))
            .into()
    }

    /// Files of others are shown by the terminal on which they are converted.
    #[test]
    fn a_manifest_steers_no_terminal_and_has_every_character() {
        let arg = "\u{646}\u{200c}\u{202e}\u{2028}\u{ad}\u{feff}\u{9b}";
        let server = serde_json::json!({"command": "cat", "args": [arg]});
        let text = serde_json::json!({"mcpServers": {"x": server}}).to_string();
        let (manifest, _) = convert("F", &text, "a").unwrap();
        let mut letters = manifest.chars().filter(|letter| *letter != '\n');
        assert!(!letters.any(steers), "{manifest}");
        let catalog = parse("M", &manifest, Format::Yaml, &env()).unwrap().catalog;
        assert_eq!(catalog.find("a", "x").unwrap().1.launch.args, [arg]);
    }

    #[test]
    fn imports_what_clients_write() {
        let text = r#"{
  "inputs": [{"id": "api-key", "type": "promptString"}],
  "mcpServers": {
    "My Files": {
      "command": "npx", "args": ["-y", "pkg@1", "${TOKEN}", "a$b", "${workspaceFolder}"],
      "env": {"A": "${env:TOKEN}", "B": "${input:api-key}", "C": "${HOME:-/x}", "D": 5},
      "disabled": false, "type": "stdio", // A comment, with "quotes" and a URL: https://x
      /* and
         another */ "timeout": 5,
    },
    "my-files": {"command": "cat", "cwd": "/tmp"},
    "off": {"command": "cat", "disabled": true},
    "remote": {"url": "https://mcp.example/mcp"},
  },
}"#;
        let text = &format!("\u{feff}{text}");
        let (manifest, notes) = convert("F", text, "acme").unwrap();
        insta::assert_snapshot!(manifest, @r###"
        version: 1
        tenants:
          "acme":
            auth: {mode: none}
            servers:
              "my-files-2":
                command: "npx"
                args: ["-y", "pkg@1", "${env:TOKEN}", "a$$b", "$${workspaceFolder}"]
                env:
                  "A": "${env:TOKEN}"
                  "B": "${env:API_KEY}"
                  "C": "${env:HOME}"
                  "D": "5"
              "my-files":
                command: "cat"
                cwd: "/tmp"
        "###);
        insta::assert_snapshot!(notes.join("\n"), @r###"
        F:4: "My Files" is named my-files-2
        F:5: My Files: ${workspaceFolder} is not known: kept as plain text
        F:6: My Files asks for api-key: set API_KEY in its place
        F:6: My Files: the default of HOME is dropped, set the variable
        F:9: timeout of My Files is not known: dropped
        F:12: off is disabled: left out
        F:13: remote is a remote server, which a gateway serves with remote upstreams only: left out
        the tenant acme has auth: {mode: none}: every client that reaches the gateway may use its servers; write mode: builtin for people who log in, or mode: keys for API keys
        "###);
        let catalog = parse("M", &manifest, Format::Yaml, &env()).unwrap().catalog;
        let (_, server) = catalog.find("acme", "my-files-2").unwrap();
        assert_eq!(
            server.launch.args,
            ["-y", "pkg@1", "<TOKEN>", "a$b", "${workspaceFolder}"]
        );
        assert_eq!(server.launch.env["B"], "<API_KEY>");
        assert_eq!(server.launch.env["D"], "5");
        assert!(catalog.find("acme", "my-files").is_some());
    }

    #[test]
    fn takes_the_list_of_vs_code() {
        let text =
            r#"{"servers": {"x": {"type": "http", "url": "https://x"}, "y": {"command": "cat"}}}"#;
        let (manifest, notes) = convert("F", text, "a").unwrap();
        assert_eq!(notes.len(), 2);
        assert!(
            parse("M", &manifest, Format::Yaml, &env())
                .unwrap()
                .catalog
                .find("a", "y")
                .is_some()
        );
        let (empty, _) = convert("F", r#"{"servers": {}}"#, "a").unwrap();
        assert!(parse("M", &empty, Format::Yaml, &env()).is_ok());
    }

    #[test]
    fn exits_with_2_for_what_is_no_mcp_json() {
        assert!(convert("F", "{}", "a").is_err());
        assert!(convert("F", "nonsense", "a").is_err());
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let code = convert_file(Path::new("/nonexistent"), "a", &mut out, &mut notes);
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(2)));
        assert!(out.is_empty() && !notes.is_empty());
        assert!(read(Path::new("/nonexistent"), "A").unwrap_err()[0].place == "--tenant");
    }

    #[test]
    fn a_name_that_stands_twice_and_a_command_that_is_no_text_are_mistakes() {
        let text = "{\"mcpServers\": {\"x\": {\"command\": \"a\"},\n\"y\": {\"command\": 5},\n\"x\": {\"command\": \"b\"}}}";
        let mistakes = convert("F", text, "a").unwrap_err();
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"), @r###"
        F:2: mcpServers.y.command: a number where a text is expected; put it in quotes
        F:3: mcpServers.x: also at F:1; keep one of the two
        "###);
    }

    #[test]
    fn comments_and_trailing_commas_become_spaces() {
        for (text, wanted) in [
            ("{\"a\": [1, 2,],}", r#"{"a": [1, 2 ] }"#),
            ("[1, // x ]\n]", "[1        \n]"),
            ("[1 /* , \n */ , /**/ ]", "[1      \n           ]"),
            (r#"["a//b", "\",]\\",]"#, r#"["a//b", "\",]\\" ]"#),
            ("[\"//", "[\"//"),
            ("[1 /* ", "[1    "),
            ("[,1]", "[,1]"),
        ] {
            assert_eq!(without_comments(text), wanted);
        }
    }

    proptest! {
        #[test]
        fn plain_json_is_not_changed(text in any::<String>(), other in any::<String>()) {
            let json = serde_json::json!({ text.as_str(): [other, 1, null, {}] }).to_string();
            prop_assert_eq!(without_comments(&json), json);
            without_comments(&text);
        }

        #[test]
        fn what_it_writes_loads_again(
            names in prop::collection::btree_set("\\PC{0,70}", 0..3),
            arg in any::<String>().prop_map(|text| text.replace('\0', "")),
            key in "[^=\0]{1,8}",
        ) {
            let server = serde_json::json!({"command": "cat", "args": [arg], "env": {key.as_str(): arg}});
            let servers: BTreeMap<_, _> = names.iter().map(|name| (name, &server)).collect();
            let text = serde_json::json!({ "mcpServers": servers }).to_string();
            let (manifest, _) = convert("F", &text, "a").unwrap();
            let loaded = parse("M", &manifest, Format::Yaml, &env());
            prop_assert!(loaded.is_ok() || arg.contains("${"), "{manifest}\n{loaded:?}");
            let Ok(loaded) = loaded else { return Ok(()) };
            let tenant = &loaded.catalog.tenants["a"];
            prop_assert_eq!(tenant.servers.len(), names.len());
            for server in tenant.servers.values() {
                prop_assert_eq!(&server.launch.args, std::slice::from_ref(&arg));
                prop_assert_eq!(&server.launch.env[&key], &arg);
            }
        }
    }
}
