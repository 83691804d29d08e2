//! Faults of Redis under two replicas: unreachable at the start, broken connections, full,
//! read-only, slow, empty after a failover. Frozen and flushed servers are in `sessions`.

use std::{cell::Cell, time::Duration};

use reqwest::{Response, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{
    replicas::sessions::Replicas,
    support::{
        cluster::{Cluster, place},
        faulty::{Faulty, Mode},
        harness::{
            DEADLINE, Events, NEWEST, Session, child, client, is_stream, json_of, opening, text_of,
            tool_call, until, within,
        },
        oauth_client::App,
        postgres::Postgres,
        redis::{Kind, Redis},
        served::Served,
    },
};

/// Nothing told of the snapshot that a restart of Redis would begin with.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_saves_snapshots_is_told_of_once() {
    for (saves, wanted) in [("3600 1", 1), ("", 0)] {
        let redis = Redis::start(Kind::Redis);
        redis.command(&["CONFIG", "SET", "save", saves]);
        let tenants =
            json!({"a": {"auth": {"mode": "none"}, "servers": {"x": {"command": "cat"}}}});
        let config = json!({
            "redis": {"url": redis.url()},
            "cluster": {"listen": "127.0.0.1:0"}
        });
        let mut served = Served::start(config, tenants).await;
        until("ready", async || {
            served.ops("/readyz").await.contains("\"ready\"")
        })
        .await;
        let logs = served.end().await;
        let told = logs.iter();
        let told = told.filter(|line| line["event"] == "redis.snapshots");
        assert_eq!(told.count(), wanted, "{saves:?}");
    }
}

/// No shared store is reachable at the start; then they appear one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_start_without_their_stores_and_recover() {
    let (redis, postgres) = (Redis::prepared(Kind::Redis), Postgres::prepared());
    let mut cluster = Cluster::over(redis, postgres, [&[], &[]], json!({})).await;
    for at in 0..2 {
        unready(&cluster, at, &["redis", "sql"]).await;
    }
    cluster.postgres.resume();
    for at in 0..2 {
        until("the store alone", || async {
            cluster.health(at).await.1["degraded"] == json!(["redis"])
        })
        .await;
        unready(&cluster, at, &["redis"]).await;
    }
    // The second replica gets no notification of the first one's objects: it polls.
    let keys = async |at: usize| {
        let origin = cluster.replicas[at].origin();
        let asked = client().get(format!("{origin}/t/a/oauth/jwks"));
        within("keys", asked.send())
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    };
    until("the same keys", || async {
        let first = keys(0).await;
        first.contains("kid") && first == keys(1).await
    })
    .await;
    // Log-ins work; requests of sessions wait.
    let app = App::public(&cluster.replicas[0], "a").await;
    let token = app.tokens().await.text("access_token");
    for at in 0..2 {
        assert_eq!(cluster.status(at, &token).await, 400);
        let began = Instant::now();
        let stranger = Session::at(
            crate::auth::external_tokens::bearer(&token),
            cluster.url(at),
        );
        assert_is_away(&stranger.post(&opening(NEWEST)).await);
        assert!(began.elapsed() < Duration::from_millis(2250));
    }
    cluster.redis.restart();
    cluster.ready().await;
    let here = cluster.session(0, &token).await;
    let there = cluster.by(&here, 1, &token);
    assert_eq!(here.text("counter", json!({})).await, "1");
    assert_eq!(there.text("counter", json!({})).await, "2");
}

/// Asserts that a replica is alive, is not ready, and reports the missing stores.
async fn unready(cluster: &Cluster, at: usize, lacks: &[&str]) {
    let (status, said) = cluster.health(at).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(said, json!({"status": "unready", "degraded": lacks}));
    let (status, _) = cluster.replicas[at].ops_status("/livez").await;
    assert_eq!(status, StatusCode::OK);
}

fn assert_is_away(response: &Response) {
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
}

