//! Any bytes as an event id, and any cursor as one that was given out.

use crate::protocol::event::{Cursor, EventKey};

pub type Input<'a> = ([u8; 32], u32, u32, u64, u8, u8, &'a str, &'a [u8]);

pub fn run(input: Input<'_>) {
    let (secret, stream, epoch, seq, at, byte, session, text) = input;
    let key = EventKey::new(&secret);
    // A text that is accepted is one of the texts of its cursor.
    let connection = u16::from_be_bytes([at, byte]);
    if let Some(cursor) = key.decode(session, text) {
        let is_text = |number: u16| key.encode_for(session, cursor, number).as_bytes() == text;
        assert!((0..=u16::MAX).any(is_text));
    }
    let seq = seq % (1 << 48);
    let cursor = Cursor { stream, epoch, seq };
    assert_eq!(
        key.encode(session, cursor),
        key.encode_for(session, cursor, 0)
    );
    let id = key.encode_for(session, cursor, connection);
    assert_eq!(id.len(), 32);
    assert!(id.bytes().all(|byte| byte.is_ascii_graphic()));
    assert_eq!(key.decode(session, id.as_bytes()), Some(cursor));
    // A change of a byte, of the length, of the session or of the key makes it worthless.
    let mut changed = id.clone().into_bytes();
    changed[usize::from(at) % id.len()] = byte;
    if changed != id.as_bytes() {
        assert_eq!(key.decode(session, &changed), None);
    }
    let mut longer = id.clone().into_bytes();
    longer.insert(usize::from(at) % (id.len() + 1), byte);
    assert_eq!(key.decode(session, &longer), None);
    assert_eq!(key.decode(session, &id.as_bytes()[..id.len() - 1]), None);
    assert_eq!(key.decode(&format!("{session}x"), id.as_bytes()), None);
    let mut other = secret;
    other[usize::from(at) % secret.len()] ^= 1;
    assert_eq!(EventKey::new(&other).decode(session, id.as_bytes()), None);
}
