//! Any bytes as a child's stdout: the same lines however the pipe cuts them, in bounded memory.

#[expect(dead_code, reason = "the targets use a part of it")]
#[path = "../../src/backend/child/lines.rs"]
mod lines;

use self::lines::{Lines, Taken};

/// Two bytes that choose the limit and the cuts, then stdout.
pub fn run(data: &[u8]) {
    let [limit, cuts, stdout @ ..] = data else {
        return;
    };
    let limit = usize::from(*limit) * 3;
    let wanted = reference(stdout, limit);
    assert_eq!(read(stdout, limit, || usize::MAX), wanted, "whole");
    assert_eq!(read(stdout, limit, || 1), wanted, "byte by byte");
    let mut state = u32::from(*cuts) | 1;
    let random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        usize::try_from(state >> 26).unwrap()
    };
    assert_eq!(read(stdout, limit, random), wanted, "cut at random");
    // What a child's end leaves in the pipe is read at once.
    let mut lines = Lines::new(limit);
    lines.push(stdout);
    assert_eq!(lines.len(), stdout.len());
    let mut taken = Vec::new();
    taken.extend(std::iter::from_fn(|| lines.take(true)));
    assert_eq!(taken, wanted, "drained");
}

/// The lines of a whole text, read naively.
fn reference(stdout: &[u8], limit: usize) -> Vec<Taken> {
    let mut all = Vec::new();
    let mut parts: Vec<&[u8]> = stdout.split(|byte| *byte == b'\n').collect();
    // Behind the last line end there is nothing.
    if parts.last().is_some_and(|last| last.is_empty()) {
        parts.pop();
    }
    for part in parts {
        if part.len() > limit {
            all.push(Taken::TooLong);
            break;
        }
        let line = part.strip_suffix(b"\r").unwrap_or(part);
        all.push(Taken::Line(line.to_vec().into()));
    }
    all.push(Taken::End);
    all
}

/// Reads as `stdio` does: into the room, and all lines before the next read.
fn read(mut rest: &[u8], limit: usize, mut cut: impl FnMut() -> usize) -> Vec<Taken> {
    let mut lines = Lines::new(limit);
    let mut all = Vec::new();
    while !rest.is_empty() {
        let room = lines.room();
        let free = room.capacity() - room.len();
        assert!(free > 0);
        assert!(room.capacity() <= 4 * (limit + PIPE), "unbounded");
        let (part, more) = rest.split_at(cut().clamp(1, free).min(rest.len()));
        room.extend_from_slice(part);
        lines.was_read(false);
        rest = more;
        while let Some(taken) = lines.take(false) {
            assert_ne!(taken, Taken::End, "an end before the end");
            all.push(taken);
        }
        lines.release();
    }
    all.extend(std::iter::from_fn(|| lines.take(true)));
    assert_eq!(lines.take(true), None, "reported once");
    all
}

/// The largest read.
const PIPE: usize = 64 << 10;