/// Two replicas that reach Redis through a forwarder, and a session at each, of two tenants.
struct Ground {
    replicas: Replicas,
    way: Faulty,
    /// Each session, through its owner and through the other replica.
    ways: [[Session; 2]; 2],
}

impl Ground {
    async fn new() -> Self {
        let redis = Redis::start(Kind::Redis);
        let way = Faulty::before(&place(&redis.url())).await;
        let url = format!("redis://{}/0", way.address);
        let replicas = Replicas::over(redis, &[&url, &url], &[], "idle: 10m").await;
        let of = async |at: usize, tenant: &str| {
            let mut session = replicas.node(at).stranger();
            session.url = session.url.replace("/t/a/", tenant);
            session.initialize(NEWEST).await;
            let mut other = replicas.by(&session, 1 - at);
            other.url = other.url.replace("/t/a/", tenant);
            [session, other]
        };
        let ways = [of(0, "/t/a/").await, of(1, "/t/b/").await];
        Self {
            replicas,
            way,
            ways,
        }
    }

    async fn readiness(&self, at: usize) -> StatusCode {
        let node = self.replicas.node(at);
        let url = node.url.replace("/t/a/x/mcp", "/readyz");
        let asked = node.http.get(&url).send();
        within("readiness", asked).await.unwrap().status()
    }

    /// Sends one request to each session through both replicas. During a fault of Redis each answer
    /// is correct, or 503; returns the number of correct ones. A request that was accepted just
    /// before may wait as long as the fault lasts.
    async fn ask(&self, round: usize, waiting: &mut Vec<JoinHandle<bool>>) -> usize {
        let mut right = 0;
        for (session, ways) in self.ways.iter().enumerate() {
            for (way, client) in ways.iter().enumerate() {
                let (text, client) = (format!("{session} {way} {round}"), client.again());
                let mut asked = tokio::spawn(is_right(client, text));
                match timeout(Duration::from_secs(1), &mut asked).await {
                    Ok(is_right) => right += usize::from(is_right.unwrap()),
                    Err(_) => waiting.push(asked),
                }
            }
        }
        right
    }

    /// Asserts that listeners, deletions, calls and new sessions get 503, and none of them 404 or
    /// 401.
    async fn refuses(&self) {
        for (at, ways) in self.ways.iter().enumerate() {
            for way in ways {
                assert_is_away(&way.get(None).await);
                assert_is_away(&way.delete().await);
                assert_is_away(&way.begin("counter", json!({})).await);
            }
            // A session of others looks like an unknown one.
            for other in &self.ways[1 - at] {
                let mut foreign = ways[0].again();
                (foreign.id, foreign.revision) = (other.id.clone(), other.revision.clone());
                assert_is_away(&foreign.begin("counter", json!({})).await);
                foreign.url.clone_from(&ways[1].url);
                assert_is_away(&foreign.begin("counter", json!({})).await);
            }
            let mut stranger = ways[0].again();
            (stranger.id, stranger.revision) = (None, None);
            assert_is_away(&stranger.post(&opening(NEWEST)).await);
            assert_eq!(self.readiness(at).await, StatusCode::SERVICE_UNAVAILABLE);
        }
    }

    /// Asserts full service within `limit`: the same sessions with the same children.
    async fn recovers(&self, limit: Duration, waiting: Vec<JoinHandle<bool>>) {
        self.answers(limit, waiting).await;
        self.kept_its_children().await;
    }

    /// Asserts that each session answers through both replicas within `limit`.
    async fn answers(&self, limit: Duration, waiting: Vec<JoinHandle<bool>>) {
        let began = Instant::now();
        let mut more = Vec::new();
        while self.ask(0, &mut more).await < 4 {
            assert!(began.elapsed() < DEADLINE);
        }
        let took = began.elapsed();
        assert!(took < limit, "{took:?}");
        for asked in waiting.into_iter().chain(more) {
            within("what was taken", asked).await.unwrap();
        }
        for at in 0..2 {
            self.replicas.ready(at).await;
        }
    }

