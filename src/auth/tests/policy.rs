//! Tests of `auth::policy`.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    config::Format,
    declare::{Server, Tenant},
    manifest::reader,
};

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn request(method: &str, params: &str) -> Message {
    message(&format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#
    ))
}

fn code(policy: &Policy, method: &str, params: &str) -> Option<i32> {
    denied(policy, &request(method, params)).map(|denied| denied.code)
}

#[test]
fn names_that_cannot_be_compared_are_denied() {
    let policy = Policy::of(&json!({"tools": {"deny": ["x"]}, "resources": {"deny": ["x"]}}));
    for params in [
        "{}",
        r#"{"name":1}"#,
        r#"{"name":"\ud800"}"#,
        r#"{"name":["a"]}"#,
    ] {
        assert_eq!(
            code(&policy, "tools/call", params),
            Some(-32602),
            "{params}"
        );
    }
    for params in ["{}", r#"{"uri":null}"#] {
        assert_eq!(
            code(&policy, "resources/read", params),
            Some(-32002),
            "{params}"
        );
    }
    assert_eq!(code(&policy, "tools/call", r#"{"name":"y"}"#), None);
    let open = Policy::default();
    for method in [
        "tools/call",
        "resources/read",
        "completion/complete",
        "tools/new",
    ] {
        assert_eq!(
            code(&open, method, r#"{"x":1}"#),
            None,
            "the server's own affair"
        );
    }
}

#[test]
fn completions_are_checked_by_all_members_of_the_reference() {
    let policy = Policy::of(&json!({
        "prompts": {"deny": ["p"]}, "resources": {"allow": ["a:*"]}}));
    let table = [
        (r#"{"type":"ref/prompt","name":"q"}"#, true),
        (r#"{"type":"ref/prompt","name":"p"}"#, false),
        (r#"{"type":"ref/prompt","name":"q","uri":"b:c"}"#, false),
        (r#"{"type":"ref/resource","uri":"a:c"}"#, true),
        (r#"{"type":"ref/resource","uri":"{x}:c"}"#, true),
        (r#"{"type":"ref/resource","uri":"b:{x}"}"#, false),
        (r#"{"type":"ref/resource","uri":"b:c"}"#, false),
        (r#"{"type":"ref/resource","uri":"a:c","name":"p"}"#, false),
        (r#"{"type":"ref/new","id":"p"}"#, false),
        (r#"{"type":"ref/resource","uri":5}"#, false),
        (r#""p""#, false),
    ];
    for (reference, is_allowed) in table {
        let params = format!(r#"{{"ref":{reference}}}"#);
        let found = code(&policy, "completion/complete", &params);
        assert_eq!(found.is_none(), is_allowed, "{reference}");
    }
    assert!(code(&policy, "completion/complete", "{}").is_some());
}

#[test]
fn unknown_methods_do_not_bypass_policy() {
    let policy = Policy::of(&json!({"resources": {"deny": ["x"]}}));
    for method in [
        "resources/copy",
        "Resources/Read",
        "resources",
        " resources/read",
        "RE\u{17f}ources/x",
    ] {
        assert_eq!(code(&policy, method, "{}"), Some(-32601), "{method}");
    }
    for method in [
        "tools/new",
        "prompts/new",
        "x/resources/read",
        "notifications/x",
    ] {
        assert_eq!(code(&policy, method, "{}"), None, "{method}");
    }
    let scopes = Policy::of(&json!({"scopes": {"x": ["y"]}}));
    assert_eq!(code(&scopes, "tools/new", "{}"), Some(-32601));
}

/// `filtered`, alone on a runtime.
fn filtered_alone(policy: &Policy, listed: Listed, answer: Bytes) -> Bytes {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let share = Budget::new(1).share();
    runtime.block_on(filtered(policy, listed, answer, &share))
}

#[tokio::test]
async fn others_have_their_turns_while_a_long_list_is_judged() {
    let policy = Policy::of(&json!({"resources": {"allow": ["a:*/b", "a:*/c"]}}));
    let entry = json!({"uriTemplate": format!("a:{}", "{x}y".repeat(250))}).to_string();
    let line = |entries| {
        let list = vec![entry.as_str(); entries].join(",");
        Bytes::from(format!(r#"{{"result":{{"resourceTemplates":[{list}]}}}}"#))
    };
    let share = Budget::new(1).share();
    for (entries, turns) in [(10, 0..=0), (2000, 85..=100)] {
        let filtered = filtered(&policy, Listed::Templates, line(entries), &share);
        tokio::pin!(filtered);
        let mut waits = 0;
        let cut = std::future::poll_fn(|context| {
            let polled = filtered.as_mut().poll(context);
            waits += usize::from(polled.is_pending());
            polled
        });
        assert_eq!(cut.await, &br#"{"result":{"resourceTemplates":[]}}"#[..]);
        assert!(turns.contains(&waits), "{waits} turns of others");
    }
}

/// A list of thousands of empty names was compared with hundreds of patterns in one step.
#[tokio::test]
async fn empty_names_are_work_too() {
    let patterns: Vec<String> = (0..200).map(|at| format!("{at}*")).collect();
    let policy = Policy::of(&json!({"tools": {"deny": patterns}}));
    let list = vec![r#"{"name":""}"#; 2000].join(",");
    let line = Bytes::from(format!(r#"{{"result":{{"tools":[{list}]}}}}"#));
    let share = Budget::new(1).share();
    let filtered = filtered(&policy, Listed::Tools, line.clone(), &share);
    tokio::pin!(filtered);
    let mut waits = 0;
    let whole = std::future::poll_fn(|context| {
        let polled = filtered.as_mut().poll(context);
        waits += usize::from(polled.is_pending());
        polled
    });
    assert_eq!(whole.await, line);
    assert!(waits >= 5, "{waits} turns of others");
}

#[test]
fn lists_keep_allowed_entries_unchanged() {
    let policy = Policy::of(&json!({"tools": {"allow": ["a*", "ü"]}}));
    let cut = |text: &str| {
        let text = Bytes::copy_from_slice(text.as_bytes());
        let answer = filtered_alone(&policy, Listed::Tools, text);
        String::from_utf8(answer.to_vec()).unwrap()
    };
    let line = |tools: &str| {
        format!(
            r#"{{"id": 1,"result":{{"x" : [1] ,"tools": {tools} ,"nextCursor":"\u0063"}},"jsonrpc":"2.0"}}"#
        )
    };
    let table = [
        (
            r#"[ {"name":"a"} , {"name":"a\u0062", "x":{"name":"b"}} ]"#,
            None,
        ),
        (
            r#"[ {"name":"b"} , {"n\u0061me" : "\u0061b", "x":1.0} , {"name":"ü"}]"#,
            Some(r#"[{"n\u0061me" : "\u0061b", "x":1.0},{"name":"ü"}]"#),
        ),
        (r#"[{"name":"b"}]"#, Some("[]")),
        (
            r#"[{"title":"a"},{"name":5},"a",{"name":"a","name":"b"}]"#,
            Some("[]"),
        ),
        (r#"{"name":"b"}"#, Some("[]")),
    ];
    for (tools, expected) in table {
        assert_eq!(
            cut(&line(tools)),
            line(expected.unwrap_or(tools)),
            "{tools}"
        );
    }
    // A repeated list is filtered twice, because clients may take either one.
    let twice = r#"{"result":{"tools":[{"name":"b"}],"t\u006fols":[{"name":"b"}]}}"#;
    assert_eq!(cut(twice), r#"{"result":{"tools":[],"t\u006fols":[]}}"#);
    let error = r#"{"id":1,"error":{"code":1,"message":"b"}}"#;
    assert_eq!(cut(error), error);
}

fn access(policy: &Value, scopes: &[&str]) -> Access {
    let server = json!({"command": "x", "policy": policy});
    let text = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
        "servers": {"s": server}}}});
    let manifest = reader::parse("F", &text.to_string(), Format::Json, &BTreeMap::new()).unwrap();
    let (tenant, server): (Arc<Tenant>, Arc<Server>) = manifest.catalog.find("a", "s").unwrap();
    Access::of(&tenant, &server, "ada").with_scopes(scopes)
}

#[test]
fn all_missing_scopes_are_named_at_once() {
    let policy = json!({
        "tools": {"deny": ["delete_secret"]},
        "scopes": {"delete_*": ["files:write", "files:delete"], "*": ["files:read"]},
        "implies": {"files:write": ["files:read"]},
    });
    let missing = |scopes: &[&str], body: &str| {
        let body = Body::parse(Bytes::copy_from_slice(body.as_bytes())).unwrap();
        missing_scopes(&access(&policy, scopes), &body)
    };
    let call = |name: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}"}}}}"#)
    };
    let all = |scopes: &[&str]| Some(scopes.iter().map(|scope| (*scope).to_owned()).collect());
    let delete = call("delete_x");
    assert_eq!(
        missing(&[], &delete),
        all(&["files:read", "files:write", "files:delete"])
    );
    assert_eq!(
        missing(&["other", "files:write"], &delete),
        all(&["other", "files:write", "files:delete"])
    );
    assert_eq!(missing(&["files:write", "files:delete"], &delete), None);
    assert_eq!(missing(&["files:read"], &call("read")), None);
    assert_eq!(
        missing(&[], &call("delete_secret")),
        None,
        "unknown, not forbidden"
    );
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    assert_eq!(missing(&[], list), None);
    let batch = format!("[{list},{},{delete},5]", call("read"));
    assert_eq!(
        missing(&["files:read"], &batch),
        all(&["files:read", "files:write", "files:delete"])
    );
    // A notification needs the scopes too, because a server may treat it as a call.
    assert!(missing(&[], &delete.replace(r#""id":1,"#, "")).is_some());
}

#[test]
fn a_call_whose_name_cannot_be_read_needs_every_scope() {
    let policy = json!({"scopes": {"a": ["x"], "b": ["y"]}});
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\ud800"}}"#;
    let body = Body::parse(Bytes::copy_from_slice(body.as_bytes())).unwrap();
    let missing = missing_scopes(&access(&policy, &["x"]), &body).unwrap();
    assert_eq!(missing, ["x", "y"]);
}

/// A text as a JSON string, with the characters escaped that `mask` selects.
fn escaped(text: &str, mask: u64) -> String {
    let escape = |(at, letter): (usize, char)| {
        if mask >> (at % 64) & 1 == 0 && letter >= ' ' && letter != '"' && letter != '\\' {
            return letter.to_string();
        }
        let mut units = [0; 2];
        let units = letter.encode_utf16(&mut units).iter();
        units.map(|unit| format!("\\u{unit:04x}")).collect()
    };
    format!(
        "\"{}\"",
        text.chars().enumerate().map(escape).collect::<String>()
    )
}

proptest! {
    /// Key smuggling: in each message that passes, another parser finds the same name that policy
    /// checked.
    #[test]
    fn policy_and_other_parsers_read_the_same_name(
        name in "[ad]{0,3}|\\PC{0,6}", other in "[ad]{0,3}",
        first in "name|Name|nam\u{17f}|uri|x", second in "name|NAME|uri|ref|arguments",
        mask in any::<u64>(), place in 0..3_usize,
    ) {
        let policy = Policy::of(&json!({"tools": {"deny": ["d*", "*\u{17f}*"]}}));
        let mut members = vec![
            format!("{}:{}", escaped(&first, mask), escaped(&name, mask >> 7)),
            format!("{}:{}", escaped(&second, mask >> 13), escaped(&other, mask >> 3)),
        ];
        members.insert(place, r#""_meta":{"name":"d"}"#.to_owned());
        let params = format!("{{{}}}", members.join(","));
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let Ok(message) = Message::parse(text.into()) else { return Ok(()) };
        let seen: Value = serde_json::from_slice(message.bytes()).unwrap();
        let lenient = seen["params"].as_object().unwrap().iter()
            .filter(|(key, _)| key.to_lowercase() == "name" || key.to_uppercase() == "NAME");
        let names: Vec<&str> = lenient.filter_map(|(_, name)| name.as_str()).collect();
        let is_denied = denied(&policy, &message).is_some();
        prop_assert!(names.len() <= 1, "{:?}", names);
        let expected = names.first().is_none_or(|name| !policy.tools.allows(name));
        prop_assert_eq!(is_denied, expected, "{:?}", names);
    }

    #[test]
    fn filtering_keeps_only_allowed_entries(
        names in prop::collection::vec("[abd]{0,3}", 0..8), mask in any::<u64>(),
    ) {
        let policy = Policy::of(&json!({"prompts": {"deny": ["*d*"]}}));
        let entry = |name: &String| format!(r#"{{"x": 1.50,"name":{} }}"#, escaped(name, mask));
        let all: Vec<String> = names.iter().map(entry).collect();
        let allowed = names.iter().zip(&all).filter(|(name, _)| policy.prompts.allows(name));
        let kept: Vec<&str> = allowed.map(|(_, entry)| entry.as_str()).collect();
        let line = |entries: &str| format!(r#"{{"result":{{"prompts":[{entries}]}},"id":1}}"#);
        let cut = filtered_alone(&policy, Listed::Prompts, line(&all.join(",")).into());
        prop_assert_eq!(cut, line(&kept.join(",")));
    }

    #[test]
    fn never_panics(text in prop::collection::vec(any::<u8>(), 0..100)) {
        let policy = Policy::of(&json!({"tools": {"deny": ["x"]}}));
        let text = [br#"{"result":{"tools":"#, &*text, b"}}"].concat();
        let _ = filtered_alone(&policy, Listed::Tools, text.into());
    }
}
