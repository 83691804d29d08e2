//! Slots: the secrets that a server needs, and that its manifest does not contain.
//!
//! Not here: their values (`database/objects`), and their way to a child (`backend/delivery`).

use std::collections::BTreeMap;

/// The slots of a server, by the variables that its children get them by.
pub(crate) type Slots = BTreeMap<String, Slot>;

/// A secret that a server needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The one whose secret it is.
    pub(crate) holder: Holder,
    /// The form in which a child gets it.
    pub(crate) form: SlotForm,
    /// The origin of the access token that it is; none if a value is set.
    pub(crate) token: Option<TokenFrom>,
    /// The name that people see.
    pub(crate) title: Option<String>,
    /// The page that says how to get a value.
    pub(crate) help: Option<String>,
}

/// The origin of an access token of a person.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TokenFrom {
    /// The person's connection to this upstream.
    Upstream(String),
    /// The person's identity provider, which gives one for this audience (RFC 8693).
    Exchange(String),
}

impl Slot {
    /// The upstream whose access token it is.
    pub(crate) fn upstream(&self) -> Option<&String> {
        match &self.token {
            Some(TokenFrom::Upstream(upstream)) => Some(upstream),
            _ => None,
        }
    }
}

/// The one whose secret fills a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Each person, or other principal, has one of their own.
    Principal,
    /// The tenant has one for all.
    Tenant,
}

/// The form in which a child gets a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotForm {
    /// The variable holds the value.
    Variable,
    /// The variable holds the path of a file with the value.
    File,
}

/// Reports whether a value may be given by this variable: a name as every shell has it, which no loader or
/// interpreter acts upon. The values come from people who must not choose the program of a child.
pub(crate) fn is_slot_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins = name.bytes().next();
    let is_name = begins.is_some_and(|first| is_word(first) && !first.is_ascii_digit())
        && name.bytes().all(is_word)
        && name.len() <= NAME_MAX;
    let name = name.to_ascii_uppercase();
    let is_reserved =
        RESERVED.contains(&name.as_str()) || FAMILIES.iter().any(|family| name.starts_with(family));
    is_name && !is_reserved
}

/// Reports whether a text can be a secret: no variable can have a NUL.
pub(crate) fn is_secret(text: &str) -> bool {
    !text.is_empty() && text.len() <= SECRET_MAX && !text.contains('\0')
}

/// The most bytes of a slot's name.
const NAME_MAX: usize = 64;

/// The most slots of one server.
pub(crate) const SLOTS_MAX: usize = 16;

/// The most bytes of a secret: with all slots filled, a child starts within the kernel's bound of one
/// variable (128 KiB) and of all of them together (a quarter of the stack, 2 MiB).
pub(crate) const SECRET_MAX: usize = 16 << 10;

/// Variables that the gateway sets, or that choose what a program loads or runs.
const RESERVED: [&str; 32] = [
    "BASH_ENV",
    "CLASSPATH",
    "ENV",
    "GCONV_PATH",
    "GIT_ASKPASS",
    "GIT_EDITOR",
    "GIT_EXEC_PATH",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_PROXY_COMMAND",
    "HOME",
    "HOSTALIASES",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "LANG",
    "LOCPATH",
    "LUA_INIT",
    "NODE_EXTRA_CA_CERTS",
    "NODE_OPTIONS",
    "NODE_PATH",
    "OPENSSL_CONF",
    "OPENSSL_MODULES",
    "PATH",
    "RES_OPTIONS",
    "RUBYLIB",
    "RUBYOPT",
    "SHELLOPTS",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "_JAVA_OPTIONS",
];

/// Beginnings of such names.
const FAMILIES: [&str; 13] = [
    "BASH_FUNC_",
    "DOTNET_",
    "DYLD_",
    "GIT_CONFIG",
    "GIT_SSH",
    "LC_",
    "LD_",
    "LOCKGATE_",
    "LUA_INIT_",
    "MALLOC_",
    "NPM_CONFIG_",
    "PERL5",
    "PYTHON",
];

#[cfg(test)]
mod tests {
    use super::super::slots::*;

    #[test]
    fn a_slot_cannot_choose_what_a_child_runs() {
        for name in [
            "GITHUB_TOKEN",
            "token",
            "_X1",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "PATHS",
        ] {
            assert!(is_slot_name(name), "{name}");
        }
        let long = "X".repeat(NAME_MAX + 1);
        for name in [
            "",
            "1X",
            "A-B",
            "A=B",
            "A/B",
            "..",
            "../x",
            "A.B",
            "A B",
            "A\0",
            "Ä",
            &long,
            "PATH",
            "path",
            "HOME",
            "TMPDIR",
            "LD_PRELOAD",
            "ld_preload",
            "LD_LIBRARY_PATH",
            "NODE_OPTIONS",
            "PYTHONPATH",
            "PERL5OPT",
            "RUBYOPT",
            "BASH_ENV",
            "GIT_SSH_COMMAND",
            "LOCKGATE_PREPARED",
            "npm_config_registry",
        ] {
            assert!(!is_slot_name(name), "{name}");
        }
    }
}
