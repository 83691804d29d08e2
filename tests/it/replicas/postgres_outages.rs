//! Outages of PostgreSQL under two replicas: slow, silent, without a free connection, or lost
//! during a commit.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use aws_lc_rs::digest::{SHA256, digest};
use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    cluster::{Cluster, place},
    faulty::{Hit, Mode},
    gauges::scaled,
    harness::{Session, until, within},
    oauth_client::{Answer, App, send},
};

/// A sequential client of PostgreSQL (its documentation, "Message Flow").
struct Sql(TcpStream);

impl Sql {
    /// Connects; `None` if the server has no free connection.
    fn connect(url: &str) -> Option<Self> {
        let stream = TcpStream::connect(place(url)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut sql = Self(stream);
        let mut hello = 196_608_u32.to_be_bytes().to_vec();
        hello.extend(b"user\0postgres\0database\0postgres\0\0");
        sql.say(None, &hello);
        sql.heard().ok().map(|_| sql)
    }

    /// Runs statements; the first column of their rows.
    fn run(&mut self, text: &str) -> Vec<String> {
        self.say(Some(b'Q'), format!("{text}\0").as_bytes());
        self.heard().unwrap()
    }

    fn say(&mut self, kind: Option<u8>, body: &[u8]) {
        let mut message = Vec::from_iter(kind);
        message.extend((u32::try_from(body.len()).unwrap() + 4).to_be_bytes());
        message.extend(body);
        self.0.write_all(&message).unwrap();
    }

    /// All messages up to the next `ReadyForQuery`, or an error.
    fn heard(&mut self) -> Result<Vec<String>, String> {
        let mut rows = Vec::new();
        loop {
            let mut head = [0; 5];
            let read = self.0.read_exact(&mut head);
            read.map_err(|error| error.to_string())?;
            let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
            let mut body = vec![0; length];
            self.0.read_exact(&mut body).unwrap();
            match head[0] {
                b'Z' => return Ok(rows),
                b'E' => return Err(String::from_utf8_lossy(&body).into_owned()),
                // Two bytes count the columns, four bytes count the bytes of the first one.
                b'D' => {
                    let length = u32::from_be_bytes(body[2..6].try_into().unwrap()) as usize;
                    rows.push(String::from_utf8(body[6..6 + length].to_vec()).unwrap());
                }
                _ => {}
            }
        }
    }
}

/// Calls through either replica until `done`; all must succeed. Returns their number.
async fn calls(ways: &[Session], done: &std::cell::Cell<bool>) -> usize {
    let mut count = 0;
    while !done.get() {
        let way = &ways[count % ways.len()];
        let began = Instant::now();
        let text = way.text("echo", json!({"text": "on"})).await;
        assert_eq!(text, "on");
        assert!(began.elapsed() < Duration::from_secs(2), "call {count}");
        count += 1;
    }
    count
}

/// A new session, through each of the replicas, with a valid token.
async fn ways(cluster: &Cluster, token: &str) -> [Session; 2] {
    let first = cluster.session(0, token).await;
    let second = cluster.by(&first, 1, token);
    [first, second]
}

/// Asserts a 503 with `Retry-After`.
fn assert_away(answer: &Answer) {
    let got = (answer.status, answer.headers.contains_key("retry-after"));
    let wanted = (StatusCode::SERVICE_UNAVAILABLE, true);
    assert_eq!(got, wanted, "{}", answer.body);
}

/// Reads the audit trail through the administration API of the first replica.
async fn administrate(cluster: &Cluster) -> Answer {
    let gateway = &cluster.replicas[0];
    let url = format!("{}/api/v1/audit", gateway.origin());
    send(Method::GET, &url, &gateway.administrator(), None).await
}

/// Waits until the administration answers again.
async fn is_back(cluster: &Cluster) {
    until("administration", || async {
        administrate(cluster).await.status == StatusCode::OK
    })
    .await;
}

/// The database has no free connection for a replica, and MCP clients do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_room_is_503_at_once_and_mcp_goes_on() {
    let cluster = Cluster::two().await;
    let app = App::public(&cluster.replicas[0], "a").await;
    let tokens = app.tokens().await;
    let (token, refresh) = (tokens.text("access_token"), tokens.text("refresh_token"));
    let ways = ways(&cluster, &token).await;
    let url = cluster.postgres.url();
    let mut first = Sql::connect(&url).unwrap();
    let mut others = Vec::new();
    // This client takes all connections.
    let own = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lockgate'";
    let most: usize = first.run("SHOW max_connections")[0].parse().unwrap();
    let began = Instant::now();
    while others.len() + 1 < most {
        others.extend(std::iter::from_fn(|| Sql::connect(&url)));
        first.run(own);
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{}",
            others.len()
        );
    }
    let done = std::cell::Cell::new(false);
    let asking = async {
        for _ in 0..3 {
            let began = Instant::now();
            let (refreshed, administrated) =
                tokio::join!(app.refresh(&refresh, &[]), administrate(&cluster));
            assert_away(&refreshed);
            assert_away(&administrated);
            let took = began.elapsed();
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
        done.set(true);
    };
    let (count, ()) = tokio::join!(calls(&ways, &done), asking);
    assert!(count > 5, "{count}");
    for at in 0..2 {
        let (status, said) = cluster.health(at).await;
        assert_eq!(
            (status, &said["degraded"]),
            (StatusCode::OK, &json!(["sql"]))
        );
    }
    drop((first, others));
    is_back(&cluster).await;
    let again = app.refresh(&refresh, &[]).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.body);
}

