use super::super::session_client::*;

#[test]
fn capabilities_lose_the_tasks_of_this_era_alone() {
    for (declared, left) in [
        (
            r#"{"tools":{"listChanged":true}}"#,
            r#"{"tools":{"listChanged":true}}"#,
        ),
        (
            r#"{"extensions":{"io.modelcontextprotocol/tasks":{},"a/b":{"c":1}},"logging":{}}"#,
            r#"{"extensions":{"a/b":{"c":1}},"logging":{}}"#,
        ),
        (
            r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            r#"{"extensions":{}}"#,
        ),
        ("{}", "{}"),
        ("[]", "{}"),
    ] {
        let discovered = format!(r#"{{"capabilities":{declared}}}"#);
        assert_eq!(server_capabilities(discovered.as_bytes()), left.as_bytes());
    }
}

#[test]
fn a_server_that_does_not_name_itself_gets_a_name() {
    assert_eq!(
        initialize_result(b"{}", b"\"2025-11-25\"", false),
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"unnamed","version":"0"}}"#
    );
}

#[test]
fn a_request_says_what_its_session_does_and_nothing_twice() {
    let message = |text: String| Message::parse(text.into()).unwrap();
    let client = ClientMeta::of(&message(
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{"roots":{}}}}"#
            .into(),
    ));
    let fields = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}}"#;
    let call =
        |params: &str| format!(r#"{{"params":{params},"jsonrpc":"2.0","id":2,"method":"m"}}"#);
    for (params, expected) in [
        ("{}", format!(r#"{{"_meta":{{{fields}}}}}"#)),
        (r#"{"_meta":{}}"#, format!(r#"{{"_meta":{{{fields}}}}}"#)),
        (
            r#"{"_meta":{"io.modelcontextprotocol/logLevel":"debug"}}"#,
            format!(r#"{{"_meta":{{{fields}}}}}"#),
        ),
        (
            r#"{"_meta":{"progressToken":1,"io.modelcontextprotocol/clientCapabilities":{},"own":{}}}"#,
            format!(r#"{{"_meta":{{{fields},"progressToken":1,"own":{{}}}}}}"#),
        ),
        (r#"{"_meta":5}"#, r#"{"_meta":5}"#.to_owned()),
    ] {
        let mut line = BytesMut::new();
        client.push(&message(call(params)), None, &mut line);
        assert_eq!(line, call(&expected));
    }
}

/// A server that was told of them answered by a task, and the gateway by an error: the call had begun, and nobody could
/// follow it.
#[test]
fn a_server_is_told_of_no_tasks() {
    let tasks = r#""io.modelcontextprotocol/tasks":{}"#;
    for (declared, told) in [
        (
            format!(r#"{{"roots":{{}},"extensions":{{{tasks},"a/b":{{}}}},"tasks":{{}}}}"#),
            r#"{"roots":{},"extensions":{"a/b":{}}}"#,
        ),
        (
            format!(r#"{{"extensions":{{{tasks}}}}}"#),
            r#"{"extensions":{}}"#,
        ),
        ("{}".to_owned(), "{}"),
    ] {
        let initialize = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"capabilities":{declared}}}}}"#
        );
        let client = ClientMeta::of(&Message::parse(initialize.into()).unwrap());
        let call = Message::parse(Bytes::from_static(
            br#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x"}}"#,
        ));
        let call = call.unwrap();
        for mark in [None, Some(Mark::Bare)] {
            let mut line = BytesMut::new();
            client.push(&call, mark, &mut line);
            let meta = json::get(json::get(&line, "params").unwrap(), "_meta").unwrap();
            assert_eq!(json::get(meta, CLIENT_CAPABILITIES), Some(told.as_bytes()));
        }
    }
}

#[test]
fn older_clients_get_what_they_can_read() {
    let list = |first: &str| format!(r#""tools":[{{"name":"a"{first}}},{{"name":"b"}}]"#);
    for (method, result, expected) in [
        ("tools/list", list(""), list("")),
        (
            "tools/list",
            list(r#","outputSchema":{"type":"object"}"#),
            list(r#","outputSchema":{"type":"object"}"#),
        ),
        (
            "tools/list",
            list(r#","outputSchema":{"type":"array"}"#),
            list(""),
        ),
        (
            "tools/list",
            list(r#","outputSchema":{"anyOf":[]}"#),
            list(""),
        ),
        ("tools/list", list(r#","outputSchema":true"#), list("")),
        (
            "tools/call",
            r#""content":[],"structuredContent":{}"#.into(),
            r#""content":[],"structuredContent":{}"#.into(),
        ),
        (
            "tools/call",
            r#""structuredContent":[1],"content":[]"#.into(),
            r#""content":[]"#.into(),
        ),
        (
            "tools/call",
            r#""content":["structuredContent"],"structuredContent":null"#.into(),
            r#""content":["structuredContent"]"#.into(),
        ),
        (
            "prompts/get",
            r#""structuredContent":[1]"#.into(),
            r#""structuredContent":[1]"#.into(),
        ),
        (
            "tools/list",
            r#""_meta":{"lockgate/cache":{"ttlMs":1}},"tools":[]"#.into(),
            r#""tools":[]"#.into(),
        ),
    ] {
        let answer = |result: &str| Bytes::from(format!(r#"{{"id":1,"result":{{{result}}}}}"#));
        let read = for_session_client(method, answer(&result));
        assert_eq!(read, answer(&expected), "{method} {result}");
        // An error is none that has either.
        let error =
            Bytes::from_static(br#"{"id":1,"error":{"structuredContent":1,"outputSchema":1}}"#);
        assert_eq!(for_session_client(method, error.clone()), error);
    }
}

/// A second request under a key was passed on under another key, and a state that is no string as it was.
#[test]
fn a_result_that_asks_for_no_valid_input_is_none() {
    let answer = |members: &str| {
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"resultType":"input_required",{members}}}}}"#
        );
        ServerAnswer::of(&Message::parse(line.into()).unwrap(), b"1")
    };
    let roots = r#"{"method":"roots/list"}"#;
    for valid in [
        format!(r#""inputRequests":{{"a":{roots},"b":{roots}}}"#),
        r#""inputRequests":{},"requestState":"s""#.to_owned(),
        r#""requestState":"s""#.to_owned(),
        r#""inputRequests":null,"requestState":"s""#.to_owned(),
    ] {
        let read = answer(&valid);
        assert!(matches!(read, ServerAnswer::InputRequired(_)), "{valid}");
    }
    for invalid in [
        format!(r#""inputRequests":{{"a":{roots},"a":{roots}}}"#),
        format!(r#""inputRequests":{{"a":{roots},"\u0061":{roots}}}"#),
        format!(r#""inputRequests":{{"a":{roots}}},"requestState":5"#),
        r#""inputRequests":{}"#.to_owned(),
        r#""inputRequests":[],"requestState":"s""#.to_owned(),
        r#""requestState":null"#.to_owned(),
    ] {
        assert_eq!(answer(&invalid), ServerAnswer::Unknown, "{invalid}");
    }
    let many = |count: usize| {
        let requests: Vec<String> = (0..count).map(|n| format!(r#""{n}":{roots}"#)).collect();
        answer(&format!(r#""inputRequests":{{{}}}"#, requests.join(",")))
    };
    assert!(matches!(many(16), ServerAnswer::InputRequired(_)));
    assert_eq!(many(17), ServerAnswer::TooMuch);
}

/// An acknowledgement of 16 MiB became 250 MB, and was compared with each URI that was asked for.
#[test]
fn an_acknowledgement_leaves_what_it_does_not_name() {
    let uris: [&[u8]; 3] = [br#""a:b""#, br#""a:c""#, br#""a:d""#];
    for (named, left) in [
        ("[]", 3),
        (r#"["a:b","x","a\u003ac","a:b"]"#, 1),
        (r#"["a:d","a:c","a:b","a:b"]"#, 0),
        ("{}", 3),
    ] {
        let line = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"notifications":{{"resourceSubscriptions":{named}}}}}}}"#
        );
        let message = Message::parse(line.into()).unwrap();
        let mut asked = HashSet::from(uris);
        leave_unacknowledged(&message, &mut asked);
        assert_eq!(asked.len(), left, "{named}");
        assert!(left != 1 || asked.contains(uris[2]));
    }
}
