//! API keys that people make for themselves on the account page, and what they are worth.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    auth::external_tokens::bearer,
    cli::commands::stranger,
    oauth::{
        account::{EVE, changed, page_of, sent, set, signed_in},
        pages::{ADA, gateway},
    },
    support::{
        browser::{Browser, Shown},
        harness::{DEADLINE, NEWEST, Session, child, client, until, within},
        oauth_client::{Answer, App, send},
        pair::Pair,
        postgres::Postgres,
        served::Served,
    },
};

/// People may have two keys for 30 days; server `s` has a secret of each person, and `closed` is for eve.
fn allowed() -> Value {
    let slot = json!({"for": "principal", "title": "Token"});
    json!({
        "auth": {"own_keys": {"max": 2, "ttl": "30d", "overlap": "1d"}},
        "servers": {"s": {"command": child(), "secrets": {"TOKEN": slot}}},
    })
}

const DAY: &str = "86400";

/// The fields of a form for a key for one server.
fn make<'f>(label: &'f str, server: &'f str) -> Vec<(&'f str, &'f str)> {
    vec![
        ("do", "make-key"),
        ("label", label),
        (server, "yes"),
        ("life", DAY),
    ]
}

/// The value that a page shows.
fn value_in(page: &Shown) -> String {
    let (_, rest) = page
        .text
        .split_once("<code class=\"key\">")
        .unwrap_or_else(|| panic!("no key: {} {}", page.status, page.text));
    rest.split('<').next().unwrap().to_owned()
}

/// The names of the keys on a page.
pub(crate) fn names_in(page: &Shown) -> Vec<String> {
    let parts = page.text.split("name=\"key\" value=\"").skip(1);
    let names = parts.map(|part| part.split('"').next().unwrap().to_owned());
    names.collect()
}

/// Makes a key with these fields: its value, and the page that shows it.
pub(crate) async fn made(
    browser: &mut Browser,
    page: &Shown,
    fields: &[(&str, &str)],
) -> (String, Shown) {
    let answer = sent(browser, page, fields).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.assert_guarded();
    let value = value_in(&answer);
    assert!(value.starts_with("lgk_") && value.len() == 53, "{value}");
    // It is in the body alone.
    assert_eq!(answer.header("cache-control"), "no-store");
    let fields = answer.headers.values().map(|field| field.to_str().unwrap());
    for field in fields.chain([answer.url.as_str()]) {
        assert!(!field.contains("lgk_"), "{field}");
    }
    (value, answer)
}

async fn status(gateway: &Served, server: &str, key: &str) -> StatusCode {
    let url = format!("{}/t/a/{server}/mcp", gateway.origin());
    let asked = client().get(url).bearer_auth(key);
    let asked = asked.header("Accept", "text/event-stream").send();
    within("a status", asked).await.unwrap().status()
}

/// The status of those who may use a server and do not name a session.
const IN: StatusCode = StatusCode::BAD_REQUEST;

async fn session(gateway: &Served, server: &str, key: &str) -> Session {
    let url = format!("{}/t/a/{server}/mcp", gateway.origin());
    let mut session = Session::at(bearer(key), url);
    session.initialize(NEWEST).await;
    session
}

async fn administered(gateway: &Served, method: Method, path: &str) -> Answer {
    let url = format!("{}/api/v1/tenants/a{path}", gateway.origin());
    send(method, &url, &gateway.administrator(), None).await
}

async fn put(gateway: &Served, path: &str, spec: &Value) {
    let url = format!("{}/api/v1/tenants/a{path}", gateway.origin());
    let answer = send(Method::PUT, &url, &gateway.administrator(), Some(spec)).await;
    assert!(answer.status.is_success(), "{}", answer.body);
}

async fn keys(gateway: &Served) -> Vec<Value> {
    let list = administered(gateway, Method::GET, "/api-keys").await;
    list.body["items"].as_array().unwrap().clone()
}

/// Kind and actor of the audit records about keys, the newest first.
async fn audited(gateway: &Served) -> Vec<(String, String)> {
    let url = format!("{}/api/v1/audit?tenant=a", gateway.origin());
    let records = send(Method::GET, &url, &gateway.administrator(), None).await;
    let items = records.body["items"].as_array().unwrap().iter();
    let of = |item: &Value, name: &str| item[name].as_str().unwrap().to_owned();
    let all = items.map(|item| (of(item, "kind"), of(item, "actor")));
    all.filter(|(kind, _)| kind.starts_with("api_key."))
        .collect()
}