/// All connections of the replica wait for a lock that another client holds;
/// other requests are refused at once.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_all_wait_cost_the_others_a_second() {
    let cluster = Cluster::two().await;
    let app = App::public(&cluster.replicas[0], "a").await;
    let tokens = app.tokens().await;
    let (token, refresh) = (tokens.text("access_token"), tokens.text("refresh_token"));
    let ways = ways(&cluster, &token).await;
    let mut holder = Sql::connect(&cluster.postgres.url()).unwrap();
    holder.run("BEGIN; LOCK TABLE grants, codes, refresh_tokens IN ACCESS EXCLUSIVE MODE");
    let (waiter, token) = (app.clone(), refresh.clone());
    let waiting = tokio::spawn(async move {
        let all = (0..24).map(|_| waiter.refresh(&token, &[]));
        join_all(all).await
    });
    let done = std::cell::Cell::new(false);
    let asking = async {
        // All connections of this replica are taken.
        let waiters = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until("as many as it has", async || seen(&cluster, waiters) >= 8).await;
        let mut times = Vec::new();
        for _ in 0..3 {
            let began = Instant::now();
            assert_away(&app.refresh(&refresh, &[]).await);
            times.push(began.elapsed());
        }
        assert!(
            times.iter().all(|took| *took < Duration::from_secs(2)),
            "{times:?}"
        );
        let began = Instant::now();
        for answer in within("those that wait", waiting).await.unwrap() {
            assert_away(&answer);
        }
        assert!(began.elapsed() < Duration::from_secs(10));
        done.set(true);
    };
    let (count, ()) = tokio::join!(calls(&ways, &done), asking);
    assert!(count > 5, "{count}");
    drop(holder);
    let mut successors = Vec::new();
    for _ in 0..3 {
        successors.push(app.refresh(&refresh, &[]).await.text("refresh_token"));
    }
    successors.dedup();
    assert_eq!(successors.len(), 1, "one live branch");
}

/// The number of rows of a query.
fn seen(cluster: &Cluster, question: &str) -> usize {
    let mut sql = Sql::connect(&cluster.postgres.url()).unwrap();
    sql.run(question).len()
}

/// Calls with valid tokens continue through every kind of outage.
#[tokio::test(flavor = "multi_thread")]
async fn calls_with_valid_tokens_go_on_without_the_database() {
    let mut cluster = Cluster::two().await;
    let app = App::public(&cluster.replicas[0], "a").await;
    let tokens = app.tokens().await;
    let (token, refresh) = (tokens.text("access_token"), tokens.text("refresh_token"));
    let ways = ways(&cluster, &token).await;
    let most = scaled("calls while it is away", 60_000, 600);
    for mode in [Some(Mode::Stall), Some(Mode::Cut), None] {
        match mode {
            Some(mode) => cluster.sql_way.set(mode),
            None => cluster.postgres.pause(),
        }
        let began = Instant::now();
        let asked = async {
            let answers = tokio::join!(app.refresh(&refresh, &[]), administrate(&cluster));
            (answers, began.elapsed())
        };
        let called = async {
            let calling = (0..20).map(async |_| {
                let mut number = 0;
                // Longer than tokens are believed without a poll of a database that answers.
                while number < most / 60 || began.elapsed() < Duration::from_secs(3) {
                    let way = &ways[number % 2];
                    let text = way.text("echo", json!({"text": "on"})).await;
                    assert_eq!(text, "on");
                    number += 1;
                }
            });
            join_all(calling).await;
            // A new session needs no database either.
            cluster.session(1, &token).await.delete().await;
        };
        let (((refreshed, administrated), took), ()) = tokio::join!(asked, called);
        assert_away(&refreshed);
        assert_away(&administrated);
        assert!(took < Duration::from_secs(7), "{mode:?}: {took:?}");
        for at in 0..2 {
            until("what it lacks", || async {
                cluster.health(at).await.1["degraded"] == json!(["sql"])
            })
            .await;
            assert_eq!(cluster.health(at).await.0, StatusCode::OK);
            assert_eq!(cluster.status(at, &token).await, 400);
        }
        cluster.sql_way.set(Mode::Pass);
        if mode.is_none() {
            cluster.postgres.resume();
        }
        is_back(&cluster).await;
    }
    // Revocations take effect again.
    assert_eq!(app.revoke(&refresh).await, StatusCode::OK);
    for at in 0..2 {
        until("the revocation", || async {
            cluster.status(at, &token).await == 401
        })
        .await;
    }
}

