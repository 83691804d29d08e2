//! Tests of `protocol::message`.

use proptest::prelude::*;

use super::super::message::*;
use super::super::meta;

fn parse(text: impl Into<Vec<u8>>) -> Result<Message, Refusal> {
    Message::parse(Bytes::from(text.into()))
}

fn is_invalid(text: &str) -> bool {
    matches!(parse(text), Err(Refusal::Invalid(_)))
}

fn is_not_json(text: &[u8]) -> bool {
    matches!(parse(text), Err(Refusal::NotJson(_)))
}

/// A refused text of 4 MiB was scanned three times: for the refusal, for its method, and for its id.
#[test]
fn a_refusal_has_the_id_of_its_request_wherever_that_is() {
    let many = "\"x\":0,".repeat(10_000);
    let cases = [
        (r#""id":7,"method":"a","params":1"#, Some("7")),
        (r#""id":7,"method":5"#, Some("7")),
        (
            r#""x":0,"params":{},"params":{},"\u0069d":"b","method":"a""#,
            Some("\"b\""),
        ),
        (
            r#""params":{},"params":{},"method":"a","metho\u0064":"a","id":7"#,
            None,
        ),
        (
            r#""params":{},"params":{},"method":"a","id":7,"id":7"#,
            None,
        ),
        (r#""id":7,"method":"a","id":7"#, None),
        (r#""method":"a","id":7,"method":"a""#, None),
        (r#""params":{},"params":{},"id":7"#, None),
        (r#""params":{},"params":{},"id":7,"result":{}"#, None),
        (r#""params":{},"params":{},"id":{},"method":"a""#, None),
        (&format!(r#"{many}"method":"a","id":7"#), Some("7")),
    ];
    for (members, id) in cases {
        let text = format!(r#"{{"jsonrpc":"2.0",{members}}}"#);
        let rejected = Body::parse(text.clone().into()).unwrap_err();
        assert!(matches!(rejected.refusal, Refusal::Invalid(_)), "{text}");
        let found = rejected.id.as_deref().map(|id| str::from_utf8(id).unwrap());
        assert_eq!(found, id, "{text:.200}");
    }
}

#[test]
fn tells_the_four_kinds() {
    let kinds = [
        (r#""id":1,"method":"a""#, Kind::Request),
        (r#""method":"a""#, Kind::Notification),
        (r#""id":1,"result":null"#, Kind::Result),
        (r#""id":1,"error":{}"#, Kind::Error),
    ];
    for (members, kind) in kinds {
        let text = format!(r#"{{"jsonrpc":"2.0",{members}}}"#);
        assert_eq!(parse(text.as_str()).unwrap().kind(), kind, "{text}");
    }
}

#[test]
fn refuses_what_is_no_message() {
    let bad = [
        "{}",
        "1",
        "null",
        r#""text""#,
        r#"{"id":1,"method":"a"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#,
        r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
        r#"{"jsonrpc":"2.0","error":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","result":1}"#,
    ];
    for text in bad {
        assert!(is_invalid(text), "{text}");
    }
    for params in ["1", "null", "true", "[]", r#""text""#] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{params}}}"#);
        assert!(is_invalid(&text), "{text}");
    }
    let long = format!("\"{}\"", "x".repeat(MAX_TOKEN));
    for id in ["null", "true", "{}", "[]", "1.5", "1e3", "-0.1", &long] {
        let texts = [
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"a"}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#),
            format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"progressToken":{id}}}}}"#),
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"_meta":{{"progressToken":{id}}}}}}}"#
            ),
        ];
        for text in texts {
            assert!(is_invalid(&text), "{text}");
        }
    }
    let texts = [
        format!(r#"{{"jsonrpc":"2.0","method":{long}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":{long}}}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{{"name":{long}}}}}"#),
    ];
    for text in texts {
        assert!(is_invalid(&text), "{text}");
    }
    let other = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"name":{long}}}}}"#);
    assert!(!is_invalid(&other), "a name of something else");
}

#[test]
fn line_ends_become_blanks_wherever_they_are() {
    let text = "\r\n{\"jsonrpc\":\"2.0\",\r\n\n\"method\":\"a\\n\"\n\r}\r\n";
    let message = Message::parse(Bytes::from_static(text.as_bytes())).unwrap();
    assert_eq!(message.bytes(), text.replace(['\r', '\n'], " ").as_bytes());
    assert_eq!(message.method_name(), "a\n");
}

#[test]
fn bounds_the_depth() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"x":{open}{close}}}}}"#)
    };
    assert!(parse(nested(126)).is_ok());
    assert!(is_not_json(nested(127).as_bytes()));
}

