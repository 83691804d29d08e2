//! Tests of `backend::shared::routing`.

use super::super::routing::*;
use crate::backend::dialect::IdLease;

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

/// An id of a session: those of three begin in this order.
fn call(number: u64, at: u64) -> u64 {
    OWN_IDS + ((number - 1) << 12) + at
}

fn told(out: &mut BytesMut) -> String {
    String::from_utf8(out.split().to_vec()).unwrap()
}

fn of(isolation: Isolation) -> (Routing, BytesMut) {
    let ids = IdBlocks::new();
    let mut routing = Routing::new(isolation, Arc::clone(&ids));
    for number in 1..=3 {
        routing.join(number);
        std::mem::forget(IdLease::new(&ids, number, ""));
    }
    (routing, BytesMut::new())
}

const LOG: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;

#[test]
fn what_is_asked_during_a_call_goes_to_its_session() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    let asks = |call: u64| {
        format!(r#"{{"jsonrpc":"2.0","id":"{call}.1.0","method":"elicitation/create"}}"#)
    };
    let withdrawn = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":"{}.1.0"}}}}"#,
        call(2, 7)
    );
    let mine = message(&asks(call(2, 7)));
    assert_eq!(routing.route(&mine, &mut out), Recipients::Gateway);
    assert!(told(&mut out).contains("-32601"), "with sessions it cannot");
    routing.let_ask();
    assert_eq!(routing.route(&mine, &mut out), Recipients::Session(2));
    let withdrawn = message(&withdrawn);
    assert_eq!(routing.route(&withdrawn, &mut out), Recipients::Session(2));
    assert_eq!(told(&mut out), "");
    let of_nobody = message(&asks(call(9, 1)));
    assert_eq!(routing.route(&of_nobody, &mut out), Recipients::None);
    assert!(told(&mut out).contains("-32603"), "the call ends");
}

#[test]
fn each_message_goes_to_whom_it_belongs() {
    let all = || Recipients::Sessions(vec![1, 2, 3]);
    let two = || Recipients::Session(2);
    let id = call(2, 7);
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    let progress = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progress":1}}}}"#
    );
    let strange = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, call(9, 1));
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let other = r#"{"jsonrpc":"2.0","method":"notifications/elicitation/complete"}"#;
    let updated =
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:1"}}"#;
    let table = [
        (&*answer, two(), two()),
        (&progress, two(), two()),
        (&strange, Recipients::None, Recipients::None),
        (
            r#"{"jsonrpc":"2.0","id":"x","result":{}}"#,
            Recipients::None,
            Recipients::None,
        ),
        (
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#,
            Recipients::None,
            Recipients::None,
        ),
        (changed, all(), all()),
        (other, all(), Recipients::None),
        (LOG, all(), Recipients::None),
        (updated, Recipients::None, Recipients::None),
    ];
    for (text, principal, tenant) in table {
        for (isolation, expected) in [
            (Isolation::Principal, principal),
            (Isolation::Tenant, tenant),
        ] {
            let (mut routing, mut out) = of(isolation);
            assert_eq!(routing.route(&message(text), &mut out), expected, "{text}");
            assert!(out.is_empty(), "{text}");
        }
    }
}

/// A note of one principal in the `_meta` of a changed list reached the listeners of all.
#[test]
fn what_a_server_adds_is_not_told_to_several_principals() {
    let notify = |method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}"{params}}}"#)
    };
    for (method, said, tenant) in [
        ("tools/list_changed", "", ""),
        (
            "tools/list_changed",
            r#","params":{"_meta":{"note":"ada's"}}"#,
            "",
        ),
        (
            "resources/updated",
            r#","params":{"title":"ada's", "uri" : "x:\u002f1"}"#,
            r#","params":{"uri":"x:\u002f1"}"#,
        ),
    ] {
        for (isolation, expected) in [(Isolation::Principal, said), (Isolation::Tenant, tenant)] {
            let (routing, _) = of(isolation);
            let heard = routing.for_several(message(&notify(method, said)));
            assert_eq!(heard.bytes(), &notify(method, expected), "{isolation:?}");
        }
    }
}