/// A database with a latency of 200 ms delays OAuth, and no call.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_database_makes_oauth_slow_and_calls_not() {
    let cluster = Cluster::two().await;
    let app = App::public(&cluster.replicas[0], "a").await;
    let tokens = app.tokens().await;
    let ways = ways(&cluster, &tokens.text("access_token")).await;
    cluster.sql_way.set(Mode::Delay(Duration::from_millis(100)));
    let done = std::cell::Cell::new(false);
    let refreshing = async {
        let mut refresh = tokens.text("refresh_token");
        for _ in 0..2 {
            let next = app.refresh(&refresh, &[]).await;
            assert_eq!(next.status, StatusCode::OK, "{}", next.body);
            refresh = next.text("refresh_token");
        }
        done.set(true);
    };
    let (count, ()) = tokio::join!(calls(&ways, &done), refreshing);
    assert!(count > 10, "{count}");
    for at in 0..2 {
        // The replica may report the database as degraded.
        assert_eq!(cluster.health(at).await.0, StatusCode::OK);
    }
}

fn hash(text: &str) -> [u8; 32] {
    digest(&SHA256, text.as_bytes())
        .as_ref()
        .try_into()
        .unwrap()
}

/// Waits until the commit was hit.
async fn was_hit(cluster: &Cluster) {
    until("the commit", async || cluster.sql_way.mode() == Mode::Pass).await;
}

/// Ambiguous commits: a code whose redemption broke at any of its commits gives
/// tokens once or never, for any number of retries through either replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_code_is_not_spent_twice_when_a_commit_is_ambiguous() {
    let cluster = Cluster::two().await;
    let here = App::public(&cluster.replicas[0], "a").await;
    let mut there = here.clone();
    there.origin = cluster.replicas[1].origin().to_owned();
    for (after, is_done, spent) in [(0, false, 1), (0, true, 0), (1, false, 0), (1, true, 0)] {
        let code = here.code(&[]).await;
        let names = hash(&code);
        let hit = Hit {
            names,
            after,
            is_done,
        };
        cluster.sql_way.set(Mode::Commit(hit));
        assert_away(&here.redeem(&code, &[]).await);
        was_hit(&cluster).await;
        let again = (0..10).map(|number| {
            let app = if number % 2 == 0 { &here } else { &there };
            async { app.redeem(&code, &[]).await }
        });
        let answers = join_all(again).await;
        let good: Vec<_> = answers
            .iter()
            .filter(|answer| answer.status == StatusCode::OK)
            .collect();
        assert_eq!(good.len(), spent, "{hit:?}");
        for answer in answers
            .iter()
            .filter(|answer| answer.status != StatusCode::OK)
        {
            answer.assert_refused(400, "invalid_grant");
        }
        for good in good {
            let next = there.refresh(&good.text("refresh_token"), &[]).await;
            assert_eq!(next.status, StatusCode::OK, "{}", next.body);
        }
    }
}

/// Ambiguous commits of a refresh: retries within the grace get the one successor.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_token_has_one_successor_when_a_commit_is_ambiguous() {
    let cluster = Cluster::two().await;
    let here = App::public(&cluster.replicas[0], "a").await;
    let mut there = here.clone();
    there.origin = cluster.replicas[1].origin().to_owned();
    for is_done in [false, true] {
        let tokens = here.tokens().await;
        let refresh = tokens.text("refresh_token");
        let names = hash(&refresh);
        cluster.sql_way.set(Mode::Commit(Hit {
            names,
            after: 0,
            is_done,
        }));
        assert_away(&here.refresh(&refresh, &[]).await);
        was_hit(&cluster).await;
        let again = (0..10).map(|number| {
            let app = if number % 2 == 0 { &here } else { &there };
            async { app.refresh(&refresh, &[]).await }
        });
        let answers = join_all(again).await;
        let mut successors: Vec<String> = answers
            .iter()
            .map(|answer| answer.text("refresh_token"))
            .collect();
        successors.dedup();
        assert_eq!(successors.len(), 1, "one live branch");
        let next = there.refresh(&successors[0], &[]).await;
        assert_eq!(next.status, StatusCode::OK, "{}", next.body);
        let used = here.refresh(&refresh, &[]).await;
        used.assert_refused(400, "invalid_grant");
        for at in 0..2 {
            assert_eq!(cluster.status(at, &next.text("access_token")).await, 400);
        }
    }
}
