//! Replicas with wrong clocks, a minute apart or set by an hour while they run. libfaketime
//! provides the clocks.

use std::{path::PathBuf, time::Duration};

use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    auth::external_tokens::bearer,
    support::{
        cluster::Cluster,
        harness::{Events, Session, is_stream, last, until, within},
        issuer::now,
        oauth_client::{App, send},
        redis::Reply,
    },
};

/// The library: `LIBFAKETIME`, or the file that `scripts/test` installed.
fn library() -> String {
    let own = std::env::var_os("LIBFAKETIME").map(PathBuf::from);
    let systems = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let mut tried = systems.map(|system| system.path().join("faketime/libfaketimeMT.so.1"));
    let found = own.or_else(|| tried.find(|library| library.is_file()));
    let found = found.expect("libfaketime: run scripts/test once, or set LIBFAKETIME to the file");
    assert!(found.is_file(), "no library {}", found.display());
    found.to_str().unwrap().to_owned()
}

/// The environment of a process with a faked wall clock; its timers are not affected.
fn faked<'e>(library: &'e str, more: (&'static str, &'e str)) -> [(&'static str, &'e str); 4] {
    [
        ("LD_PRELOAD", library),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("FAKETIME_NO_CACHE", "1"),
        more,
    ]
}

/// A wall clock that can be set while its processes run.
pub(crate) struct Faked {
    library: String,
    dir: tempfile::TempDir,
}

impl Faked {
    /// A clock that is ahead of ours by so many seconds, such as `+0`.
    pub(crate) fn at(seconds: &str) -> Self {
        // A database runs as another user.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let dir = tempfile::Builder::new().permissions(mode).tempdir();
        let faked = Self {
            library: library(),
            dir: dir.unwrap(),
        };
        faked.set(seconds);
        faked
    }

    /// Sets the offset atomically.
    pub(crate) fn set(&self, seconds: &str) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, seconds).unwrap();
        std::fs::rename(&new, self.dir.path().join("time")).unwrap();
    }

    /// The environment of a process with this clock.
    pub(crate) fn environment(&self) -> [(&'static str, String); 4] {
        let file = self.dir.path().join("time");
        let of_file = ("FAKETIME_TIMESTAMP_FILE", file.to_str().unwrap());
        faked(&self.library, of_file).map(|(name, value)| (name, value.to_owned()))
    }
}

/// The seconds by which the clock behind an answer is ahead of ours; less than half a day.
async fn offset(url: &str) -> i64 {
    let asked = crate::support::harness::client().get(url).send();
    let answer = within("an answer", asked).await.unwrap();
    // RFC 9110, section 5.6.7: "Sun, 06 Nov 1994 08:49:37 GMT".
    let said = answer.headers()["date"].to_str().unwrap();
    let time = said.split(' ').nth(4).unwrap().split(':');
    let then = time.fold(0, |time, part| time * 60 + part.parse::<i64>().unwrap());
    (then - now().cast_signed() + DAY / 2).rem_euclid(DAY) - DAY / 2
}

const DAY: i64 = 86_400;

