//! Shares of callers in the children of their tenant.

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    support::{
        harness::{NEWEST, Session, child, json_of, opening, tool_call, until, within},
        modern::{Modern, asked},
        served::Served,
    },
};

/// A tenant whose three callers share so many children; the keys of the callers.
async fn colleagues(children: u64) -> (Served, [String; 3]) {
    let keys = ["ada", "bob", "eve"].map(|name| (name, key()));
    let of = |(name, (_, hash)): &(&str, (String, String))| {
        let key = json!({"hash": hash, "subject": name, "servers": ["*"]});
        ((*name).to_owned(), key)
    };
    let declared: serde_json::Map<_, _> = keys.iter().map(of).collect();
    let tenants = json!({"a": {"auth": {"mode": "keys"}, "api_keys": declared,
        "quotas": {"children": children}, "servers": {"main": {"command": child()}}}});
    // A session is out of use after four times this.
    let config = json!({"stream": {"keep_alive": "500ms"}});
    let gateway = Served::start(config, tenants).await;
    (gateway, keys.map(|(_, (key, _))| key))
}

fn modern(gateway: &Served, key: &str, capabilities: Value) -> Modern {
    let mut client = Modern::at(&gateway.stranger("a", "main").url).with(capabilities);
    client.token = Some(key.to_owned());
    client
}

fn stranger(gateway: &Served, key: &str) -> Session {
    Session::at(bearer(key), gateway.stranger("a", "main").url)
}

async fn session(gateway: &Served, key: &str) -> Session {
    let mut session = stranger(gateway, key);
    session.initialize(NEWEST).await;
    session
}

/// The status of a call.
async fn status(client: &Modern) -> StatusCode {
    let call = client.tool("counter", json!({}));
    client.post(&call).await.status()
}

/// Each set of capabilities has a child of its own, so that one client had all of them for `idle`.
#[tokio::test]
async fn a_caller_with_many_capabilities_leaves_children_to_its_colleagues() {
    let (gateway, [ada, bob, eve]) = colleagues(3).await;
    for n in 0..3 {
        let client = modern(&gateway, &ada, json!({"experimental": {n.to_string(): {}}}));
        assert_eq!(status(&client).await, StatusCode::OK);
    }
    assert_eq!(gateway.children().await.len(), 3, "nobody else wants them");
    let [bob, eve] = [&bob, &eve].map(|key| modern(&gateway, key, json!({})));
    assert_eq!(status(&bob).await, StatusCode::OK);
    assert_eq!(status(&eve).await, StatusCode::OK);
    assert_eq!(gateway.children().await.len(), 3);
    // Each has one: none has more than another.
    let again = modern(&gateway, &ada, json!({"experimental": {"other": {}}}));
    assert_eq!(status(&again).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        bob.text("counter", json!({})).await,
        "2",
        "still the same child"
    );
}

#[tokio::test]
async fn parked_calls_give_way_after_spare_children_and_calls_in_flight_never() {
    let (gateway, [ada, bob, eve]) = colleagues(4).await;
    let asks = || json!({"elicitation": {}});
    let client = modern(&gateway, &ada, asks());
    let mut parked = Vec::new();
    for _ in 0..2 {
        let call = client.tool("ask", json!({"kind": "elicitation", "message": "Who?"}));
        let required = client.answer(&call).await;
        parked.push((call, required));
    }
    let spare = modern(&gateway, &ada, json!({"experimental": {}}));
    assert_eq!(spare.text("counter", json!({})).await, "1");
    let busy = modern(&gateway, &ada, json!({"experimental": {"busy": {}}}));
    let call = busy.tool("sleep", json!({"ms": 60_000}));
    let slow = tokio::spawn(busy.request(&call).send());
    until("the call in flight", || async {
        let children = gateway.children().await;
        children.iter().filter(|one| one["calls"] == 1).count() == 3
    })
    .await;
    let colleagues = [&bob, &eve].map(|key| modern(&gateway, key, json!({})));
    for colleague in &colleagues {
        assert_eq!(status(colleague).await, StatusCode::OK);
    }
    // The spare one went first, and the older of the parked ones then.
    let retried = async |(call, required): &(Value, Value)| {
        let answer = json!({asked(required)[0].0.clone(): {"action": "decline"}});
        let retry = client.retry(call, required, answer);
        json_of(
            within("an answer", client.request(&retry).send())
                .await
                .unwrap(),
        )
        .await
    };
    assert_eq!(retried(&parked[0]).await["error"]["code"], -31001);
    let second = retried(&parked[1]).await;
    assert_eq!(second["result"]["resultType"], "complete", "{second}");
    let children = gateway.children().await;
    let in_flight = children.iter().filter(|one| one["calls"] == 1);
    assert_eq!(in_flight.count(), 1, "the call goes on");
    slow.abort();
}

