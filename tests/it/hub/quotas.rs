//! Quotas of tenants and principals, and `http.per_address`.

use std::time::Duration;

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    gauges::calls_stay_quick,
    harness::{
        Events, Legacy, NEWEST, Session, body, child, client, json_of, last, opening, text_of,
        tool_call, until, within,
    },
    modern::{Modern, asked},
    served::Served,
};

/// Two tenants, `a` with `quotas` and `b` without, each with a shared child as `main`.
async fn served(quotas: Value) -> Served {
    let server = json!({"command": child(), "isolation": "tenant"});
    let tenant = |quotas: Value| json!({"auth": {"mode": "none"}, "quotas": quotas, "servers": {"main": server}});
    let tenants = json!({"a": tenant(quotas), "b": tenant(json!({}))});
    Served::start(json!({}), tenants).await
}

fn header<'r>(response: &'r Response, name: &str) -> &'r str {
    let value = response.headers().get(name);
    value
        .unwrap_or_else(|| panic!("no {name}: {response:?}"))
        .to_str()
        .unwrap()
}

/// Asserts a 429 with `Retry-After` and the `RateLimit` fields of the limit `name`.
async fn assert_limited(response: Response, name: &str, bound: u64, what: &str) {
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{name}");
    assert!(header(&response, "retry-after").parse::<u64>().unwrap() > 0);
    let (policy, left) = (
        header(&response, "ratelimit-policy"),
        header(&response, "ratelimit"),
    );
    assert!(
        policy.starts_with(&format!("\"{name}\";q={bound}")),
        "{policy}"
    );
    assert!(left.starts_with(&format!("\"{name}\";r=0")), "{left}");
    let error = json_of(response).await;
    assert_eq!(
        error["error"],
        json!({"code": -31004, "message": what}),
        "{error}"
    );
    // What the head decides is refused before the body is read.
    assert!(error["id"].is_number() || error["id"].is_null(), "{error}");
}