/// One replica has the right time, the other replica is a minute ahead.
#[expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]
#[tokio::test(flavor = "multi_thread")]
async fn replicas_whose_clocks_are_a_minute_apart_believe_each_other() {
    let library = library();
    let ahead = faked(&library, ("FAKETIME", "+60s"));
    let cluster = Cluster::with([&[], &ahead], json!({})).await;
    for (at, wanted) in [(0, 0), (1, 60)] {
        let seconds = offset(&cluster.url(at)).await;
        assert!(
            (wanted - 3..=wanted + 3).contains(&seconds),
            "{at}: {seconds}"
        );
    }
    let apps = [
        App::public(&cluster.replicas[0], "a").await,
        App::public(&cluster.replicas[1], "a").await,
    ];
    let mut at_other = apps.clone();
    at_other[0].origin = cluster.replicas[1].origin().to_owned();
    at_other[1].origin = cluster.replicas[0].origin().to_owned();
    for at in 0..2 {
        let (own, other) = (&apps[at], &at_other[at]);
        // The other replica redeems a code, once.
        let code = own.code(&[]).await;
        let tokens = other.redeem(&code, &[]).await;
        assert_eq!(tokens.status, StatusCode::OK, "{at}: {}", tokens.body);
        let again = own.redeem(&code, &[]).await;
        again.assert_refused(400, "invalid_grant");
        let token = tokens.text("access_token");
        let refresh = tokens.text("refresh_token");
        // A retry at the other replica gets the same successor.
        let next = own.refresh(&refresh, &[]).await;
        let same = other.refresh(&refresh, &[]).await;
        assert_eq!(same.status, StatusCode::OK, "{at}: {}", same.body);
        assert_eq!(same.text("refresh_token"), next.text("refresh_token"));
        let same = own.refresh(&refresh, &[]).await;
        assert_eq!(same.status, StatusCode::OK, "{at}: {}", same.body);
        let good = [token, next.text("access_token"), same.text("access_token")];
        for token in &good {
            for at in 0..2 {
                assert_eq!(cluster.status(at, token).await, 400, "{at}");
            }
        }
        // Both replicas forward requests to each other.
        let here = cluster.session(at, &good[0]).await;
        let there = cluster.by(&here, 1 - at, &good[1]);
        assert_eq!(here.text("counter", json!({})).await, "1");
        assert_eq!(there.text("counter", json!({})).await, "2");
        assert_eq!(there.delete().await.status(), StatusCode::NO_CONTENT);
        for way in [&here, &there] {
            let gone = way.begin("counter", json!({})).await;
            assert_eq!(gone.status(), StatusCode::NOT_FOUND, "revived");
        }
    }
    // A revocation at one replica holds at the other, also for a code from just before.
    for at in 0..2 {
        let (own, other) = (&apps[at], &at_other[at]);
        let tokens = own.tokens().await;
        let code = own.code(&[]).await;
        let gateway = &cluster.replicas[1 - at];
        let url = format!("{}/api/v1/tenants/a/revocations", gateway.origin());
        let operator = cluster.replicas[0].administrator();
        let revoked = json!({"subject": "ada"});
        let answer = send(Method::POST, &url, &operator, Some(&revoked)).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
        for app in [own, other] {
            let refused = app.redeem(&code, &[]).await;
            refused.assert_refused(400, "invalid_grant");
            let refused = app.refresh(&tokens.text("refresh_token"), &[]).await;
            refused.assert_refused(400, "invalid_grant");
        }
        for at in 0..2 {
            until("the revocation", || async {
                cluster.status(at, &tokens.text("access_token")).await == 401
            })
            .await;
        }
        // A new log-in works.
        let tokens = other.tokens().await;
        for at in 0..2 {
            let token = tokens.text("access_token");
            assert_eq!(cluster.status(at, &token).await, 400, "{at}");
        }
    }
}

/// A code expires for both replicas at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_code_ends_at_the_same_time_for_replicas_whose_clocks_are_apart() {
    let library = library();
    let ahead = faked(&library, ("FAKETIME", "+60s"));
    let oauth = json!({"oauth": {"code": "2s"}});
    let cluster = Cluster::with([&[], &ahead], oauth).await;
    for at in 0..2 {
        let own = App::public(&cluster.replicas[at], "a").await;
        let mut other = own.clone();
        other.origin = cluster.replicas[1 - at].origin().to_owned();
        let quick = other.redeem(&own.code(&[]).await, &[]).await;
        assert_eq!(quick.status, StatusCode::OK, "{at}: {}", quick.body);
        let code = own.code(&[]).await;
        let ended = Instant::now() + Duration::from_millis(2500);
        until("its end", async || Instant::now() > ended).await;
        let late = other.redeem(&code, &[]).await;
        late.assert_refused(400, "invalid_grant");
    }
}