    /// Asserts that each session still has its first child.
    async fn kept_its_children(&self) {
        for ways in &self.ways {
            assert_eq!(ways[0].text("counter", json!({})).await, "2", "one child");
            assert_eq!(ways[1].text("counter", json!({})).await, "3", "one child");
        }
    }

    /// True if Redis has the heartbeats of both replicas.
    fn has_heartbeats(&self) -> bool {
        let keys = self.replicas.redis.keys();
        keys.iter().filter(|key| key.contains("replica:")).count() == 2
    }
}

/// True if a call gets its answer; asserts 503, or the error for an unknown outcome, otherwise.
async fn is_right(client: Session, text: String) -> bool {
    let response = client.begin("echo", json!({"text": text})).await;
    if response.status() != StatusCode::OK {
        assert_is_away(&response);
        return false;
    }
    let answer = if is_stream(&response) {
        resumed(&client, Events::of(response)).await
    } else {
        json_of(response).await
    };
    if answer["error"].is_object() {
        assert_eq!(answer["error"]["code"], -31001, "{answer}");
        return false;
    }
    assert_eq!(text_of(&answer), text);
    true
}

/// The message of a stream. An owner that was late to prove itself ends its streams before that, and its successor
/// has the rest.
async fn resumed(client: &Session, mut stream: Events) -> Value {
    let mut seen = None;
    let began = Instant::now();
    loop {
        while let Some(event) = stream.next().await {
            if event.is_message() {
                return serde_json::from_str(&event.data.unwrap()).unwrap();
            }
            seen = event.id.or(seen);
        }
        let cursor = seen.as_ref().expect("an id to resume from");
        stream = loop {
            let response = client.get(Some(cursor)).await;
            if response.status() == StatusCode::OK {
                break Events::of(response);
            }
            assert_is_away(&response);
            assert!(began.elapsed() < DEADLINE, "the stream is lost");
        };
    }
}

/// A stream of each session through each replica, which outlasts a fault.
async fn streams(ground: &Ground) -> Vec<Events> {
    let mut streams = Vec::new();
    for (session, ways) in ground.ways.iter().enumerate() {
        assert_eq!(ways[0].text("counter", json!({})).await, "1");
        for (way, client) in ways.iter().enumerate() {
            let token = json!(format!("{session} {way}"));
            let args = json!({"n": COUNT, "ms": 25});
            streams.push(client.stream("slow", args, token).await);
        }
    }
    streams
}

/// The messages of one stream, which outlasts a fault.
const COUNT: u64 = 300;

/// Asserts that each stream has all of its own messages in order, and nothing else.
async fn whole(streams: Vec<Events>) {
    for (at, mut stream) in streams.into_iter().enumerate() {
        let token = json!(format!("{} {}", at / 2, at % 2));
        let messages = stream.messages().await;
        assert_eq!(
            messages.len() as u64,
            COUNT + 1,
            "{token}: {:?}",
            stream.error
        );
        let (end, progress) = messages.split_last().unwrap();
        for (number, (_, message)) in (1..).zip(progress) {
            let said = (
                &message["params"]["progressToken"],
                &message["params"]["progress"],
            );
            assert_eq!(said, (&token, &json!(number)));
        }
        assert!(end.1["result"].is_object(), "{end:?}");
    }
}

