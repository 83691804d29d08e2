//! Members of `params` that the gateway acts on: their spans, without duplicate or imitated keys.
//!
//! Policy and server must see the same values: of two values under one key, or under two spellings
//! of a key, the gateway would read one and a server might read the other.

use std::borrow::Cow;

use super::{
    json::{self, Scanner, Span},
    meta,
    refusal::Refusal,
};

/// The spans of the members of `params`, of its `_meta` and of its `ref`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Params {
    pub(super) name: Option<Span>,
    pub(super) uri: Option<Span>,
    pub(super) level: Option<Span>,
    pub(super) task: Option<Span>,
    pub(super) task_id: Option<Span>,
    pub(super) request_id: Option<Span>,
    pub(super) progress_token: Option<Span>,
    pub(super) protocol_version: Option<Span>,
    pub(super) reference: Option<Span>,
    /// The members of `ref` that were read, as bits: each message has one of these structs.
    ref_members: u8,
    /// The members of the modern era in `_meta` that were read, as bits.
    modern_members: u8,
    /// The members of the client's capabilities that were read, as bits.
    capability_members: u8,
    pub(super) cursor: Option<Span>,
    pub(super) meta: Option<Span>,
    pub(super) meta_progress_token: Option<Span>,
    pub(super) meta_related_task: Option<Span>,
    pub(super) is_modern: bool,
    pub(super) has_own_key: bool,
    /// The members of [`ONCE`] that were read, as bits.
    once: u8,
}

/// The result of a read, with another result inside. The outer error is broken JSON, the inner one
/// the refusal of a message: the whole text is read first, so that broken JSON is reported as such
/// wherever it is.
type Read<T> = Result<T, Refusal>;