#[test]
fn refuses_other_encodings_and_what_trails() {
    let good = r#"{"jsonrpc":"2.0","method":"a"}"#;
    let wide: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(is_not_json(&wide));
    for text in [
        format!("\u{feff}{good}"),
        format!("{good}x"),
        format!("{good}{good}"),
        format!("{good}\n{good}"),
        format!("{good}\0"),
        String::new(),
        " ".to_owned(),
    ] {
        assert!(is_not_json(text.as_bytes()), "{text}");
    }
    assert!(is_not_json(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}"));
}

/// Found by the fuzz target `envelope`: broken JSON after an invalid beginning.
#[test]
fn broken_json_is_told_as_such_however_invalid_its_beginning_is() {
    for text in [
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0","#,
        r#"{"jsonrpc":"2.0","METHOD":"a"}x"#,
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0"}{}"#,
        r#""text" x"#,
        "1 2",
        "[] {}",
    ] {
        assert!(is_not_json(text.as_bytes()), "{text}");
    }
    assert!(is_invalid(r#"{"jsonrpc":"2.0","METHOD":"a"} "#));
}

#[test]
fn ids_are_kept_as_they_were_written() {
    for id in [
        "1",
        "1.0",
        "-7",
        "\"1\"",
        r#""\u0061""#,
        "18446744073709551616",
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id": {id} ,"method":"a"}}"#);
        assert_eq!(parse(text).unwrap().id(), Some(id.as_bytes()));
    }
}

#[test]
fn a_key_that_stands_twice_is_refused_also_when_escaped() {
    let bad = [
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0","method":"a"}"#,
        r#"{"jsonrpc":"2.0","method":"a","method":"b"}"#,
        r#"{"jsonrpc":"2.0","method":"a","m\u0065thod":"b"}"#,
        r#"{"jsonrpc":"2.0","method":"a","id":1,"\u0069d":2}"#,
        r#"{"jsonrpc":"2.0","method":"a","params":{},"p\u0061rams":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","n\u0061me":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"uri":"a","uri":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"cursor":"a","curso\u0072":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{},"\u005fmeta":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":1,"_meta":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"ref":{},"r\u0065f":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"ref":{"name":"a","n\u0061me":"b"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"ref":{"uri":"a","uri":"b"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"ref":{"type":"a","type":"b"}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{},"argument\u0073":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"requestState":"a","requestState":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"inputResponses":{},"inputResponses":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":1,"progress\u0054oken":2}}}"#,
    ];
    for text in bad {
        assert!(is_invalid(text), "{text}");
    }
}

#[test]
fn a_key_that_imitates_another_is_refused() {
    for key in ["METHOD", "Id", "paramſ", "Jsonrpc", "RESULT", r"\u0045rror"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","{key}":{{}}}}"#);
        assert!(is_invalid(&text), "{text}");
    }
    for key in ["Name", "NAME", "URI", "_Meta", r"n\u0041me"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"{key}":1}}}}"#);
        assert!(is_invalid(&text), "{text}");
    }
    for key in ["Name", "URI", "TYPE", r"tY\u0070e"] {
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"ref":{{"{key}":1}}}}}}"#);
        assert!(is_invalid(&text), "{text}");
    }
    assert!(is_invalid(
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"Ref":{}}}"#
    ));
    for capabilities in [
        r#""capabilities":{},"capabilities":{"elicitation":{}}"#,
        r#""Capabilities":{},"capabilities":{}"#,
        r#""capabilities":{"elicitation":{},"Elicitation":{}}"#,
        r#""capabilities":{"roots":{},"r\u006fots":null}"#,
        r#""capabilities":{},"ProtocolVersion":"2025-06-18""#,
    ] {
        let params = format!(r#"{{"protocolVersion":"2025-11-25",{capabilities}}}"#);
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#);
        assert!(is_invalid(&text), "{text}");
    }
    let capabilities = r#"{"elicitation":{"form":{},"form":{}},"mine":1,"Mine":2,"mine":3}"#;
    let known = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"capabilities":{capabilities}}}}}"#
    );
    assert!(parse(&*known).is_ok());
    let harmless = r#"{"jsonrpc":"2.0","id":1,"method":"a","x":1,"params":{"arguments":{"Name":1,"name":2,"name":3}}}"#;
    assert!(parse(harmless).is_ok());
}

#[test]
fn finds_what_the_gateway_acts_on() {
    let text = r#"{"params":{"name":"\u0061b","task":{},"taskId":"t","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"r"},"progressToken":7}},"id":1,"method":"tools\/call","jsonrpc":"2.0"}"#;
    let message = parse(text).unwrap();
    assert_eq!(message.method(), Method::ToolsCall);
    assert_eq!(message.method_name(), "tools/call");
    assert_eq!(message.name().as_deref(), Some("ab"));
    assert!(message.wants_task() && !message.is_modern());
    assert_eq!(message.task_id(), Some(&b"\"t\""[..]));
    assert_eq!(message.related_task(), Some(&b"\"r\""[..]));
    let token = message.meta_progress_token().unwrap();
    assert_eq!(token.of(message.bytes()), b"7");
    for key in meta::MODERN_KEYS {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"_meta":{{"{key}":1}}}}}}"#
        );
        let is_modern = parse(text).unwrap().is_modern();
        assert_eq!(is_modern, key == meta::VERSION, "{key}");
    }
}

