//! Tests of `backend::dialect::legacy`.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::{id_blocks::IdBlocks, legacy::*};

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn call(dialect: &mut Legacy, id: &str, params: &str) -> (CallId, String) {
    let mut out = BytesMut::new();
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
    let call = dialect.request(&message(&text), None, &mut out);
    (call, text_of(&out))
}

fn text_of(out: &[u8]) -> String {
    String::from_utf8(out.to_vec()).unwrap()
}

fn note(dialect: &mut Legacy, text: &str) -> (Forwarded, String) {
    let mut out = BytesMut::new();
    let forwarded = dialect.notification(&message(text), &mut out);
    (forwarded, text_of(&out))
}

fn line(dialect: &mut Legacy, text: &str) -> ServerMessage {
    dialect.line(&message(text), &mut BytesMut::new())
}

fn result(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

fn progress(token: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1}}}}"#
    )
}

fn cancelled(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    )
}

#[test]
fn a_request_and_its_end_are_translated() {
    let mut dialect = Legacy::default();
    let (first, sent) = call(&mut dialect, "\"a\"", r#"{"_meta":{"progressToken":"p"}}"#);
    assert_eq!(
        sent,
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{first},\"method\":\"tools/call\",\"params\":{{\"_meta\":{{\"progressToken\":{first}}}}}}}\n"
        )
    );
    let (second, _) = call(&mut dialect, "\"a\"", "{}");
    assert_ne!(first, second);
    let said = line(&mut dialect, &progress(&first.to_string()));
    assert!(
        matches!(&said, ServerMessage::Progress { call, line } if *call == first && line == progress("\"p\"").as_bytes()),
        "{said:?}"
    );
    // A call without a token has no progress.
    let said = line(&mut dialect, &progress(&second.to_string()));
    assert!(
        matches!(said, ServerMessage::Dropped("unknown_token")),
        "{said:?}"
    );
    let said = line(&mut dialect, &result(&first.to_string()));
    assert!(
        matches!(&said, ServerMessage::Response { call, id } if *call == first && **id == *b"\"a\""),
        "{said:?}"
    );
    // A response with a completed id, with an unknown id, and with an id of another type.
    for id in [first.to_string(), "99".to_owned(), format!("\"{second}\"")] {
        let said = line(&mut dialect, &result(&id));
        assert!(
            matches!(said, ServerMessage::Dropped("unknown_id")),
            "{said:?}"
        );
    }
    let said = line(&mut dialect, &progress(&first.to_string()));
    assert!(
        matches!(said, ServerMessage::Dropped("unknown_token")),
        "{said:?}"
    );
}

#[test]
fn ids_beside_those_of_others_stay_where_they_belong() {
    let blocks = IdBlocks::new();
    let (mut dialect, mut other) = (Legacy::default(), Legacy::default());
    dialect.confine(IdLease::new(&blocks, 1, "").unwrap());
    other.confine(IdLease::new(&blocks, 2, "").unwrap());
    let begun = |dialect: &mut Legacy| call(dialect, "1", "{}").0;
    let (open, mut used) = (begun(&mut dialect), BTreeSet::new());
    used.insert(open);
    // Beyond two blocks.
    for _ in 0..9000 {
        let id = begun(&mut dialect);
        assert_eq!(blocks.holder(id), Some(1));
        assert!(used.insert(id), "{id} is used twice");
        assert!(dialect.abandon(id).is_some());
        assert_eq!(blocks.holder(open), Some(1), "its call is open");
    }
    assert_eq!(blocks.holder(begun(&mut other)), Some(2));
    assert_eq!(other.calls.len(), 1);
    let all = used.len();
    drop(dialect);
    assert_eq!((all, blocks.holder(open)), (9001, None));
}

#[test]
fn a_cancellation_ends_the_newest_call_of_its_id() {
    let mut dialect = Legacy::default();
    let (first, _) = call(&mut dialect, "5", "{}");
    let (second, _) = call(&mut dialect, "5", "{}");
    let (forwarded, sent) = note(&mut dialect, &cancelled("5"));
    assert_eq!(forwarded, Forwarded::Cancelled(second));
    assert_eq!(sent, cancelled(&second.to_string()) + "\n");
    assert!(matches!(
        line(&mut dialect, &result(&second.to_string())),
        ServerMessage::Dropped("unknown_id")
    ));
    assert_eq!(
        note(&mut dialect, &cancelled("5")).0,
        Forwarded::Cancelled(first)
    );
    for id in ["5", "6", "\"5\"", &first.to_string()] {
        assert_eq!(
            note(&mut dialect, &cancelled(id)),
            (Forwarded::Dropped, String::new())
        );
    }
    let (third, _) = call(&mut dialect, "7", "{}");
    assert_eq!(dialect.abandon(third).as_deref(), Some(&b"7"[..]));
    assert_eq!(dialect.abandon(third), None);
}