/// The number of refusals by `name`.
async fn limited(gateway: &Served, name: &str) -> u64 {
    let text = gateway.ops("/metrics").await;
    let start = format!("lockgate_limited_total{{limit=\"{name}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |count| count.parse().unwrap())
}

async fn ping(session: &Session) -> Response {
    session
        .post(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
        .await
}

/// Sends requests until one is 429.
async fn refusal(ask: impl AsyncFn() -> Response) -> Response {
    within("a refusal", async {
        loop {
            let response = ask().await;
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                return response;
            }
        }
    })
    .await
}

#[tokio::test]
async fn requests_beyond_the_rate_of_a_tenant_are_refused_and_cost_no_other() {
    let gateway = served(json!({"requests_per_second": 50})).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("b", "main").await,
    );
    let began = Instant::now();
    let (mut taken, mut refused) = (0, Vec::new());
    let asking = async {
        while refused.len() < 200 {
            let response = ping(&one).await;
            match response.status() {
                StatusCode::OK => taken += 1,
                _ => refused.push(response),
            }
        }
    };
    within("refusals", asking).await;
    // The burst of a second, the rate since then, and one allotment granted in advance.
    let most = 50.0 * (1.0 + began.elapsed().as_secs_f64()) + 10.0;
    assert!(f64::from(taken) <= most, "{taken} in {:?}", began.elapsed());
    assert!(taken >= 40, "{taken}");
    let count = refused.len() as u64;
    for response in refused.into_iter().take(5) {
        assert_limited(response, "requests", 50, "requests of the tenant").await;
    }
    assert!(limited(&gateway, "requests").await >= count);
    let attacked = calls_stay_quick(&two, async || {
        for _ in 0..50 {
            ping(&one).await;
        }
    });
    attacked.await;
    until("the next second", || async {
        ping(&one).await.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn a_burst_within_the_rate_passes_and_little_left_is_announced() {
    let gateway = served(json!({"requests_per_second": 100})).await;
    let one = gateway.session("a", "main").await;
    let all = futures_util::future::join_all((0..95).map(|_| ping(&one))).await;
    let mut told = 0;
    for response in &all {
        assert_eq!(response.status(), StatusCode::OK);
        if response.headers().contains_key("ratelimit") {
            told += 1;
            assert_eq!(
                header(response, "ratelimit-policy"),
                "\"requests\";q=100;w=1"
            );
            let left = header(response, "ratelimit");
            let left = left.strip_prefix("\"requests\";r=").unwrap();
            let left = left.strip_suffix(";t=1").unwrap();
            assert!(left.parse::<u64>().unwrap() < 10, "{left}");
        }
    }
    assert!(told < all.len(), "{told}");
}

#[tokio::test]
async fn a_principal_has_its_own_part() {
    let quotas = json!({"principal": {"requests_per_second": 5, "sessions": 2}});
    let gateway = served(quotas).await;
    let one = gateway.session("a", "main").await;
    let refused = refusal(async || ping(&one).await).await;
    assert_limited(
        refused,
        "principal_requests",
        5,
        "requests of the principal",
    )
    .await;
    let beyond = async || {
        let stranger = gateway.stranger("a", "main");
        let response = stranger.post(&opening(NEWEST)).await;
        let text = body(response).await;
        text.contains("sessions of the principal")
    };
    until("the second session and no third", beyond).await;
    assert_eq!(limited(&gateway, "sessions").await, 0);
}

#[tokio::test]
async fn sessions_beyond_the_quota_are_refused_until_one_ends() {
    let gateway = served(json!({"sessions": 2})).await;
    let (one, _two) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    let stranger = gateway.stranger("a", "main");
    for _ in 0..3 {
        let response = stranger.post(&opening(NEWEST)).await;
        assert!(!response.headers().contains_key("mcp-session-id"));
        assert_limited(response, "sessions", 2, "sessions of the tenant").await;
    }
    let url = format!("{}/t/a/main/sse", gateway.origin());
    let request = client()
        .get(url)
        .header("Accept", "text/event-stream")
        .send();
    let response = within("a response", request).await.unwrap();
    assert_limited(response, "sessions", 2, "sessions of the tenant").await;
    gateway.session("b", "main").await;
    one.delete().await;
    until("a place", || async {
        stranger.post(&opening(NEWEST)).await.status() == StatusCode::OK
    })
    .await;
    assert_eq!(limited(&gateway, "sessions").await, 4);
}

/// A failed start frees its place among the sessions.
#[tokio::test]
async fn a_failed_start_leaves_no_session_behind() {
    let servers = json!({"main": {"command": "/bin/false"}});
    let tenant = json!({"auth": {"mode": "none"}, "quotas": {"sessions": 1}, "servers": servers});
    let gateway = Served::start(json!({}), json!({"a": tenant})).await;
    for _ in 0..3 {
        until("an answer other than 429", || async {
            let response = gateway.stranger("a", "main").post(&opening(NEWEST)).await;
            response.status() == StatusCode::OK
        })
        .await;
    }
}

#[tokio::test]
async fn calls_beyond_the_quota_are_refused_before_anything_is_sent() {
    let gateway = served(json!({"calls": 2})).await;
    let mut one = gateway.stranger("a", "main");
    one.initialize("2025-03-26").await;
    let (first, second) = (one.again(), one.again());
    let hanging =
        tokio::spawn(async move { first.post(&tool_call(json!("h"), "hang", json!({}))).await });
    let sleeping = tokio::spawn(async move { second.call("sleep", json!({"ms": 1500})).await });
    until("both calls", || async {
        gateway
            .children()
            .await
            .iter()
            .any(|child| child["calls"] == 2)
    })
    .await;
    for session in [&one, &gateway.session("a", "main").await] {
        let response = session.begin("echo", json!({})).await;
        assert_limited(response, "calls", 2, "calls of the tenant").await;
    }
    // Pings and notifications are not calls.
    assert_eq!(ping(&one).await.status(), StatusCode::OK);
    one.notify("notifications/roots/list_changed", json!({}))
        .await;
    let other = gateway.session("b", "main").await;
    assert_eq!(other.text("echo", json!({"text": "b"})).await, "b");
    // A call frees its place at its end, by an answer or by a cancellation.
    one.notify("notifications/cancelled", json!({"requestId": "h"}))
        .await;
    assert_eq!(hanging.await.unwrap().status(), StatusCode::OK);
    assert_eq!(text_of(&sleeping.await.unwrap()), "slept");
    assert_eq!(one.text("echo", json!({"text": "a"})).await, "a");
    // A batch gets places for all of its calls, or for none.
    let batch = |count: usize| {
        let call = |id: usize| tool_call(json!(id), "echo", json!({"text": "x"}));
        Value::Array((0..count).map(call).collect())
    };
    let response = one.post(&batch(3)).await;
    assert_limited(response, "calls", 2, "calls of the tenant").await;
    assert_eq!(one.post(&batch(2)).await.status(), StatusCode::OK);
    assert_eq!(limited(&gateway, "calls").await, 3);
}

/// A call whose client is gone keeps its place until the call ends.
#[tokio::test]
async fn a_client_that_goes_away_keeps_no_place_for_ever() {
    let gateway = served(json!({"calls": 1, "streams": 1})).await;
    let one = gateway.session("a", "main").await;
    let twin = one.again();
    let call = tokio::spawn(async move { twin.call("sleep", json!({"ms": 400})).await });
    until("the call", || async {
        gateway.children().await[0]["calls"] == 1
    })
    .await;
    call.abort();
    until("its place", || async {
        one.begin("echo", json!({"text": "x"})).await.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn streams_beyond_the_quota_are_refused_and_those_that_are_open_go_on() {
    let gateway = served(json!({"streams": 2})).await;
    let one = gateway.session("a", "main").await;
    let mut listener = one.listen().await;
    let old = Legacy::at(gateway.origin(), "/t/a/main").await;
    let refused = one.get(None).await;
    assert_limited(refused, "streams", 2, "streams of the tenant").await;
    let response = one.begin("echo", json!({"text": "x"})).await;
    assert_limited(response, "streams", 2, "streams of the tenant").await;
    // A response that is never a stream does not count.
    let mut plain = one.again();
    plain.accept = "application/json";
    assert_eq!(plain.text("echo", json!({"text": "x"})).await, "x");
    let method = "notifications/tools/list_changed";
    let note = json!({"method": method, "params": {}});
    plain.text("notify", note).await;
    assert_eq!(listener.message().await.unwrap().1["method"], method);
    let other = gateway.session("b", "main").await;
    Events::of(other.get(None).await);
    drop(old);
    until("a place", || async {
        one.get(None).await.status() == StatusCode::OK
    })
    .await;
    assert!(limited(&gateway, "streams").await >= 2);
}

/// It read the list of tools once more, in another session, for which there was no place before the call had ended.
#[tokio::test]
async fn a_retry_needs_no_session_beside_that_of_its_call() {
    let kind = json!({"type": "string", "x-mcp-header": "Kind"});
    let schema = json!({"type": "object", "properties": {"kind": kind}});
    let server = json!({"command": child(), "env": {"CHILD_SCHEMA": schema.to_string()}});
    let tenant = json!({"auth": {"mode": "none"}, "quotas": {"sessions": 1},
        "servers": {"main": server}});
    let gateway = Served::start(json!({}), json!({"a": tenant})).await;
    let client = Modern::at(&format!("{}/t/a/main/mcp", gateway.origin()));
    let client = client.with(json!({"roots": {}}));
    let send = async |message: &Value, field: &str| {
        let request = client.request(message).header("Mcp-Param-Kind", field);
        within("a response", request.send()).await.unwrap()
    };
    // When it asks, the list is so old that it would be read again.
    let call = client.tool("ask", json!({"kind": "roots", "after": 1500}));
    let required = last(send(&call, "roots").await).await;
    let key = asked(&required)[0].0.clone();
    let retry = client.retry(&call, &required, json!({key: {"roots": []}}));
    let refused = send(&retry, "sampling").await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert_eq!(json_of(refused).await["error"]["code"], -32020);
    let answer = last(send(&retry, "roots").await).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

/// It kept the place of its connection for as long as its client might answer, also behind its own end.
#[tokio::test]
async fn a_parked_call_takes_no_stream_and_its_retry_does() {
    let tenant = json!({"auth": {"mode": "none"}, "quotas": {"streams": 1},
        "servers": {"main": {"command": child()}}});
    let gateway = Served::start(json!({}), json!({"a": tenant})).await;
    let client = Modern::at(&format!("{}/t/a/main/mcp", gateway.origin()));
    let client = client.with(json!({"roots": {}}));
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    let key = asked(&required)[0].0.clone();
    let retry = client.retry(&call, &required, json!({key: {"roots": []}}));
    let (_, listener) = client.listen(json!({"toolsListChanged": true})).await;
    let refused = client.post(&retry).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(listener);
    // It waits still.
    let retried = async {
        loop {
            let response = client.post(&retry).await;
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return last(response).await;
            }
        }
    };
    let answer = within("a place", retried).await;
    assert!(text_of(&answer).contains("roots"), "{answer}");
}

#[tokio::test]
async fn bytes_out_slow_streams_down_and_lose_nothing() {
    let server = json!({"command": child(), "isolation": "principal"});
    let tenant = |quotas: Value| json!({"auth": {"mode": "none"}, "quotas": quotas, "servers": {"main": server}});
    let tenants = json!({"a": tenant(json!({"bytes_out": "256KiB"})), "b": tenant(json!({}))});
    let gateway = Served::start(json!({}), tenants).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("b", "main").await,
    );
    let mut listener = one.listen().await;
    let began = Instant::now();
    // 130 events of 8 KiB: a second's quota and one page of the log at once, the rest at the rate.
    let burst = json!({"n": 130, "text": "t".repeat(8 << 10)});
    one.text("burst", burst).await;
    for n in 0..130 {
        let (_, heard) = listener.message().await.unwrap();
        assert_eq!(heard["params"]["data"]["n"], n, "in order, none lost");
    }
    let least = Duration::from_millis(1200);
    assert!(began.elapsed() > least, "{:?}", began.elapsed());
    // A large answer is written as a whole; then requests are refused until the rate catches up.
    let big = async || {
        let response = one.begin("big", json!({"bytes": 600 << 10})).await;
        response.status() == StatusCode::OK && text_of(&last(response).await).len() == 600 << 10
    };
    let refused = loop {
        let began = Instant::now();
        until("room for a large answer", &big).await;
        let next = ping(&one).await;
        // The rate takes 1.3 s for it; a busy machine may read it more slowly.
        if next.status() != StatusCode::OK || began.elapsed() < Duration::from_millis(1300) {
            break next;
        }
    };
    assert_limited(refused, "bytes_out", 256 << 10, "bytes out of the tenant").await;
    assert_eq!(two.text("big", json!({"bytes": 1000})).await.len(), 1000);
    until("the bytes", || async {
        ping(&one).await.status() == StatusCode::OK
    })
    .await;
}

/// It comes with the head of the response, which says whether it is a stream.
#[tokio::test]
async fn the_first_message_of_a_modern_stream_counts_as_bytes_out() {
    let tenant = json!({"auth": {"mode": "none"}, "quotas": {"bytes_out": "256KiB"},
        "servers": {"main": {"command": child()}}});
    let gateway = Served::start(json!({}), json!({"a": tenant})).await;
    let mut client = Modern::at(&format!("{}/t/a/main/mcp", gateway.origin()));
    client.level = Some("info");
    let burst = json!({"n": 1, "text": "t".repeat(2 << 20)});
    let mut stream = client.post(&client.tool("burst", burst)).await;
    assert_eq!(stream.status(), StatusCode::OK);
    assert!(stream.chunk().await.unwrap().is_some());
    // The rate takes 7 s for it.
    let next = client.post(&client.tool("echo", json!({}))).await;
    assert_eq!(next.status(), StatusCode::TOO_MANY_REQUESTS);
    let policy = header(&next, "ratelimit-policy");
    assert!(policy.starts_with("\"bytes_out\""), "{policy}");
    drop(stream);
}

#[tokio::test]
async fn children_beyond_the_quota_of_a_tenant_are_refused() {
    let server = json!({"command": child()});
    let tenant = |quotas: Value| json!({"auth": {"mode": "none"}, "quotas": quotas, "servers": {"main": server}});
    let tenants = json!({"a": tenant(json!({"children": 1})), "b": tenant(json!({}))});
    let gateway = Served::start(json!({}), tenants).await;
    let one = gateway.session("a", "main").await;
    let response = gateway.stranger("a", "main").post(&opening(NEWEST)).await;
    assert_limited(response, "children", 1, "children of the tenant").await;
    let two = gateway.session("b", "main").await;
    assert_eq!(two.text("echo", json!({"text": "b"})).await, "b");
    assert_eq!(one.text("echo", json!({"text": "a"})).await, "a");
    assert_eq!(limited(&gateway, "children").await, 1);
}

#[tokio::test]
async fn no_child_starts_while_those_of_its_tenant_take_too_much_memory() {
    let server = json!({"command": child()});
    let tenant = |quotas: Value| json!({"auth": {"mode": "none"}, "quotas": quotas, "servers": {"main": server}});
    let tenants = json!({"a": tenant(json!({"memory": "90MiB"})), "b": tenant(json!({}))});
    let gateway = Served::start(json!({}), tenants).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("b", "main").await,
    );
    // Two idle children do not exceed the quota.
    let other = gateway.session("a", "main").await;
    let hold = async |session: &Session, bytes: u64| {
        session.text("hold", json!({"bytes": bytes})).await;
    };
    hold(&two, 100 << 20).await;
    hold(&one, 50 << 20).await;
    hold(&other, 50 << 20).await;
    // Sessions from before the measurement are ended, since they would fill the freed quota below.
    let refused = refusal(async || {
        let mut session = gateway.stranger("a", "main");
        let response = session.post(&opening(NEWEST)).await;
        let id = response.headers().get("mcp-session-id");
        session.id = id.map(|id| id.to_str().unwrap().to_owned());
        if session.id.is_some() {
            assert_eq!(session.delete().await.status(), StatusCode::NO_CONTENT);
        }
        response
    });
    let refused = refused.await;
    assert_limited(refused, "memory", 90 << 20, "memory of the tenant").await;
    assert!(limited(&gateway, "memory").await >= 1);
    // Running children and other tenants are not affected.
    assert_eq!(one.text("echo", json!({"text": "a"})).await, "a");
    gateway.session("b", "main").await;
    hold(&other, 0).await;
    until("a child", || async {
        let response = gateway.stranger("a", "main").post(&opening(NEWEST)).await;
        response.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn an_address_is_limited_before_authentication_and_probes_never_are() {
    let server = json!({"command": child()});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"main": server}}});
    let config = json!({"http": {"per_address.requests_per_second": 5}});
    let gateway = Served::start(config, tenants).await;
    let get = async |path: &str| {
        let request = client().get(format!("{}{path}", gateway.origin())).send();
        within("a response", request).await.unwrap()
    };
    let refused = refusal(async || get("/t/nobody/nothing/mcp").await).await;
    assert_limited(refused, "address_requests", 5, "requests of the address").await;
    until("a preflight is refused", || async {
        let asked = client()
            .request(
                Method::OPTIONS,
                format!("{}/t/a/main/mcp", gateway.origin()),
            )
            .header("Access-Control-Request-Method", "POST")
            .send();
        let answer = within("a response", asked).await.unwrap();
        answer.status() == StatusCode::TOO_MANY_REQUESTS
    })
    .await;
    for _ in 0..20 {
        assert_eq!(get("/livez").await.status(), StatusCode::OK);
    }
    until("the next second", || async {
        last(gateway.stranger("a", "main").post(&opening(NEWEST)).await).await["result"].is_object()
    })
    .await;
    assert!(limited(&gateway, "address_requests").await > 0);
}

/// A tenant at every limit at once delays no other tenant.
#[tokio::test]
async fn a_tenant_at_every_limit_slows_no_other() {
    let quotas = json!({"sessions": 2, "streams": 3, "calls": 2, "bytes_out": "1MiB"});
    let gateway = served(quotas).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("b", "main").await,
    );
    let (_listener, _second) = (one.listen().await, one.listen().await);
    let hanging: Vec<_> = (0..2)
        .map(|_| {
            let mut twin = one.again();
            twin.accept = "application/json";
            tokio::spawn(async move { twin.begin("hang", json!({})).await.status() })
        })
        .collect();
    until("both calls", || async {
        let children = gateway.children().await;
        children.iter().any(|child| child["calls"] == 2)
    })
    .await;
    gateway.session("a", "main").await;
    let stranger = gateway.stranger("a", "main");
    let attack = async || {
        let opened = stranger.post(&opening(NEWEST)).await.status();
        let called = one.begin("echo", json!({})).await.status();
        let (first, second) = (one.get(None).await, one.get(None).await);
        // One of the two may have got a place.
        let attached = [first.status(), second.status()];
        (
            opened,
            called,
            attached.contains(&StatusCode::TOO_MANY_REQUESTS),
        )
    };
    let many = StatusCode::TOO_MANY_REQUESTS;
    for outcome in calls_stay_quick(&two, attack).await {
        assert_eq!(outcome, (many, many, true));
    }
    for call in hanging {
        call.abort();
    }
}
