//! The Lua scripts that run in Redis.

use std::{sync::LazyLock, time::Duration};

use redis::{Cmd, Script};
use strum::IntoStaticStr;

/// The scripts; the head of each file describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Lua {
    Beat,
    Insert,
    Find,
    Claim,
    Change,
    Write,
    Read,
    Draw,
    Seats,
    Once,
}

impl Lua {
    pub(super) const ALL: [Self; 10] = [
        Self::Beat,
        Self::Insert,
        Self::Find,
        Self::Claim,
        Self::Change,
        Self::Write,
        Self::Read,
        Self::Draw,
        Self::Seats,
        Self::Once,
    ];

    const fn text(self) -> &'static str {
        match self {
            Self::Beat => include_str!("beat.lua"),
            Self::Insert => include_str!("insert.lua"),
            Self::Find => include_str!("find.lua"),
            Self::Claim => include_str!("claim.lua"),
            Self::Change => include_str!("change.lua"),
            Self::Write => include_str!("write.lua"),
            Self::Read => include_str!("read.lua"),
            Self::Draw => include_str!("draw.lua"),
            Self::Seats => include_str!("seats.lua"),
            Self::Once => include_str!("once.lua"),
        }
    }

    pub(super) fn script(self) -> &'static Script {
        static SCRIPTS: LazyLock<[Script; 10]> =
            LazyLock::new(|| Lua::ALL.map(|lua| Script::new(lua.text())));
        &SCRIPTS[self as usize]
    }

    /// The command that loads the script into the server.
    pub(crate) fn load(self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.text());
        command
    }
}

/// Milliseconds, as scripts take them.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