#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn a_person_makes_uses_rotates_and_removes_a_key(config: Value) {
    let mut gateway = gateway(config, allowed()).await;
    let mut browser = Browser::new();
    let page = signed_in(&gateway, &mut browser, &ADA).await;
    for (there, is_there) in [
        ("name=\"server.x\"", true),
        ("name=\"server.closed\"", false),
        ("name=\"scope.files:write\"", true),
        ("<option value=\"2592000\">30 days</option>", true),
        ("90 days", false),
    ] {
        assert_eq!(page.text.contains(there), is_there, "{there}");
    }
    let mut fields = make("The <build> job", "server.x");
    fields.extend([("server.s", "yes"), ("scope.files:write", "yes")]);
    let (first, shown) = made(&mut browser, &page, &fields).await;
    assert!(shown.text.contains("The &#60;build&#62; job") && shown.text.contains("not yet"));
    // The same form again, as by a reload: it counts once, and the value is not shown again.
    let again = changed(&gateway, &mut browser, &page, &fields).await;
    assert!(
        again.text.contains("it counts once") && !again.text.contains("lgk_"),
        "{}",
        again.text
    );
    let [name] = &names_in(&again)[..] else {
        panic!("{}", again.text)
    };
    // It is good for the servers and scopes that were chosen, and acts as the person.
    let page = changed(&gateway, &mut browser, &again, &set("s", "TOKEN", "of ada")).await;
    let at_s = session(&gateway, "s", &first).await;
    let env: Value = serde_json::from_str(&at_s.text("env", json!({})).await).unwrap();
    assert_eq!(
        env["TOKEN"], "of ada",
        "the secrets are those of the person"
    );
    assert_eq!(status(&gateway, "y", &first).await, StatusCode::NOT_FOUND);
    let mut at_x = session(&gateway, "x", &first).await;
    assert_eq!(at_x.text("echo", json!({"text": "hello"})).await, "hello");
    let refused = at_x.begin("delete", json!({})).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    let end = Instant::now() + DEADLINE;
    while !browser
        .open(&page_of(&gateway, "a"))
        .await
        .text
        .contains("in the hour of")
    {
        assert!(Instant::now() < end, "the hour of its use");
    }
    // Another value is the same caller, and the one before is good meanwhile.
    let rotate = [("do", "rotate-key"), ("key", name.as_str())];
    let (second, shown) = made(&mut browser, &page, &rotate).await;
    assert!(second != first && shown.text.contains("The value before is good until"));
    let again = changed(&gateway, &mut browser, &page, &rotate).await;
    assert!(again.text.contains("it counts once"), "{}", again.text);
    assert_eq!(status(&gateway, "x", &first).await, IN);
    at_x.http = bearer(&second);
    assert_eq!(at_x.text("echo", json!({"text": "again"})).await, "again");
    let (third, page) = made(&mut browser, &again, &rotate).await;
    assert_eq!(
        status(&gateway, "x", &first).await,
        StatusCode::UNAUTHORIZED
    );
    for good in [&second, &third] {
        assert_eq!(status(&gateway, "x", good).await, IN);
    }
    // Its end ends open streams, too.
    let mut listener = at_x.listen().await;
    let remove = [("do", "remove-key"), ("key", name.as_str())];
    let page = changed(&gateway, &mut browser, &page, &remove).await;
    assert!(
        page.text.contains("The API key is removed"),
        "{}",
        page.text
    );
    for gone in [&second, &third] {
        assert_eq!(status(&gateway, "x", gone).await, StatusCode::UNAUTHORIZED);
    }
    let began = Instant::now();
    within("the end of the stream", listener.rest()).await;
    assert!(began.elapsed().as_secs() < 5);
    let page = changed(&gateway, &mut browser, &page, &remove).await;
    assert!(page.text.contains("not here any more"), "{}", page.text);
    let by_ada = |kind: &str| (format!("api_key.{kind}"), "ada".to_owned());
    let wanted = ["removed", "changed", "changed", "added"].map(by_ada);
    assert_eq!(audited(&gateway).await, wanted);
    // Nothing has a value of it: neither the database, nor the log.
    let data = gateway.data();
    let log = gateway.end().await;
    for value in [&first, &second, &third] {
        assert!(
            log.iter()
                .all(|line| !line.to_string().contains(value.as_str()))
        );
        for file in std::fs::read_dir(&data).unwrap() {
            let file = file.unwrap().path();
            let bytes = if file.is_file() {
                std::fs::read(&file).unwrap()
            } else {
                Vec::new()
            };
            let mut windows = bytes.windows(value.len());
            assert!(
                !windows.any(|part| part == value.as_bytes()),
                "{}",
                file.display()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_makes_uses_rotates_and_removes_a_key_on_sqlite() {
    a_person_makes_uses_rotates_and_removes_a_key(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_makes_uses_rotates_and_removes_a_key_on_postgres() {
    let postgres = Postgres::start();
    a_person_makes_uses_rotates_and_removes_a_key(json!({"sql": {"url": postgres.url()}})).await;
}

#[tokio::test]
async fn no_key_is_made_beyond_what_its_person_and_the_tenant_allow() {
    let gateway = gateway(json!({}), allowed()).await;
    let mut ada = Browser::new();
    let page = signed_in(&gateway, &mut ada, &ADA).await;
    let long = "x".repeat(61);
    for (name, value) in [
        ("server.x", ""),
        ("server.closed", "yes"),
        ("server.none", "yes"),
        ("scope.drop", "yes"),
        ("label", ""),
        ("label", "\u{200b}"),
        ("label", "a\0b"),
        ("label", &long),
        ("life", ""),
        ("life", "0"),
        ("life", "-1"),
        ("life", "2592001"),
        ("life", "18446744073709551616"),
    ] {
        let mut fields = make("a key", "server.x");
        fields.retain(|(known, _)| *known != name);
        fields.push((name, value));
        let refused = sent(&mut ada, &page, &fields).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{name} {value:?}");
        assert!(!refused.text.contains("lgk_"));
    }
    assert_eq!(keys(&gateway).await.len(), 0);
    // Nothing was used up by refusals.
    let (_, page) = made(&mut ada, &page, &make("one", "server.x")).await;
    // A key of another person is not there, and no form of another browser counts.
    let own = names_in(&page).remove(0);
    let mut eve = Browser::new();
    let theirs = signed_in(&gateway, &mut eve, &EVE).await;
    for what in ["rotate-key", "remove-key"] {
        let fields = [("do", what), ("key", own.as_str())];
        let answer = changed(&gateway, &mut eve, &theirs, &fields).await;
        assert!(answer.text.contains("not here any more"), "{}", answer.text);
        let refused = sent(&mut eve, &page, &fields).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    }
    let refused = sent(&mut eve, &page, &make("planted", "server.x")).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    // There is room for two.
    let (_, full) = made(&mut ada, &page, &make("two", "all-servers")).await;
    assert!(!full.text.contains("make-key") && full.text.contains("all that you may use"));
    let third = ada.open(&page_of(&gateway, "a")).await;
    let refused = sent(&mut ada, &third, &make("three", "server.x")).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text);
    assert_eq!(keys(&gateway).await.len(), 2);
    // Where people may not have keys, there are none: not on the page, and none that were made before.
    let tenant = administered(&gateway, Method::GET, "").await;
    let mut spec = tenant.body["spec"].clone();
    spec["auth"].as_object_mut().unwrap().remove("own_keys");
    put(&gateway, "", &spec).await;
    let page = ada.open(&page_of(&gateway, "a")).await;
    assert!(!page.text.contains("API keys"), "{}", page.text);
    let refused = sent(&mut ada, &page, &make("three", "server.x")).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn keys_are_worth_what_their_person_may_do_now() {
    let mut declared = allowed();
    declared["servers"]["eng"] = json!({"command": child(), "grants": {"groups": ["eng"]}});
    declared["servers"]["own"] = json!({"command": child(), "grants": {"clients": ["app"]}});
    let gateway = gateway(json!({}), declared).await;
    let mut browser = Browser::new();
    let page = signed_in(&gateway, &mut browser, &ADA).await;
    let (key, page) = made(&mut browser, &page, &make("all", "all-servers")).await;
    let (brief, page) = made(&mut browser, &page, &make("brief", "server.eng")).await;
    let name = names_in(&page).remove(0);
    // What a client may use is no person's; nor is a server of eve's, although the key is for all.
    for server in ["own", "closed", "none"] {
        assert_eq!(
            status(&gateway, server, &key).await,
            StatusCode::NOT_FOUND,
            "{server}"
        );
    }
    // An operator of the tenant cannot let it in by the name of the key.
    let server = json!({"command": child(), "grants": {"clients": [name]}});
    put(&gateway, "/servers/own", &server).await;
    assert_eq!(status(&gateway, "own", &key).await, StatusCode::NOT_FOUND);
    let mut open = session(&gateway, "eng", &key).await.listen().await;
    assert_eq!(status(&gateway, "eng", &brief).await, IN);
    let user = |groups: Value| json!({"password": "correct horse", "groups": groups});
    put(&gateway, "/users/ada", &user(json!([]))).await;
    let began = Instant::now();
    assert_eq!(status(&gateway, "eng", &key).await, StatusCode::NOT_FOUND);
    assert_eq!(status(&gateway, "y", &key).await, IN);
    within("the end of the stream", open.rest()).await;
    assert!(began.elapsed().as_secs() < 5);
    put(&gateway, "/users/ada", &user(json!(["eng"]))).await;
    assert_eq!(status(&gateway, "eng", &key).await, IN);
    // A shorter life counts for keys that were made before.
    let tenant = administered(&gateway, Method::GET, "").await;
    let mut spec = tenant.body["spec"].clone();
    spec["auth"]["own_keys"]["ttl"] = json!("1ms");
    put(&gateway, "", &spec).await;
    assert_eq!(
        status(&gateway, "eng", &key).await,
        StatusCode::UNAUTHORIZED
    );
    spec["auth"]["own_keys"]["ttl"] = json!("30d");
    put(&gateway, "", &spec).await;
    assert_eq!(status(&gateway, "eng", &key).await, IN);
    // Nothing that was made before the end of a person returns with them.
    let mut open = session(&gateway, "y", &key).await.listen().await;
    let mut gone = user(json!(["eng"]));
    gone["disabled"] = json!(true);
    put(&gateway, "/users/ada", &gone).await;
    let began = Instant::now();
    assert_eq!(
        status(&gateway, "eng", &key).await,
        StatusCode::UNAUTHORIZED
    );
    within("the end of the stream", open.rest()).await;
    assert!(began.elapsed().as_secs() < 5);
    put(&gateway, "/users/ada", &user(json!(["eng"]))).await;
    for key in [&key, &brief] {
        assert_eq!(status(&gateway, "eng", key).await, StatusCode::UNAUTHORIZED);
    }
    assert!(keys(&gateway).await.is_empty());
}

#[expect(clippy::too_many_lines, reason = "one story, told in order")]
#[tokio::test]
async fn operators_see_and_remove_the_keys_of_people() {
    let mut declared = allowed();
    let hash = format!("sha256:{}", "0".repeat(64));
    let key = json!({"hash": hash, "subject": "ci", "servers": ["x"]});
    declared["api_keys"] = json!({"ci": key, "z": {"hash": hash.replace("00", "11"), "subject": "z", "servers": ["x"]}});
    let gateway = gateway(json!({}), declared).await;
    let mut browser = Browser::new();
    let page = signed_in(&gateway, &mut browser, &ADA).await;
    let (value, page) = made(&mut browser, &page, &make("the job", "server.x")).await;
    let name = names_in(&page).remove(0);
    let found = keys(&gateway).await;
    let names: Vec<&str> = found
        .iter()
        .map(|key| key["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["ci", &name, "z"]);
    let spec = &found[1]["spec"];
    assert_eq!(
        (&spec["subject"], &spec["label"]),
        (&json!("ada"), &json!("the job"))
    );
    assert_eq!(
        (&spec["servers"], &spec["scopes"]),
        (&json!(["x"]), &json!([]))
    );
    assert!(!found[1].to_string().contains("lgk_"));
    let mut listed = stranger(&["key", "list", "a"]);
    let listed = listed
        .env("LOCKGATE_URL", gateway.origin())
        .env("LOCKGATE_KEY", gateway.administrator());
    let listed = within("a list", listed.output()).await.unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut lines = listed.lines();
    let line = lines.find(|line| line.starts_with(&name)).unwrap();
    assert!(
        line.contains("ada") && line.ends_with("the job"),
        "{listed}"
    );
    // A manifest has none of them: an export with one could not be applied.
    let mut exported = stranger(&["tenant", "export", "a"]);
    let exported = exported
        .env("LOCKGATE_URL", gateway.origin())
        .env("LOCKGATE_KEY", gateway.administrator());
    let exported = within("an export", exported.output()).await.unwrap();
    let exported: Value = serde_json::from_slice(&exported.stdout).unwrap();
    let exported = exported["tenants"]["a"]["api_keys"].as_object().unwrap();
    assert_eq!(exported.keys().collect::<Vec<_>>(), ["ci", "z"]);
    // Page by page, in the order of names.
    let (mut after, mut paged) = (String::new(), Vec::new());
    loop {
        let list = administered(&gateway, Method::GET, &format!("/api-keys?limit=1{after}")).await;
        paged.extend(list.body["items"].as_array().unwrap().clone());
        match list.body["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(paged, found);
    let path = format!("/api-keys/{name}");
    let one = administered(&gateway, Method::GET, &path).await;
    assert_eq!(one.body, found[1]);
    let rotated = administered(&gateway, Method::POST, &format!("{path}/rotate")).await;
    assert_eq!(rotated.status, StatusCode::CONFLICT, "{}", rotated.body);
    // A manifest that prunes has nothing to do with it.
    let url = format!("{}/api/v1/tenants/a{path}", gateway.origin());
    let by = gateway.administrator();
    let planted = json!({"subject": "eve", "servers": ["*"]});
    let replaced = send(Method::PUT, &url, &by, Some(&planted));
    assert!(replaced.await.status.is_client_error());
    assert_eq!(status(&gateway, "x", &value).await, IN);
    let mut open = session(&gateway, "x", &value).await.listen().await;
    let removed = administered(&gateway, Method::DELETE, &path).await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT, "{}", removed.body);
    assert_eq!(
        status(&gateway, "x", &value).await,
        StatusCode::UNAUTHORIZED
    );
    within("the end of the stream", open.rest()).await;
    for method in [Method::GET, Method::DELETE] {
        let again = administered(&gateway, method, &path).await;
        assert_eq!(again.status, StatusCode::NOT_FOUND);
    }
    let actors = audited(&gateway).await;
    assert_eq!(actors[0].0, "api_key.removed");
    assert!(actors[0].1.starts_with("operator:"), "{actors:?}");
}

/// A tenant `a` in which people may have three keys.
fn tenants() -> Value {
    json!({"a": {
        "auth": {"mode": "builtin", "own_keys": {"max": 3}},
        "users": {"ada": {"password": "correct horse"}, "eve": {"password": "correct horse"}},
        "servers": {"x": {"command": child()}, "y": {"command": child()}},
    }})
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_people_hold_and_end_at_every_replica() {
    let pair = Pair::of(json!({}), tenants()).await;
    let [first, second] = pair.both();
    let mut browser = Browser::new();
    let page = signed_in(first, &mut browser, &ADA).await;
    let (value, page) = made(&mut browser, &page, &make("one", "all-servers")).await;
    let name = names_in(&page).remove(0);
    until("the key at the other replica", async || {
        status(second, "x", &value).await == IN
    })
    .await;
    // The session of one replica is that of the other, by a value that was made meanwhile.
    let mut there = session(second, "x", &value).await;
    let rotate = [("do", "rotate-key"), ("key", name.as_str())];
    let (next, page) = made(&mut browser, &page, &rotate).await;
    there.url = there.url.replace(second.origin(), first.origin());
    there.http = bearer(&next);
    assert_eq!(there.text("echo", json!({"text": "here"})).await, "here");
    there.url = there.url.replace(first.origin(), second.origin());
    until("the new value at the other replica", async || {
        status(second, "x", &next).await == IN
    })
    .await;
    let mut open = [
        there.listen().await,
        session(first, "y", &next).await.listen().await,
    ];
    let remove = [("do", "remove-key"), ("key", name.as_str())];
    changed(first, &mut browser, &page, &remove).await;
    let began = Instant::now();
    for open in &mut open {
        within("the end of a stream", open.rest()).await;
    }
    until("the end at the other replica", async || {
        status(second, "x", &next).await == StatusCode::UNAUTHORIZED
    })
    .await;
    assert!(began.elapsed().as_secs() < 5);
}

/// Ten forms at two replicas at the same time, where there is room for three keys.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_make_no_more_keys_than_a_person_may_have() {
    let pair = Pair::of(json!({}), tenants()).await;
    let mut forms = Vec::new();
    for number in 0..10 {
        let gateway = pair.both()[number % 2];
        let mut browser = Browser::new();
        let page = signed_in(gateway, &mut browser, &ADA).await;
        forms.push(async move {
            let label = format!("key {number}");
            sent(&mut browser, &page, &make(&label, "server.x")).await
        });
    }
    let answers = join_all(forms).await;
    let made = |answer: &&Shown| answer.status == StatusCode::OK;
    assert_eq!(answers.iter().filter(made).count(), 3);
    let values: BTreeSet<String> = answers.iter().filter(made).map(value_in).collect();
    assert_eq!(values.len(), 3);
    let refused = answers.iter().filter(|answer| !made(answer));
    for answer in refused {
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    }
    assert_eq!(keys(pair.both()[0]).await.len(), 3);
    // One form that is sent to both replicas at once makes one key.
    let mut browser = Browser::new();
    let page = signed_in(pair.both()[0], &mut browser, &EVE).await;
    let (_, form) = page.form("do");
    let sends = pair.both().map(|gateway| {
        let url = page_of(gateway, "a");
        let mut fields = vec![("form", form.as_str())];
        fields.extend(make("once", "server.x"));
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(&fields)
            .finish();
        let request = client()
            .post(url)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Origin", "null")
            .header("Sec-Fetch-Site", "same-origin")
            .header("Cookie", browser.pair())
            .body(body);
        async move { within("an answer", request.send()).await.unwrap().status() }
    });
    let mut statuses = join_all(sends).await;
    statuses.sort();
    assert_eq!(statuses, [StatusCode::OK, StatusCode::SEE_OTHER]);
}

/// A key and a token of a person share what is counted by person, and the key is no administrator's.
#[tokio::test]
async fn a_key_is_the_person_and_administrates_nothing() {
    let mut declared = allowed();
    declared["auth"]["scopes"] = json!(["admin"]);
    let gateway = gateway(json!({}), declared).await;
    let app = App::public(&gateway, "a").await;
    let mut browser = Browser::new();
    let page = signed_in(&gateway, &mut browser, &ADA).await;
    let mut fields = make("admin", "all-servers");
    fields.push(("scope.admin", "yes"));
    let (key, page) = made(&mut browser, &page, &fields).await;
    let url = format!("{}/api/v1/tenants/a", gateway.origin());
    let refused = send(Method::GET, &url, &key, None).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{}", refused.body);
    // A session of the key is no session of the person's other clients.
    let mut open = session(&gateway, "x", &key).await;
    let code = app.code(&[]).await;
    open.http = bearer(&app.redeem(&code, &[]).await.text("access_token"));
    let foreign = open
        .post(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
        .await;
    assert_eq!(foreign.status(), StatusCode::NOT_FOUND);
    // The end of all that a person has here ends it.
    let all = format!("{}/api/v1/tenants/a/revocations", gateway.origin());
    let by = gateway.administrator();
    let done = send(Method::POST, &all, &by, Some(&json!({"subject": "ada"}))).await;
    assert_eq!(done.status, StatusCode::NO_CONTENT);
    assert_eq!(status(&gateway, "x", &key).await, StatusCode::UNAUTHORIZED);
    // A page of before belongs to no log-in any more.
    let late = changed(&gateway, &mut browser, &page, &make("late", "server.x")).await;
    assert!(
        late.text.contains("Sign in") && !late.text.contains("lgk_"),
        "{}",
        late.text
    );
}