#[test]
fn what_the_child_asks_is_refused_and_its_ping_answered() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    let ask = message(r#"{"jsonrpc":"2.0","id":"a","method":"roots/list"}"#);
    assert_eq!(routing.route(&ask, &mut out), Recipients::Gateway);
    let said = told(&mut out);
    assert!(
        said.starts_with(r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32601"#),
        "{said}"
    );
    let ping = message(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#);
    assert_eq!(routing.route(&ping, &mut out), Recipients::Gateway);
    assert_eq!(
        told(&mut out),
        "{\"jsonrpc\":\"2.0\",\"id\":\"p\",\"result\":{}}\n"
    );
}

#[test]
fn subscriptions_are_counted_by_uri() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    let uri = || Box::<[u8]>::from(&br#""file:///a""#[..]);
    let updated = |uri: &str| {
        message(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
        ))
    };
    let first = call(1, 1);
    assert_eq!(
        routing.subscription(first, uri(), true, b"first\n", &mut out),
        None
    );
    assert_eq!(told(&mut out), "first\n");
    assert_eq!(
        routing.route(&updated("file:///a"), &mut out),
        Recipients::None,
        "not confirmed"
    );
    let confirmed = format!(r#"{{"jsonrpc":"2.0","id":{first},"result":{{}}}}"#);
    routing.route(&message(&confirmed), &mut out);
    let second = call(2, 1);
    let answer = routing.subscription(second, uri(), true, b"second\n", &mut out);
    assert_eq!(
        answer.unwrap(),
        format!(r#"{{"jsonrpc":"2.0","id":{second},"result":{{}}}}"#)
    );
    assert_eq!(told(&mut out), "", "the child has it already");
    let both = Recipients::Sessions(vec![1, 2]);
    assert_eq!(routing.route(&updated("file:///a"), &mut out), both);
    assert_eq!(
        routing.route(&updated("file:///a/b"), &mut out),
        both,
        "a sub-resource"
    );
    assert_eq!(
        routing.route(&updated("file:///ab"), &mut out),
        Recipients::None
    );
    assert_eq!(
        routing.route(&updated(r"file:\/\/\u002fa"), &mut out),
        both,
        "another spelling"
    );
    // A session without the subscription cannot end it.
    assert!(
        routing
            .subscription(call(3, 1), uri(), false, b"no\n", &mut out)
            .is_some()
    );
    routing.leave(1, &mut out);
    assert_eq!(told(&mut out), "");
    assert_eq!(
        routing.route(&updated("file:///a"), &mut out),
        Recipients::Sessions(vec![2])
    );
    routing.leave(2, &mut out);
    assert!(told(&mut out).contains(r#""resources/unsubscribe","params":{"uri":"file:///a"}"#));
    assert!(!routing.is_subscribed());
}

const URI: &[u8] = b"\"x:1\"";

/// Immediate answer of `subscription`, and the lines for the child.
fn asked(routing: &mut Routing, call: u64, is_subscribe: bool) -> (bool, String) {
    let (mut out, line) = (BytesMut::new(), format!("{call}\n"));
    let answer = routing.subscription(call, URI.into(), is_subscribe, line.as_bytes(), &mut out);
    (answer.is_some(), told(&mut out))
}

/// Routes the child's answer to a call; returns the lines for the child.
fn answered(routing: &mut Routing, call: u64, member: &str) -> String {
    let mut out = BytesMut::new();
    let text = format!(r#"{{"jsonrpc":"2.0","id":{call},"{member}":{{}}}}"#);
    routing.route(&message(&text), &mut out);
    told(&mut out)
}

fn hearing(routing: &mut Routing) -> Recipients {
    let updated =
        r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:1"}}"#;
    routing.route(&message(updated), &mut BytesMut::new())
}

const ENDED: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/unsubscribe\",\"params\":{\"uri\":\"x:1\"}}\n";

#[test]
fn who_waits_for_a_subscription_keeps_it_from_its_end() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    let (one, two) = (call(1, 1), call(2, 1));
    // Both are under way when the first is confirmed.
    assert_eq!(asked(&mut routing, one, true), (false, format!("{one}\n")));
    assert_eq!(asked(&mut routing, two, true), (false, format!("{two}\n")));
    answered(&mut routing, one, "result");
    assert_eq!(
        asked(&mut routing, call(1, 2), false),
        (true, String::new())
    );
    assert_eq!(
        asked(&mut routing, call(3, 1), false),
        (true, String::new())
    );
    routing.leave(1, &mut out);
    assert_eq!(told(&mut out), "");
    assert_eq!(answered(&mut routing, two, "result"), "");
    assert_eq!(hearing(&mut routing), Recipients::Sessions(vec![2]));
    // A refusal of the waiting session leaves a subscription without holder at the child.
    let (mut routing, _) = of(Isolation::Tenant);
    asked(&mut routing, one, true);
    asked(&mut routing, two, true);
    answered(&mut routing, one, "result");
    asked(&mut routing, call(1, 2), false);
    let third = asked(&mut routing, call(3, 1), true);
    assert!(!third.0, "no session holds it");
    assert_eq!(answered(&mut routing, two, "error"), "");
    assert_eq!(answered(&mut routing, call(3, 1), "error"), ENDED);
    assert!(!routing.is_subscribed());
}

#[test]
fn what_a_session_waits_for_ends_with_it() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    let (one, two) = (call(1, 1), call(2, 1));
    asked(&mut routing, one, true);
    asked(&mut routing, two, true);
    routing.leave(1, &mut out);
    assert_eq!(told(&mut out), "", "another one waits for it");
    routing.leave(2, &mut out);
    assert_eq!(told(&mut out), ENDED);
    assert_eq!(answered(&mut routing, two, "result"), "");
    assert!(!routing.is_subscribed());
}

#[test]
fn a_subscription_that_is_ended_before_it_is_confirmed_is_none() {
    let (mut routing, _) = of(Isolation::Tenant);
    let (one, end) = (call(1, 1), call(1, 2));
    asked(&mut routing, one, true);
    assert_eq!(asked(&mut routing, end, false), (false, format!("{end}\n")));
    answered(&mut routing, one, "result");
    answered(&mut routing, end, "result");
    assert_eq!(hearing(&mut routing), Recipients::None);
    assert!(!routing.is_subscribed());
}

#[test]
fn a_subscription_without_an_answer_is_none() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    let (one, two) = (call(1, 1), call(2, 1));
    asked(&mut routing, one, true);
    routing.abandon(one, URI, false, &mut out);
    assert_eq!(told(&mut out), ENDED, "behind the request");
    assert!(!routing.is_subscribed());
    assert_eq!(answered(&mut routing, one, "result"), "");
    assert_eq!(hearing(&mut routing), Recipients::None);
    // The child has confirmed the subscription before the session abandons it.
    asked(&mut routing, two, true);
    answered(&mut routing, two, "result");
    routing.abandon(two, URI, true, &mut out);
    assert_eq!(told(&mut out), "", "kept by an earlier one");
    assert_eq!(hearing(&mut routing), Recipients::Sessions(vec![2]));
    routing.abandon(two, URI, false, &mut out);
    assert_eq!(told(&mut out), ENDED.replace("\"id\":1", "\"id\":2"));
}

/// A server need not answer what is cancelled, and they stayed as long as their session.
#[test]
fn a_cancelled_subscription_waits_for_no_answer() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    let (one, two) = (call(1, 1), call(2, 1));
    asked(&mut routing, one, true);
    asked(&mut routing, two, true);
    routing.abandon(one, URI, false, &mut out);
    assert_eq!(told(&mut out), "", "another one waits for it");
    assert_eq!(routing.pending.len(), 1);
    // The child may have agreed to the first, and refuses the second.
    assert_eq!(answered(&mut routing, two, "error"), ENDED);
    asked(&mut routing, one, true);
    asked(&mut routing, two, true);
    for call in [one, two] {
        routing.abandon(call, URI, false, &mut out);
    }
    assert_eq!(told(&mut out), ENDED.replace("\"id\":1", "\"id\":2"));
    assert!(routing.pending.is_empty());
    assert!(!routing.is_subscribed());
}

#[test]
fn a_refused_subscription_is_none() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    routing.subscription(call(1, 1), Box::from(&b"\"x\""[..]), true, b"l\n", &mut out);
    let error = format!(
        r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":1,"message":""}}}}"#,
        call(1, 1)
    );
    assert_eq!(
        routing.route(&message(&error), &mut out),
        Recipients::Session(1)
    );
    assert!(!routing.is_subscribed());
}

#[test]
fn the_child_has_the_lowest_level_and_each_session_its_own() {
    let (mut routing, mut out) = of(Isolation::Principal);
    let log = |level: &str| message(&LOG.replace("info", level));
    assert_eq!(
        routing.route(&log("debug"), &mut out),
        Recipients::Sessions(vec![1, 2, 3])
    );
    routing.set_level(1, log_level("error").unwrap(), &mut out);
    assert!(told(&mut out).contains(r#"{"level":"error"}"#));
    routing.set_level(2, log_level("debug").unwrap(), &mut out);
    assert!(told(&mut out).contains(r#"{"level":"debug"}"#));
    assert_eq!(
        routing.route(&log("debug"), &mut out),
        Recipients::Sessions(vec![2])
    );
    assert_eq!(
        routing.route(&log("notice"), &mut out),
        Recipients::Sessions(vec![2, 3])
    );
    assert_eq!(
        routing.route(&log("alert"), &mut out),
        Recipients::Sessions(vec![1, 2, 3])
    );
    routing.leave(2, &mut out);
    assert!(
        told(&mut out).contains(r#"{"level":"error"}"#),
        "the lowest of those left"
    );
}

#[test]
fn requests_of_the_gateway_have_ids_of_their_own() {
    let (mut routing, mut out) = of(Isolation::Tenant);
    let id = routing.push_own_request("ping", None, &mut out);
    assert!(routing.own.is_pinged());
    routing.set_level(1, 0, &mut out);
    routing.set_level(2, 5, &mut out);
    let uri = || Box::<[u8]>::from(&br#""file:///a""#[..]);
    routing.subscription(call(1, 1), uri(), true, b"", &mut out);
    routing.leave(1, &mut out);
    routing.set_level(3, 4, &mut out);
    let said = told(&mut out);
    let ids: BTreeSet<_> = said
        .lines()
        .map(|line| message(line).id().unwrap().to_vec())
        .collect();
    assert_eq!(ids.len(), said.lines().count(), "{said}");
    assert_eq!(ids.len(), 5, "{said}");
    let pong = message(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":1,"message":"m"}}}}"#
    ));
    assert_eq!(routing.route(&pong, &mut out), Recipients::Own("ping"));
    assert!(!routing.own.is_pinged());
    assert_eq!(routing.route(&pong, &mut out), Recipients::None, "once");
}

#[test]
fn the_call_of_a_line_that_is_no_message_is_found() {
    let deep = [&*"[".repeat(100_000), &*"]".repeat(100_000)].concat();
    for (line, expected) in [
        (r#"{"jsonrpc":"2.0","id":7}"#.to_owned(), Some(7)),
        (r#"{"id":7,"result":null}"#.to_owned(), Some(7)),
        (r#" {"i\u0064":7,"error":"\u0001" } "#.to_owned(), Some(7)),
        (r#"{"id":0,"result":{"id":1},"id":7}"#.to_owned(), Some(7)),
        (format!(r#"{{"result":{deep},"id":7}}"#), Some(7)),
        ("{\"id\":7,\"result\":\"a\tb\u{1}\"}".to_owned(), Some(7)),
        (r#"{"id":7,"level":"info"}"#.to_owned(), None),
        (r#"{"id":7,"result":{},"method":"x"}"#.to_owned(), None),
        (r#"{"id":"7","result":{}}"#.to_owned(), None),
        (r#"{"result":{}}"#.to_owned(), None),
        (r#"{"id":7,"result":{"#.to_owned(), None),
        ("panic".to_owned(), None),
    ] {
        let found = salvage_calls(line.as_bytes());
        assert_eq!(found, Vec::<u64>::from_iter(expected), "{line:.60}");
    }
    let broken = b"{\"id\":7,\"result\":\"\xff\"}";
    assert_eq!(salvage_calls(broken), [7]);
}

/// Each of them cost its call the whole clock.
#[test]
fn the_calls_of_a_line_of_a_wrong_form_are_found() {
    let answer = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    let with = |rest: &str| format!(r#"{{"jsonrpc":"2.0","id":7,{rest}"#);
    let (seven, eight) = (answer(7), answer(8));
    for (line, expected) in [
        (with(r#""method":"x","result":{}}"#), &[7_u64][..]),
        (with(r#""error":{},"method":"x"}"#), &[7]),
        (with(r#""method":"x","params":{"result":{}}}"#), &[]),
        (format!("{seven}{eight}"), &[7, 8]),
        (format!("{seven} {LOG} {eight} text {seven}"), &[7, 8]),
        (format!("{LOG}{seven}"), &[7]),
        (format!("\u{feff}{seven}"), &[7]),
        (format!("\u{feff}\u{feff}{seven}"), &[]),
        (format!("[{seven},{LOG},{eight}]"), &[7, 8]),
        (format!("[[{seven}]]"), &[]),
        (format!("{}{seven}", "[".repeat(200)), &[]),
        (with(r#""result":{"content":[}}"#), &[7]),
        (with(r#""result":{"share":NaN}}"#), &[7]),
        (with(r#""result":{"text":"a "word""}}"#), &[7]),
        (with(r#""params":{"share":NaN},"method":"x"}"#), &[]),
        (r#"{"id":7,"error":x}"#.to_owned(), &[]),
        // What may be the end of a child, and digits that may be those of another call.
        (with(r#""result":{"content":["#), &[]),
        (r#"{"jsonrpc":"2.0","result":{},"id":7"#.to_owned(), &[]),
        (r#"{"jsonrpc":"2.0","result":{},"id":7x"#.to_owned(), &[]),
        (format!("text {seven}"), &[]),
        (format!("17:03 {seven}"), &[]),
    ] {
        assert_eq!(salvage_calls(line.as_bytes()), expected, "{line:.90}");
    }
    assert_eq!(salvage_calls(seven.repeat(200).as_bytes()), [7; 100]);
}