/// A function that reads a member of an inner object.
type Member = fn(&mut Params, &mut Scanner<'_>, usize, Span, &[u8]) -> Read<Result<(), Refusal>>;

impl Params {
    /// Reads `params` of any kind; only an object has members.
    pub(super) fn read_params(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        text: &[u8],
    ) -> Read<(Span, Result<(), Refusal>)> {
        self.read(scanner, depth, text, Self::member)
    }

    fn read(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        text: &[u8],
        member: Member,
    ) -> Read<(Span, Result<(), Refusal>)> {
        if scanner.peek() != Some(b'{') {
            return Ok((scanner.value(depth)?, Ok(())));
        }
        let mut refusal = Ok(());
        let mut count = 0;
        let span = scanner.object::<Refusal>(depth, |scanner, key| {
            count += 1;
            refusal = refusal.and(check_count(count));
            if refusal.is_err() {
                // The rest is only checked to be JSON.
                scanner.value(depth + 1)?;
                return Ok(());
            }
            refusal = member(self, scanner, depth + 1, key, text)?;
            Ok(())
        })?;
        Ok((span, refusal))
    }

    fn member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Read<Result<(), Refusal>> {
        let slot = match &*decode_key(key, text) {
            b"name" => &mut self.name,
            b"uri" => &mut self.uri,
            b"level" => &mut self.level,
            b"task" => &mut self.task,
            b"taskId" => &mut self.task_id,
            b"requestId" => &mut self.request_id,
            b"progressToken" => &mut self.progress_token,
            b"protocolVersion" => &mut self.protocol_version,
            b"cursor" => &mut self.cursor,
            b"_meta" => {
                let (span, refusal) = self.read(scanner, depth, text, Self::meta_member)?;
                return Ok(set_once(&mut self.meta, span).and(refusal));
            }
            b"ref" => {
                let (span, refusal) = self.read(scanner, depth, text, Self::ref_member)?;
                return Ok(set_once(&mut self.reference, span).and(refusal));
            }
            other => {
                let known = ONCE.iter().position(|name| name.as_bytes() == other);
                if known == Some(CAPABILITIES) {
                    let (_, refusal) = self.read_capabilities(scanner, depth, text)?;
                    return Ok(set_bit(&mut self.once, CAPABILITIES).and(refusal));
                }
                let refusal = match known {
                    Some(at) => set_bit(&mut self.once, at),
                    None => check_imitation(other, &KNOWN),
                };
                scanner.value(depth)?;
                return Ok(refusal);
            }
        };
        let span = scanner.value(depth)?;
        Ok(set_once(slot, span))
    }

    /// Whether there is a member of [`ROUND`].
    pub(super) fn has_round(&self) -> bool {
        self.once & 0b11 != 0
    }

    /// Reads the capabilities of a client, of which the gateway acts on some.
    fn read_capabilities(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        text: &[u8],
    ) -> Read<(Span, Result<(), Refusal>)> {
        self.capability_members = 0;
        self.read(scanner, depth, text, Self::capability_member)
    }

    fn capability_member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Read<Result<(), Refusal>> {
        scanner.value(depth)?;
        let name = decode_key(key, text);
        let mut known = CLIENT_CAPABILITIES.iter();
        let Some(at) = known.position(|known| known.as_bytes() == &*name) else {
            return Ok(check_imitation(&name, &CLIENT_CAPABILITIES));
        };
        Ok(set_bit(&mut self.capability_members, at))
    }

    fn meta_member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Read<Result<(), Refusal>> {
        let name = decode_key(key, text);
        let mut modern = meta::MODERN_KEYS.iter();
        let modern = modern.position(|known| known.as_bytes() == &*name);
        if let Some(at) = modern {
            self.is_modern |= *name == *meta::VERSION.as_bytes();
            let refusal = set_bit(&mut self.modern_members, at);
            if *name == *meta::CLIENT_CAPABILITIES.as_bytes() {
                let (_, inside) = self.read_capabilities(scanner, depth, text)?;
                return Ok(refusal.and(inside));
            }
            scanner.value(depth)?;
            return Ok(refusal);
        }
        let span = scanner.value(depth)?;
        Ok(match &*name {
            b"progressToken" => set_once(&mut self.meta_progress_token, span),
            name if name == meta::RELATED_TASK.as_bytes() => {
                set_once(&mut self.meta_related_task, span)
            }
            other => {
                self.has_own_key |= other.starts_with(meta::OWN_PREFIX);
                check_imitation(other, &KNOWN_META)
            }
        })
    }

    fn ref_member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Read<Result<(), Refusal>> {
        scanner.value(depth)?;
        let name = decode_key(key, text);
        let known = ["type", "name", "uri"];
        let Some(at) = known.iter().position(|known| known.as_bytes() == &*name) else {
            return Ok(check_imitation(&name, &known));
        };
        Ok(set_bit(&mut self.ref_members, at))
    }
}

/// Notes the member with this number; refuses a duplicate.
fn set_bit(members: &mut u8, at: usize) -> Result<(), Refusal> {
    let bit = 1 << at;
    if *members & bit != 0 {
        return Err(DUPLICATE);
    }
    *members |= bit;
    Ok(())
}

/// The text of a key; empty for one with a lone surrogate.
pub(super) fn decode_key(key: Span, text: &[u8]) -> Cow<'_, [u8]> {
    let inside = &text[key.start() + 1..key.end() - 1];
    if memchr::memchr(b'\\', inside).is_none() {
        return Cow::Borrowed(inside);
    }
    match json::decoded(key.of(text)) {
        Some(text) => Cow::Owned(text.into_owned().into_bytes()),
        None => Cow::Borrowed(b""),
    }
}

/// The most members of a message, of its `params`, and of the objects in them whose keys are read.
/// Known ones are few; each key is compared with them.
const MAX_MEMBERS: usize = 10_000;

/// Refuses a member behind the last one that is accepted.
pub(super) fn check_count(count: usize) -> Result<(), Refusal> {
    if count > MAX_MEMBERS {
        return Err(Refusal::Invalid("more than 10000 members in one object"));
    }
    Ok(())
}

/// Sets the span of a member; refuses a duplicate.
pub(super) fn set_once(slot: &mut Option<Span>, span: Span) -> Result<(), Refusal> {
    if slot.replace(span).is_some() {
        return Err(DUPLICATE);
    }
    Ok(())
}

