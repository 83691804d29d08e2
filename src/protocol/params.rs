//! The members of `params` that the gateway acts on: where they stand, each once, and under no
//! name that another parser takes for theirs.
//!
//! What policy reads is read here, so what it judges is what the server gets: of two values
//! under one key, or under two spellings of one key, the gateway would read the one and a server
//! might read the other.

use std::borrow::Cow;

use super::{
    json::{self, Scanner, Span},
    meta,
    refusal::Refusal,
};

/// Members of `params` (and of its `_meta` and `ref`) that the gateway acts on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acted {
    pub(super) name: Option<Span>,
    pub(super) uri: Option<Span>,
    pub(super) level: Option<Span>,
    pub(super) task: Option<Span>,
    pub(super) task_id: Option<Span>,
    pub(super) request_id: Option<Span>,
    pub(super) progress_token: Option<Span>,
    pub(super) protocol_version: Option<Span>,
    pub(super) reference: Option<Span>,
    /// Which members of `ref` were there, by bits: messages are many, and small.
    of_ref: u8,
    pub(super) cursor: Option<Span>,
    /// Whether `_meta` was there.
    has_meta: bool,
    pub(super) meta_progress_token: Option<Span>,
    pub(super) meta_related_task: Option<Span>,
    pub(super) meta_modern: bool,
}

/// The outer failure is of the JSON, the inner one of the message: broken JSON is reported as
/// such wherever it is broken, so the text is read to its end first.
type Read<T> = Result<T, Refusal>;

/// How a member of an inner object is read.
type Member = fn(&mut Acted, &mut Scanner<'_>, usize, Span, &[u8]) -> Read<Result<(), Refusal>>;

impl Acted {
    /// Reads `params` of whatever kind; the members are looked at only in an object.
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
        let span = scanner.object::<Refusal>(depth, |scanner, key| {
            refusal = refusal.and(member(self, scanner, depth + 1, key, text)?);
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
        let slot = match &*name(key, text) {
            "name" => &mut self.name,
            "uri" => &mut self.uri,
            "level" => &mut self.level,
            "task" => &mut self.task,
            "taskId" => &mut self.task_id,
            "requestId" => &mut self.request_id,
            "progressToken" => &mut self.progress_token,
            "protocolVersion" => &mut self.protocol_version,
            "cursor" => &mut self.cursor,
            "_meta" => {
                let (_, refusal) = self.read(scanner, depth, text, Self::meta_member)?;
                if std::mem::replace(&mut self.has_meta, true) {
                    return Ok(Err(TWICE));
                }
                return Ok(refusal);
            }
            "ref" => {
                let (span, refusal) = self.read(scanner, depth, text, Self::ref_member)?;
                return Ok(set(&mut self.reference, span).and(refusal));
            }
            other => {
                let known = "name uri ref cursor _meta requestid progresstoken taskid";
                let refusal = imitates(other, known);
                scanner.value(depth)?;
                return Ok(refusal);
            }
        };
        let span = scanner.value(depth)?;
        Ok(set(slot, span))
    }

    fn meta_member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Read<Result<(), Refusal>> {
        let name = name(key, text);
        let span = scanner.value(depth)?;
        Ok(match &*name {
            "progressToken" => set(&mut self.meta_progress_token, span),
            meta::RELATED_TASK => set(&mut self.meta_related_task, span),
            other => {
                self.meta_modern |= meta::MODERN_KEYS.contains(&other);
                imitates(other, "progresstoken")
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
        let name = name(key, text);
        let known = ["type", "name", "uri"];
        let Some(at) = known.iter().position(|known| *known == name) else {
            return Ok(imitates(&name, "type name uri"));
        };
        let bit = 1 << at;
        if self.of_ref & bit != 0 {
            return Ok(Err(TWICE));
        }
        self.of_ref |= bit;
        Ok(Ok(()))
    }
}

/// A key, decoded.
pub(super) fn name(key: Span, text: &[u8]) -> Cow<'_, str> {
    json::decoded(key.of(text)).unwrap_or_default()
}

/// Notes where a member stands; one that stands there already is refused.
pub(super) fn set(slot: &mut Option<Span>, span: Span) -> Result<(), Refusal> {
    if slot.replace(span).is_some() {
        return Err(TWICE);
    }
    Ok(())
}

const TWICE: Refusal = Refusal::Invalid("a key stands twice");

/// Refuses keys that a lenient parser takes for one of `known`, which are in lower case: case
/// variants and Unicode folds (`Name`, `paramſ`). The gateway and the server must see the same
/// message, and a server only ids and tokens that are the gateway's.
pub(super) fn imitates(key: &str, known: &str) -> Result<(), Refusal> {
    // The longest has 13 letters, and no letter that folds to ASCII takes more than 3 bytes.
    if key.len() > 3 * 13 {
        return Ok(());
    }
    // Most keys are ASCII, and a flood of them must not look up each letter in a table.
    let folded: String = if key.is_ascii() {
        key.to_ascii_lowercase()
    } else {
        key.chars()
            .flat_map(char::to_uppercase)
            .flat_map(char::to_lowercase)
            .collect()
    };
    if known.split(' ').any(|name| name == folded) {
        return Err(Refusal::Invalid("a key imitates another one"));
    }
    Ok(())
}