#[tokio::test]
async fn a_session_gives_way_once_it_is_out_of_use_and_continues_later() {
    let (gateway, [ada, bob, _]) = colleagues(2).await;
    let listening = session(&gateway, &ada).await;
    let events = listening.listen().await;
    let quiet = session(&gateway, &ada).await;
    assert_eq!(quiet.text("counter", json!({})).await, "1");
    let opened = async || {
        let response = stranger(&gateway, &bob).post(&opening(NEWEST)).await;
        response.status()
    };
    assert_eq!(
        opened().await,
        StatusCode::TOO_MANY_REQUESTS,
        "both are in use"
    );
    until("one that is out of use", async || {
        opened().await == StatusCode::OK
    })
    .await;
    assert_eq!(
        listening.text("counter", json!({})).await,
        "1",
        "its client listens"
    );
    // Its session is there, and gets another child as soon as there is one.
    let call = tool_call(json!(9), "counter", json!({}));
    let refused = quiet.post(&call).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(listening.delete().await.status(), StatusCode::NO_CONTENT);
    drop(events);
    until("a child again", async || {
        quiet.call("counter", json!({})).await["result"].is_object()
    })
    .await;
}

/// Tenants without authentication, which share so many children of the gateway.
async fn neighbours(children: u64, wait: &str, warm: u64) -> Served {
    let tenant = |warm: u64| json!({"auth": {"mode": "none"}, "servers": {"main": {"command": child(), "warm": warm}}});
    let tenants = json!({"a": tenant(warm), "b": tenant(0), "c": tenant(0)});
    let config = json!({"spawn": {"children": children, "wait": wait}});
    Served::start(config, tenants).await
}

/// The children of a tenant.
async fn children_of(gateway: &Served, tenant: &str) -> usize {
    let children = gateway.children().await;
    children
        .iter()
        .filter(|one| one["tenant"] == tenant)
        .count()
}

#[tokio::test]
async fn a_tenant_with_all_children_of_the_gateway_gives_some_up_for_another() {
    let gateway = neighbours(4, "1s", 0).await;
    let listening = gateway.session("a", "main").await;
    let events = listening.listen().await;
    let mut sessions = vec![listening];
    for _ in 0..3 {
        sessions.push(gateway.session("a", "main").await);
    }
    let opened = async |tenant: &str| {
        let response = gateway
            .stranger(tenant, "main")
            .post(&opening(NEWEST))
            .await;
        let is_refused = response.status() == StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(is_refused, response.headers().contains_key("retry-after"));
        response.status()
    };
    assert_eq!(opened("a").await, StatusCode::SERVICE_UNAVAILABLE);
    let others = [
        gateway.session("b", "main").await,
        gateway.session("b", "main").await,
    ];
    for tenant in ["a", "b"] {
        assert_eq!(children_of(&gateway, tenant).await, 2);
        assert_eq!(opened(tenant).await, StatusCode::SERVICE_UNAVAILABLE);
    }
    // Its sessions are there, and each gets another child as soon as there is one.
    for other in others {
        other.delete().await;
    }
    for session in &sessions {
        until("a child again", async || {
            session.call("counter", json!({})).await["result"].is_object()
        })
        .await;
    }
    drop(events);
}

#[tokio::test]
async fn calls_in_flight_keep_another_tenant_out_for_their_time_only() {
    let gateway = neighbours(2, "30s", 0).await;
    let sessions = [
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    ];
    let [one, two] = &sessions;
    let call = || json!({"ms": 1500});
    let other = async {
        until("both in use", async || {
            let children = gateway.children().await;
            children.iter().filter(|one| one["calls"] == 1).count() == 2
        })
        .await;
        let other = within("a child", gateway.session("b", "main")).await;
        other.text("echo", json!({"text": "b"})).await
    };
    let said = tokio::join!(one.text("sleep", call()), two.text("sleep", call()), other);
    assert_eq!(said, ("slept".into(), "slept".into(), "b".into()));
}

#[tokio::test]
async fn tenants_that_come_at_once_get_a_part_each() {
    let gateway = neighbours(6, "30s", 0).await;
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(gateway.session("a", "main").await);
    }
    let come = ["b", "c", "b", "c"].map(|tenant| gateway.session(tenant, "main"));
    let _others = Box::pin(within("four children", join_all(come))).await;
    for tenant in ["a", "b", "c"] {
        assert_eq!(children_of(&gateway, tenant).await, 2, "{tenant}");
    }
}

#[tokio::test]
async fn warm_children_give_way_to_another_tenant() {
    let gateway = neighbours(3, "30s", 3).await;
    until("all are warm", async || {
        children_of(&gateway, "a").await == 3
    })
    .await;
    let other = within("a child", gateway.session("b", "main")).await;
    assert_eq!(other.text("echo", json!({"text": "b"})).await, "b");
    assert_eq!(children_of(&gateway, "a").await, 2);
    let call = gateway.session("a", "main").await;
    assert_eq!(call.text("counter", json!({})).await, "1");
}