/// The clocks of both replicas are set to an hour later, then to an hour before.
#[expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_by_an_hour_is_noticed_by_no_timer() {
    let faked = Faked::at("+0");
    let env = faked.environment();
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let more = json!({"session": {"idle": "1m"}, "stream": {"keep_alive": "300ms"}});
    let cluster = Cluster::with([&env, &env], more).await;
    let operator = cluster.replicas[0].administrator();
    let url = format!("{}/api/v1/tenants/k/api-keys", cluster.replicas[0].origin());
    let key = json!({"name": "k", "subject": "ada", "servers": ["oauth"], "scopes": []});
    let key = send(Method::POST, &url, &operator, Some(&key))
        .await
        .text("key");
    let place = |at: usize| format!("{}/t/k/oauth/mcp", cluster.replicas[at].origin());
    let mut here = Session::at(bearer(&key), place(0));
    for at in 0..2 {
        let stranger = Session::at(bearer(&key), place(at));
        until("the key", || async {
            stranger.get(None).await.status() == StatusCode::BAD_REQUEST
        })
        .await;
    }
    here.initialize(crate::support::harness::NEWEST).await;
    let mut there = cluster.by(&here, 1, &key);
    there.url = place(1);
    assert_eq!(here.text("counter", json!({})).await, "1");
    let args = json!({"n": 400, "ms": 20});
    let mut streams = [
        here.stream("slow", args.clone(), json!("here")).await,
        there.stream("slow", args, json!("there")).await,
    ];
    let mut listener = there.listen().await;
    let mut last_seen = [0, 0];
    for (jump, wanted) in [("+0", 0), ("+3600", 3600), ("-3600", -3600), ("+0", 0)] {
        faked.set(jump);
        let mut clock = tokio::process::Command::new("date");
        let said = within("a clock", clock.arg("+%s").envs(env).output()).await;
        let said = String::from_utf8(said.unwrap().stdout).unwrap();
        let shown: i64 = said.trim().parse().unwrap();
        assert!((shown - now().cast_signed() - wanted).abs() < 5, "{said}");
        // The `Date` of answers never goes back, so only a jump ahead shows.
        for at in 0..if wanted > 0 { 2 } else { 0 } {
            until("the jump", || async {
                (offset(&place(at)).await - wanted).abs() < 5
            })
            .await;
        }
        for (stream, seen) in streams.iter_mut().zip(&mut last_seen) {
            for _ in 0..60 {
                let (id, message) = stream.message().await.unwrap();
                assert_eq!(message["params"]["progress"], *seen + 1);
                assert_eq!(number(&id), *seen + 1, "its id");
                *seen += 1;
            }
        }
        // Keep-alive and the hold time of answers are unchanged. Messages that waited for a reader
        // arrive at once.
        let (mut gaps, mut since) = (Vec::new(), Instant::now());
        while gaps.len() < 3 {
            let event = listener.next().await.unwrap();
            if event.comment.is_some() && since.elapsed() > Duration::from_millis(150) {
                gaps.push(since.elapsed());
            }
            since = Instant::now();
        }
        let longest = gaps.iter().max().unwrap();
        assert!(*longest < Duration::from_secs(3), "{gaps:?}");
        let response = there.begin("sleep", json!({"ms": 400})).await;
        assert!(is_stream(&response));
        assert!(last(response).await["result"].is_object());
        // No lease was lost, and no lifetime changed.
        for at in 0..2 {
            assert_eq!(cluster.health(at).await.0, StatusCode::OK);
        }
        let id = here.id.as_deref().unwrap();
        let left = cluster
            .redis
            .command(&["PTTL", &format!("lockgate:v1:{{{id}}}")]);
        let Reply::Number(left) = left else {
            panic!("no time to live: {left:?}")
        };
        assert!((60_000..=120_000).contains(&left), "{left} ms");
    }
    for (mut stream, seen) in streams.into_iter().zip(last_seen) {
        let rest = stream.messages().await;
        assert_eq!(rest.len() as u64 + seen, 401);
        // Events from before the jumps are still kept.
        let first = rest.first().unwrap().0.clone();
        let again = Events::of(there.get(Some(&first)).await).messages().await;
        assert_eq!(again.len() + 1, rest.len());
    }
    for (way, count) in [(&here, "2"), (&there, "3")] {
        assert_eq!(way.text("counter", json!({})).await, count);
    }
}

/// The number in an event id: its third part (stream, epoch, number, MAC).
fn number(id: &str) -> u64 {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let bytes = URL_SAFE_NO_PAD.decode(id).unwrap();
    u64::from_be_bytes(bytes[8..16].try_into().unwrap())
}