#[test]
fn batches_have_bounds_and_their_items_stand_alone() {
    let one = r#"{"jsonrpc":"2.0","method":"a"}"#;
    let body = |text: String| Body::parse(text.into()).map_err(|rejected| rejected.refusal);
    let of = |count: usize| format!("[{}]", vec![one; count].join(","));
    let invalid = |text: &str| matches!(body(text.to_owned()), Err(Refusal::Invalid(_)));
    assert!(invalid("[]") && invalid(" [ ] ") && invalid(&of(101)));
    assert!(matches!(body(of(100)), Ok(Body::Batch(items)) if items.len() == 100));
    assert!(matches!(body(one.to_owned()), Ok(Body::One(_))));
    let mixed = body(format!("\n[{one}, [{one}], 5, {{}}, {one}]\n"));
    let Ok(Body::Batch(items)) = mixed else {
        panic!("{mixed:?}");
    };
    let fine: Vec<_> = items.iter().map(Result::is_ok).collect();
    assert_eq!(fine, [true, false, false, false, true]);
    for text in [
        format!("[{one}"),
        format!("[{one},]"),
        format!("{}x", of(1)),
    ] {
        assert!(matches!(body(text), Err(Refusal::NotJson(_))));
    }
}

#[test]
fn line_ends_become_blanks_and_spans_stay_true() {
    let text =
        "{\r\n\"jsonrpc\":\"2.0\",\n\"id\":\n7,\"method\":\"a\",\"params\":{\"name\":\r\"b\"}}";
    let message = parse(text).unwrap();
    assert_eq!(message.bytes().len(), text.len());
    assert!(!message.bytes().iter().any(|byte| b"\r\n".contains(byte)));
    assert_eq!(message.id(), Some(&b"7"[..]));
    assert_eq!(message.name().as_deref(), Some("b"));
    for end in ["\n", "\r"] {
        let text = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"a{end}b\"}}");
        assert!(is_not_json(text.as_bytes()));
    }
}

fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u32>().prop_map(|number| format!("{number}.0")),
        "\\PC{0,20}".prop_map(|text| serde_json::Value::from(text).to_string()),
    ]
}

proptest! {
    #[test]
    fn splicing_tokens_changes_nothing_else(
        id in token(), progress in token(), new_id: u64, new_progress: u64, text in "\\PC{0,40}",
    ) {
        let text = serde_json::Value::from(text);
        let request = format!(
            "{{\"params\":{{\"name\":{text},\"_meta\":{{\"progressToken\":{progress},\"k\":{text}}}}},\n\"id\":{id},\"jsonrpc\":\"2.0\",\"method\":\"tools/call\"}}"
        );
        let message = parse(request.as_str()).unwrap();
        prop_assert_eq!(message.id(), Some(id.as_bytes()));
        let (new_id, new_progress) = (new_id.to_string(), new_progress.to_string());
        let mut cuts: Vec<(Span, &[u8])> = vec![
            (message.id_span().unwrap(), new_id.as_bytes()),
            (message.meta_progress_token().unwrap(), new_progress.as_bytes()),
        ];
        cuts.sort_by_key(|(span, _)| span.start());
        let mut out = BytesMut::new();
        message.splice(&mut out, &cuts);
        let again = Message::parse(out.freeze()).unwrap();
        prop_assert_eq!(again.id(), Some(new_id.as_bytes()));
        let mut expected: serde_json::Value = serde_json::from_str(&request).unwrap();
        expected["id"] = serde_json::from_str(&new_id).unwrap();
        expected["params"]["_meta"]["progressToken"] =
            serde_json::from_str(&new_progress).unwrap();
        let found: serde_json::Value = serde_json::from_slice(again.bytes()).unwrap();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        members in "[\\[{]\"(jsonrpc|id|method|params)\":[\\[{}\\]\",:0-9a\\\\\n]{0,40}",
    ) {
        let _ = Body::parse(bytes.into());
        let _ = Body::parse(members.into_bytes().into());
    }
}

#[test]
fn a_message_that_is_kept_leaves_the_buffer_of_its_connection() {
    for length in [100, 5000] {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"x":"{}"}}}}"#,
            "a".repeat(length)
        );
        let mut buffer = BytesMut::from(&*text);
        let message = Message::parse(buffer.split().freeze()).unwrap().kept();
        assert!(buffer.try_reclaim(text.len()));
        assert_eq!(message.bytes(), text.as_bytes());
    }
}