const DUPLICATE: Refusal = Refusal::Invalid("a duplicate key");

/// The members of `params` that belong to one round of a request (2026-07-28 mrtr): the answers of the client,
/// and the state of the server.
pub(super) const ROUND: [&str; 2] = ["inputResponses", "requestState"];

/// Members of `params` that are searched for where they matter, and are there once at most. Header fields mirror
/// arguments.
const ONCE: [&str; 4] = [ROUND[0], ROUND[1], "arguments", "capabilities"];
/// The place of the client's capabilities in [`ONCE`].
const CAPABILITIES: usize = 3;

/// The capabilities of a client that the gateway acts on.
const CLIENT_CAPABILITIES: [&str; 5] = ["elicitation", "sampling", "roots", "tasks", "extensions"];

/// The members of `params` that are checked for imitations, in lower case.
const KNOWN: [&str; 15] = [
    "name",
    "uri",
    "ref",
    "cursor",
    "_meta",
    "requestid",
    "progresstoken",
    "taskid",
    "capabilities",
    "protocolversion",
    "arguments",
    "task",
    "level",
    "inputresponses",
    "requeststate",
];

/// The members of `_meta` that are, in lower case.
const KNOWN_META: [&str; 5] = [
    "progresstoken",
    "io.modelcontextprotocol/protocolversion",
    "io.modelcontextprotocol/clientinfo",
    "io.modelcontextprotocol/clientcapabilities",
    "io.modelcontextprotocol/loglevel",
];

/// Refuses a key that a lenient parser takes for one of `known` (in lower case): case variants and
/// Unicode folds (`Name`, `paramſ`). The gateway and the server must see the same message, and a
/// server only ids and tokens of the gateway.
pub(super) fn check_imitation(key: &[u8], known: &[&str]) -> Result<(), Refusal> {
    // A letter that folds to ASCII has at most 3 bytes.
    let longest = known.iter().map(|name| name.len()).max();
    if key.len() > 3 * longest.unwrap_or(0) {
        return Ok(());
    }
    // Most keys are ASCII: a flood of them must not look up each letter in the table of Unicode.
    let is_imitation = if key.is_ascii() {
        known
            .iter()
            .any(|name| name.as_bytes().eq_ignore_ascii_case(key))
    } else {
        known.contains(&&*fold(&String::from_utf8_lossy(key)))
    };
    if is_imitation {
        return Err(Refusal::Invalid("a key imitates another one"));
    }
    Ok(())
}

/// A key as lenient parsers compare it: without the case of its letters, also of those that only fold
/// to one another (`ſ` and `s`).
pub(super) fn fold(key: &str) -> Cow<'_, str> {
    if key.is_ascii() {
        let has_capitals = key.bytes().any(|byte| byte.is_ascii_uppercase());
        return if has_capitals {
            Cow::Owned(key.to_ascii_lowercase())
        } else {
            Cow::Borrowed(key)
        };
    }
    let upper = key.chars().flat_map(char::to_uppercase);
    Cow::Owned(upper.flat_map(char::to_lowercase).collect())
}

/// Severity of a log message (2025-11-25 logging, "Log Levels"), in ascending order.
pub(crate) type LogLevel = u8;

/// The level with this name.
pub(crate) fn log_level(name: &str) -> Option<LogLevel> {
    let at = LOG_LEVELS.iter().position(|level| *level == name)?;
    LogLevel::try_from(at).ok()
}

/// The names of the levels, each at its severity.
pub(crate) const LOG_LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

/// Whether an update of `uri` belongs to a subscription to `held` (both canonical): "this might be a
/// sub-resource of the one that the client actually subscribed to" (2025-11-25 schema).
pub(crate) fn is_subscribed(held: &[u8], uri: &[u8]) -> bool {
    let rest = held
        .strip_suffix(b"\"")
        .and_then(|held| uri.strip_prefix(held));
    held == uri || rest.is_some_and(|rest| held.ends_with(b"/\"") || rest.starts_with(b"/"))
}
