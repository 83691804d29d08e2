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
        initialize_result(b"{}", b"\"2025-11-25\""),
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"unnamed","version":"0"}}"#
    );
}