/// 2025-11-25 cancellation, "Behavior Requirements" 2: `initialize` is not cancelled, also where its id is that
/// of another call.
#[test]
fn initialize_cannot_be_cancelled() {
    let mut dialect = Legacy::default();
    let (other, _) = call(&mut dialect, "0", "{}");
    let mut out = BytesMut::new();
    let text = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
    let initialize = dialect.request(&message(text), None, &mut out);
    for forwarded in [Forwarded::Cancelled(other), Forwarded::Dropped] {
        assert_eq!(note(&mut dialect, &cancelled("0")).0, forwarded);
    }
    let said = line(&mut dialect, &result(&initialize.to_string()));
    assert!(matches!(said, ServerMessage::Response { .. }), "{said:?}");
}

/// 2025-11-25 basic, "Responses".
#[test]
fn an_answer_of_a_wrong_shape_is_an_error_of_the_gateway() {
    let mut dialect = Legacy::default();
    for outcome in [
        r#""result":null"#,
        r#""result":"text""#,
        r#""error":{}"#,
        r#""error":{"code":"E","message":"m"}"#,
        r#""error":{"code":1}"#,
    ] {
        let asked = r#"{"jsonrpc":"2.0","id":"x","method":"example/ask"}"#;
        let ServerMessage::Ask { ask, .. } = line(&mut dialect, asked) else {
            panic!("no ask");
        };
        let answer = message(&format!(r#"{{"jsonrpc":"2.0","id":{ask},{outcome}}}"#));
        let mut out = BytesMut::new();
        assert_eq!(dialect.answer(&answer, &mut out), Some(ask));
        let error = r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32603,"#;
        assert!(text_of(&out).starts_with(error), "{outcome}");
        out.clear();
        assert_eq!(dialect.answer(&answer, &mut out), None);
        assert!(out.is_empty(), "{outcome}");
    }
}

#[test]
fn what_the_child_asks_is_translated() {
    let mut dialect = Legacy::default();
    let asked = r#"{"jsonrpc":"2.0","id":"x","method":"example/ask","params":{"_meta":{"progressToken":"q","io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#;
    let ServerMessage::Ask {
        ask,
        task,
        line: shown,
    } = line(&mut dialect, asked)
    else {
        panic!("no ask");
    };
    assert_eq!(task.as_deref(), Some(&b"\"t\""[..]));
    let expected = asked
        .replace("\"x\"", &ask.to_string())
        .replace("\"q\"", &ask.to_string());
    assert_eq!(text_of(&shown), expected);
    let number = ask.to_string();
    assert_eq!(
        note(&mut dialect, &progress(&number)),
        (Forwarded::Passed, progress("\"q\"") + "\n")
    );
    assert_eq!(note(&mut dialect, &progress("77")).0, Forwarded::Dropped);
    let mut out = BytesMut::new();
    assert_eq!(dialect.answer(&message(&result("\"x\"")), &mut out), None);
    assert!(out.is_empty());
    assert_eq!(
        dialect.answer(&message(&result(&number)), &mut out),
        Some(ask)
    );
    assert_eq!(text_of(&out), result("\"x\"") + "\n");
    out.clear();
    assert_eq!(dialect.answer(&message(&result(&number)), &mut out), None);
    assert!(out.is_empty(), "an ask is answered once");
}

#[test]
fn what_the_child_takes_back_is_over() {
    let mut dialect = Legacy::default();
    let asked = r#"{"jsonrpc":"2.0","id":"x","method":"example/ask"}"#;
    let ServerMessage::Ask { ask, .. } = line(&mut dialect, asked) else {
        panic!("no ask");
    };
    let said = line(&mut dialect, &cancelled("\"y\""));
    assert!(
        matches!(said, ServerMessage::Dropped("unknown_id")),
        "{said:?}"
    );
    let said = line(&mut dialect, &cancelled("\"x\""));
    let expected = cancelled(&ask.to_string());
    assert!(
        matches!(&said, ServerMessage::AskCancelled { ask: named, line } if *named == ask && line == expected.as_bytes()),
        "{said:?}"
    );
    let mut out = BytesMut::new();
    dialect.refuse(ask, "late", &mut out);
    assert!(out.is_empty());
    let ServerMessage::Ask { ask, .. } = line(&mut dialect, asked) else {
        panic!("no ask");
    };
    dialect.refuse(ask, "nobody \"here\"", &mut out);
    assert_eq!(
        text_of(&out),
        "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"error\":{\"code\":-32603,\"message\":\"nobody \\\"here\\\"\"}}\n"
    );
}

#[test]
fn pings_are_answered_here() {
    let mut dialect = Legacy::default();
    let mut out = BytesMut::new();
    let ping = message(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert!(matches!(
        dialect.line(&ping, &mut out),
        ServerMessage::Answered("ping")
    ));
    assert_eq!(text_of(&out), result("\"p\"") + "\n");
}

/// 2025-11-25 basic, "Requests": no id twice.
#[test]
fn requests_of_the_gateway_have_ids_of_their_own() {
    let mut dialect = Legacy::default();
    let state = SessionState {
        is_initialized: true,
        level: Some("info"),
        subscriptions: vec![b"\"a\"", b"\"b\""],
    };
    let mut out = BytesMut::new();
    dialect.restore(&state, &mut out);
    dialect.ping(&mut out);
    dialect.ping(&mut out);
    let (call, _) = call(&mut dialect, "1", "{}");
    let said = text_of(&out);
    let requests = said.lines().map(message).skip(1);
    let ids: Vec<_> = requests
        .map(|request| String::from_utf8(request.id().unwrap().to_vec()).unwrap())
        .collect();
    assert_eq!(ids, ["1", "2", "3", "4"], "one ping at a time");
    assert_eq!(call, 5);
    for (id, method) in ids.iter().zip([
        "logging/setLevel",
        "resources/subscribe",
        "resources/subscribe",
        "ping",
    ]) {
        let said = line(&mut dialect, &result(id));
        assert!(
            matches!(said, ServerMessage::OwnResponse { method: of } if of == method),
            "{said:?}"
        );
    }
    out.clear();
    dialect.ping(&mut out);
    assert_eq!(message(text_of(&out).trim_end()).id(), Some(&b"6"[..]));
}

#[test]
fn ids_have_31_bits_and_those_of_another_owner_are_far_away() {
    let mut dialect = Legacy::default();
    dialect.rebase(63);
    let (first, _) = call(&mut dialect, "1", "{}");
    assert_eq!(first, (63 << 25) + 1);
    dialect.last = *IDS.end() - 1;
    assert_eq!(call(&mut dialect, "1", "{}").0, (1 << 31) - 1);
    assert_eq!(call(&mut dialect, "1", "{}").0, 1);
    dialect.rebase(64 + 7);
    assert_eq!(call(&mut dialect, "1", "{}").0, (7 << 25) + 1);
    // An ask that is open keeps its id.
    dialect.last = 0;
    let asked = r#"{"jsonrpc":"2.0","id":"x","method":"example/ask"}"#;
    let ServerMessage::Ask { ask, .. } = line(&mut dialect, asked) else {
        panic!("no ask");
    };
    assert_eq!(ask, 2, "1 is in use");
    dialect.last = 1;
    assert_eq!(call(&mut dialect, "1", "{}").0, 3);
}

#[test]
fn the_task_of_a_call_that_has_ended_is_unwanted() {
    let mut dialect = Legacy::default();
    let (gone, _) = call(&mut dialect, "1", r#"{"task":{}}"#);
    let (overdue, _) = call(&mut dialect, "2", r#"{"task":{}}"#);
    let (plain, _) = call(&mut dialect, "3", "{}");
    note(&mut dialect, &cancelled("1"));
    note(&mut dialect, &cancelled("3"));
    assert!(dialect.abandon(overdue).is_some());
    let task = |id: CallId| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"task":{{"taskId":"t{id}"}}}}}}"#)
    };
    for id in [gone, overdue] {
        let said = line(&mut dialect, &task(id));
        let name = format!("\"t{id}\"");
        assert!(
            matches!(&said, ServerMessage::UnwantedTask(task) if **task == *name.as_bytes()),
            "{said:?}"
        );
    }
    for id in [gone, plain] {
        let said = line(&mut dialect, &task(id));
        assert!(matches!(said, ServerMessage::Dropped(_)), "{said:?}");
    }
    // As many as are remembered.
    for _ in 0..=MAX_UNWANTED {
        let (id, _) = call(&mut dialect, "4", r#"{"task":{}}"#);
        dialect.abandon(id);
    }
    assert_eq!(dialect.unwanted.len(), MAX_UNWANTED);
    dialect.forget();
    assert!(dialect.unwanted.is_empty());
}

#[test]
fn the_token_of_a_task_outlives_its_call() {
    let mut dialect = Legacy::default();
    let asks = r#"{"task":{},"_meta":{"progressToken":"p"}}"#;
    let (task, _) = call(&mut dialect, "1", asks);
    let (failed, _) = call(&mut dialect, "2", asks);
    line(&mut dialect, &result(&task.to_string()));
    let error = format!(r#"{{"jsonrpc":"2.0","id":{failed},"error":{{}}}}"#);
    line(&mut dialect, &error);
    let said = line(&mut dialect, &progress(&task.to_string()));
    assert!(
        matches!(said, ServerMessage::Progress { call, .. } if call == task),
        "{said:?}"
    );
    let said = line(&mut dialect, &progress(&failed.to_string()));
    assert!(
        matches!(said, ServerMessage::Dropped("unknown_token")),
        "{said:?}"
    );
    for _ in 0..MAX_TASK_TOKENS {
        let (next, _) = call(&mut dialect, "3", asks);
        line(&mut dialect, &result(&next.to_string()));
    }
    let said = line(&mut dialect, &progress(&task.to_string()));
    assert!(
        matches!(said, ServerMessage::Dropped("unknown_token")),
        "the oldest goes: {said:?}"
    );
}

#[test]
fn the_token_of_a_task_outlives_its_ask() {
    let mut dialect = Legacy::default();
    let mut asked = |params: &str| {
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":"x","method":"example/ask","params":{params}}}"#);
        let ServerMessage::Ask { ask, .. } = line(&mut dialect, &text) else {
            panic!("no ask");
        };
        let answer = message(&result(&ask.to_string()));
        dialect.answer(&answer, &mut BytesMut::new());
        note(&mut dialect, &progress(&ask.to_string()))
    };
    let (forwarded, sent) = asked(r#"{"task":{},"_meta":{"progressToken":"q"}}"#);
    assert_eq!(
        (forwarded, sent),
        (Forwarded::Passed, progress("\"q\"") + "\n")
    );
    let (forwarded, _) = asked(r#"{"_meta":{"progressToken":"q"}}"#);
    assert_eq!(forwarded, Forwarded::Dropped);
}

#[test]
fn a_child_that_asks_and_does_not_read_costs_a_bounded_sum() {
    let mut dialect = Legacy::default();
    let mut out = BytesMut::new();
    let ask = message(r#"{"jsonrpc":"2.0","id":"x","method":"example/ask"}"#);
    for _ in 0..MAX_ASKS {
        assert!(matches!(
            dialect.line(&ask, &mut out),
            ServerMessage::Ask { .. }
        ));
    }
    let said = dialect.line(&ask, &mut out);
    assert!(
        matches!(said, ServerMessage::Answered("too many requests are open")),
        "{said:?}"
    );
    assert!(text_of(&out).contains("-32603"));
    let ping = format!(
        r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#,
        "p".repeat(1000)
    );
    let ping = message(&ping);
    for _ in 0..2 * MAX_OWED / 1000 {
        assert!(matches!(
            dialect.line(&ping, &mut out),
            ServerMessage::Answered("ping")
        ));
    }
    assert!(
        (MAX_OWED..MAX_OWED + 2000).contains(&out.len()),
        "{}",
        out.len()
    );
}

#[test]
fn another_revision_is_put_into_initialize() {
    let text = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2099-01-01","capabilities":{}}}"#;
    let mut out = BytesMut::new();
    let id = Legacy::default().request_as(&message(text), Some("2025-11-25"), None, &mut out);
    let expected = text
        .replace("2099-01-01", "2025-11-25")
        .replace("\"id\":0", &format!("\"id\":{id}"));
    assert_eq!(text_of(&out), expected + "\n");
}

fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u32>().prop_map(|number| format!("{number}.00")),
        "\\PC{0,20}".prop_map(|text| serde_json::Value::from(text).to_string()),
        Just(r#""\u0061\/""#.to_owned()),
    ]
}

proptest! {
    #[test]
    fn ids_and_tokens_come_back_byte_for_byte(calls in prop::collection::vec((token(), token()), 1..8)) {
        let mut dialect = Legacy::default();
        let begun: Vec<_> = calls
            .iter()
            .map(|(id, token)| call(&mut dialect, id, &format!(r#"{{"_meta":{{"progressToken":{token}}}}}"#)).0)
            .collect();
        for (call, (id, token)) in begun.iter().zip(&calls).rev() {
            let ServerMessage::Progress { line: shown, .. } = line(&mut dialect, &progress(&call.to_string())) else {
                panic!("no progress");
            };
            prop_assert_eq!(text_of(&shown), progress(token));
            let end = result(&call.to_string());
            let ServerMessage::Response { id: shown, .. } = line(&mut dialect, &end) else {
                panic!("no end");
            };
            let message = Message::parse(Bytes::from(end)).unwrap();
            prop_assert_eq!(text_of(&message.into_bytes_with_id(&shown)), result(id));
        }
    }

    #[test]
    fn a_childs_id_comes_back_byte_for_byte(id in token()) {
        let mut dialect = Legacy::default();
        let asked = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"example/ask"}}"#);
        let ServerMessage::Ask { ask, .. } = line(&mut dialect, &asked) else {
            panic!("no ask");
        };
        let mut out = BytesMut::new();
        dialect.answer(&message(&result(&ask.to_string())), &mut out);
        prop_assert_eq!(text_of(&out), result(&id) + "\n");
    }
}