/// The course of every fault: 503 while it lasts, then normal service.
async fn suffers(begin: impl Fn(&Ground), end: impl Fn(&Ground)) {
    let ground = Ground::new().await;
    let streams = streams(&ground).await;
    begin(&ground);
    let (began, mut round, mut waiting) = (Instant::now(), 1, Vec::new());
    while ground.ask(round, &mut waiting).await > 0
        || ground.readiness(0).await == StatusCode::OK
        || ground.readiness(1).await == StatusCode::OK
    {
        assert!(began.elapsed() < Duration::from_secs(10), "it goes on");
        round += 1;
    }
    ground.refuses().await;
    end(&ground);
    ground.recovers(Duration::from_secs(2), waiting).await;
    within("the streams", whole(streams)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_breaks_off_in_mid_reply_is_503() {
    let begin = |ground: &Ground| ground.way.set(Mode::Sever(3));
    suffers(begin, |ground| ground.way.set(Mode::Pass)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_closes_its_half_is_503() {
    let begin = |ground: &Ground| ground.way.set(Mode::HalfClose);
    suffers(begin, |ground| ground.way.set(Mode::Pass)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_behind_a_blackhole_is_503() {
    let begin = |ground: &Ground| ground.way.set(Mode::Stall);
    suffers(begin, |ground| ground.way.set(Mode::Pass)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_is_503() {
    let most = |ground: &Ground, bytes: &str| {
        let redis = &ground.replicas.redis;
        redis.command(&["CONFIG", "SET", "maxmemory", bytes]);
    };
    suffers(|ground| most(ground, "1mb"), |ground| most(ground, "0")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_takes_no_writes_is_503() {
    let follows = |ground: &Ground, whom: [&str; 2]| {
        ground
            .replicas
            .redis
            .command(&["REPLICAOF", whom[0], whom[1]]);
    };
    let begin = |ground: &Ground| follows(ground, ["127.0.0.1", "1"]);
    suffers(begin, |ground| follows(ground, ["NO", "ONE"])).await;
}

/// The duration of the thin line. A heartbeat is valid for 5 s, and up to 1 s old at first.
const THIN: Duration = Duration::from_millis(2500);

/// A very slow Redis: answers are late and correct. A replica whose heartbeat lapses on a busy
/// machine has to lose its sessions; then the test starts again.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_behind_a_thin_line_is_late_or_503() {
    for _ in 0..5 {
        if heartbeats_outlast_a_thin_line().await {
            return;
        }
    }
    panic!("a heartbeat lapsed each time");
}

async fn heartbeats_outlast_a_thin_line() -> bool {
    let ground = Ground::new().await;
    let streams = streams(&ground).await;
    ground.way.set(Mode::Trickle(4096));
    let have_lapsed = Cell::new(false);
    let widened = async {
        let began = Instant::now();
        while began.elapsed() < THIN {
            have_lapsed.set(have_lapsed.get() || !ground.has_heartbeats());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ground.way.set(Mode::Pass);
    };
    let (mut round, mut waiting) = (1, Vec::new());
    let asked = async {
        while ground.way.mode() != Mode::Pass {
            ground.ask(round, &mut waiting).await;
            round += 1;
        }
    };
    tokio::join!(widened, asked);
    let have_lapsed = have_lapsed.get() || !ground.has_heartbeats();
    if have_lapsed {
        return false;
    }
    ground.recovers(Duration::from_secs(2), waiting).await;
    within("the streams", whole(streams)).await;
    true
}

/// An address that moves to an empty server: owners register their sessions again, and earlier
/// event ids are unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_failed_over_to_an_empty_one_is_filled_again() {
    let empty = Redis::start(Kind::Valkey);
    let ground = Ground::new().await;
    let mut streams = streams(&ground).await;
    let mut cursors = Vec::new();
    for stream in &mut streams {
        let (id, _) = stream.message().await.unwrap();
        cursors.push(id);
    }
    drop(streams);
    within("the move", ground.way.redirect(&place(&empty.url()))).await;
    until("another life of the store", async || {
        empty.keys().iter().any(|key| key.ends_with(":epoch"))
    })
    .await;
    let began = Instant::now();
    // A replica answers as before until it reaches the empty server, then refuses for a moment.
    until("both replicas there", async || {
        let keys = empty.keys();
        keys.iter().filter(|key| key.contains("replica:")).count() == 2
    })
    .await;
    let left = Duration::from_secs(4).saturating_sub(began.elapsed());
    ground.recovers(left, Vec::new()).await;
    for (at, cursor) in cursors.iter().enumerate() {
        let way = &ground.ways[at / 2][at % 2];
        until("an old cursor is gone", || async {
            let status = way.get(Some(cursor)).await.status();
            assert!([410, 503].contains(&status.as_u16()), "{status}");
            status == StatusCode::GONE
        })
        .await;
    }
    // New sessions and streams are complete and separate.
    let ways = &ground.ways;
    let mut events = ways[0][1]
        .stream("slow", json!({"n": 5, "ms": 5}), json!("t"))
        .await;
    let (cursor, _) = events.message().await.unwrap();
    assert_eq!(events.messages().await.len(), 5);
    assert_eq!(ways[0][0].get(Some(&cursor)).await.status(), StatusCode::OK);
    let foreign = ways[1][0].get(Some(&cursor)).await;
    assert_eq!(foreign.status(), StatusCode::BAD_REQUEST);
    let unknown = tool_call(Value::from(1), "echo", json!({}));
    let mut stranger = ways[0][0].again();
    stranger.id = Some("0123456789abcdef0123456789abcdef".to_owned());
    until("unknown sessions are 404 again", || async {
        let status = stranger.post(&unknown).await.status();
        assert!([404, 503].contains(&status.as_u16()), "{status}");
        status == StatusCode::NOT_FOUND
    })
    .await;
}

/// An end that Redis could not be told is no success, and holds all the same: at no replica does the session
/// live again.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_deleted_while_redis_is_silent_stays_gone() {
    for silence in [Mode::Stall, Mode::Cut] {
        let ground = Ground::new().await;
        ground.way.set(silence);
        // Its owner still has its lease, so that it ends the session.
        assert_is_away(&ground.ways[0][0].delete().await);
        ground.way.set(Mode::Pass);
        for way in &ground.ways[0] {
            until("the session is unknown", || async {
                let status = way.begin("counter", json!({})).await.status();
                assert!([404, 503].contains(&status.as_u16()), "{status}");
                status == StatusCode::NOT_FOUND
            })
            .await;
        }
        assert_eq!(ground.ways[1][0].text("counter", json!({})).await, "1");
    }
}

/// What it could not tell Redis keeps no replica from its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_ends_in_time_though_redis_is_away() {
    let mut ground = Ground::new().await;
    ground.way.set(Mode::Cut);
    assert_is_away(&ground.ways[0][0].delete().await);
    ground.replicas.node(0).signal(Signal::TERM);
    let began = Instant::now();
    assert_eq!(ground.replicas.wait(0).await, Some(0));
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// No other replica can own a session that Redis does not know yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_begins_while_redis_is_silent_begins_late() {
    let redis = Redis::start(Kind::Redis);
    let way = Faulty::before(&place(&redis.url())).await;
    let config = json!({
        "redis": {"url": format!("redis://{}/0", way.address)}, "cluster": {"listen": "127.0.0.1:0"},
    });
    // Longer than a lease.
    let slow = json!({"command": child(), "env": {"CHILD_START_MS": "6000"}});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": slow}}});
    let gateway = Served::start(config, tenants).await;
    let is_ready = async || gateway.ops("/readyz").await.contains("\"ready\"");
    until("a replica that is ready", &is_ready).await;
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let mut session = Session::at(client(), url);
    let begins = session.initialize(NEWEST);
    let falls_silent = async {
        until("a child starts", || async {
            !gateway.children().await.is_empty()
        })
        .await;
        way.set(Mode::Stall);
        until("the lease lapses", || async { !is_ready().await }).await;
        way.set(Mode::Pass);
    };
    tokio::join!(begins, falls_silent);
    assert_eq!(session.text("counter", json!({})).await, "1");
}
