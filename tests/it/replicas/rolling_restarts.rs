//! Replicas behind a load balancer without stickiness: restarted in turn, killed and frozen.
//! Clients count their answers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::{Client, Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    replicas::sessions::Replicas,
    support::{
        gauges::scaled,
        harness::{Events, Session, is_stream, tool_call, until, within},
    },
};

/// A load balancer that gives each request to the next ready replica, and skips one that refuses
/// connections. It keeps no connection, so that none is closed by one side while the other uses it.
struct Balancer {
    /// The MCP endpoints; `None` for a replica that is not ready.
    urls: watch::Sender<Vec<Option<String>>>,
    next: AtomicUsize,
    http: Client,
}

impl Balancer {
    fn before(replicas: &Replicas) -> Arc<Self> {
        let urls = (0..2).map(|at| Some(replicas.node(at).url.clone()));
        let http = Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(0);
        Arc::new(Self {
            urls: watch::Sender::new(urls.collect()),
            next: AtomicUsize::new(0),
            http: http.build().unwrap(),
        })
    }

    fn set(&self, at: usize, url: Option<String>) {
        self.urls.send_modify(|urls| urls[at] = url);
    }

    /// Sends a request of a session; `None` if no replica answered, or the connection broke.
    async fn send(
        &self,
        session: &Session,
        ask: impl Fn(&Session) -> reqwest::RequestBuilder,
    ) -> Option<reqwest::Response> {
        for _ in 0..20 {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let urls = self.urls.borrow().clone();
            let Some(url) = urls[number % urls.len()].clone() else {
                continue;
            };
            let mut way = session.again();
            (way.http, way.url) = (self.http.clone(), url);
            match within("an answer", ask(&way).send()).await {
                Ok(response) => return Some(response),
                Err(error) if error.is_connect() => {}
                Err(_) => return None,
            }
        }
        None
    }
}

/// Tolerated failures of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// No failure.
    None,
    /// A call may get 503 or end with −31001; sessions may not be lost.
    Calls,
}

/// A client that makes its child send numbered notifications, and reads them.
struct Visitor {
    session: Session,
    balancer: Arc<Balancer>,
    loss: Loss,
    /// True when the client has to stop.
    is_over: Arc<AtomicBool>,
}

impl Visitor {
    /// Makes the child send `number`; true if the call is confirmed.
    async fn says(&self, number: u64) -> bool {
        let args = json!({"method": "notifications/number", "params": {"number": number}});
        let call = tool_call(json!(number), "notify", args).to_string();
        let ask = |way: &Session| {
            let request = way.request(Method::POST).body(call.clone());
            let request = request.header("Content-Type", "application/json");
            request.header("Accept", way.accept)
        };
        let Some(response) = self.balancer.send(&self.session, ask).await else {
            assert_eq!(self.loss, Loss::Calls, "no answer to call {number}");
            return false;
        };
        let status = response.status();
        if status != StatusCode::OK {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(self.loss, Loss::Calls, "call {number} is refused");
            return false;
        }
        let answer: Option<Value> = if is_stream(&response) {
            let messages = Events::of(response).messages().await;
            messages.last().map(|(_, message)| message.clone())
        } else {
            let text = response.text().await.ok();
            text.map(|text| serde_json::from_str(&text).unwrap())
        };
        let is_said = answer
            .as_ref()
            .is_some_and(|said| said["result"].is_object());
        if !is_said {
            assert_eq!(self.loss, Loss::Calls, "call {number}: {answer:?}");
        }
        is_said
    }

    /// Sends until it is stopped; returns the numbers that were confirmed.
    async fn sends(&self) -> Vec<u64> {
        let (mut number, mut said) = (0, Vec::new());
        while !self.is_over.load(Ordering::SeqCst) {
            number += 1;
            if self.says(number).await {
                said.push(number);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        said
    }

    /// Listens through any replica, with reconnects, until it has read `last`.
    async fn hears(&self, mut last: watch::Receiver<Option<u64>>) -> Vec<u64> {
        let (mut heard, mut cursor) = (Vec::new(), None::<String>);
        let is_all = |heard: &[u64], last: Option<u64>| {
            last.is_some_and(|last| heard.last().copied().unwrap_or(0) >= last)
        };
        loop {
            let ask = |way: &Session| {
                let mut request = way.request(Method::GET);
                if let Some(cursor) = &cursor {
                    request = request.header("Last-Event-ID", cursor);
                }
                request.header("Accept", "text/event-stream")
            };
            let response = self.balancer.send(&self.session, ask).await;
            let response = response.filter(|response| {
                let status = response.status().as_u16();
                assert!([200, 503].contains(&status), "a listener is told {status}");
                status == 200
            });
            let Some(response) = response else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let mut events = Events::of(response);
            loop {
                if is_all(&heard, *last.borrow_and_update()) {
                    return heard;
                }
                let event = tokio::select! {
                    event = events.next() => event,
                    Ok(()) = last.changed() => continue,
                };
                let Some(event) = event else { break };
                if let Some(id) = event.id.clone() {
                    cursor = Some(id);
                }
                if event.is_message() {
                    let message: Value = serde_json::from_str(&event.data.unwrap()).unwrap();
                    heard.extend(message["params"]["number"].as_u64());
                }
            }
        }
    }

    /// Sends and listens until it is stopped: no event is lost, repeated or out of order.
    async fn visits(self) -> usize {
        let (end, last) = watch::channel(None);
        let sending = async {
            let said = self.sends().await;
            end.send_replace(Some(said.last().copied().unwrap_or(0)));
            said
        };
        let (said, heard) = tokio::join!(sending, self.hears(last));
        assert!(heard.is_sorted_by(|one, next| one < next), "{heard:?}");
        let lost: Vec<_> = said
            .iter()
            .filter(|number| heard.binary_search(number).is_err())
            .collect();
        // A JSON answer does not wait for the store: the replica may have died before it stored the
        // notification, which was then never sent. A client has one such call at a time, and two
        // replicas die.
        let bound = if self.loss == Loss::Calls { 2 } else { 0 };
        assert!(lost.len() <= bound, "lost: {lost:?} of {heard:?}");
        said.len()
    }
}

/// Clients that run until they are stopped.
struct Crowd {
    balancer: Arc<Balancer>,
    is_over: Arc<AtomicBool>,
    visitors: Vec<JoinHandle<usize>>,
}

impl Crowd {
    async fn come(replicas: &Replicas, loss: Loss) -> Self {
        let (balancer, is_over) = (Balancer::before(replicas), Arc::<AtomicBool>::default());
        let mut visitors = Vec::new();
        for number in 0..8 {
            let visitor = Visitor {
                session: replicas.node(number % 2).session().await,
                balancer: Arc::clone(&balancer),
                loss,
                is_over: Arc::clone(&is_over),
            };
            visitors.push(tokio::spawn(visitor.visits()));
        }
        Self {
            balancer,
            is_over,
            visitors,
        }
    }

    /// Waits for all of them; returns the number of answered calls.
    async fn go(self) -> usize {
        self.is_over.store(true, Ordering::SeqCst);
        let mut count = 0;
        for visitor in self.visitors {
            count += within("a visitor", visitor).await.unwrap();
        }
        count
    }
}

const SETS: [&str; 2] = ["drain.delay=1s", "drain.timeout=10s"];
const KEYS: &str = "idle: 10m";

/// Stops a replica as an orchestrator does, tells the balancer, and starts the replica again.
async fn restart(replicas: &mut Replicas, balancer: &Balancer, at: usize) {
    let node = replicas.node(at);
    node.signal(Signal::TERM);
    let health = node.url.replace("/t/a/x/mcp", "/readyz");
    until("a replica that is not ready", || async {
        let answer = node.http.get(&health).send().await;
        answer.is_ok_and(|answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE)
    })
    .await;
    balancer.set(at, None);
    assert_eq!(replicas.wait(at).await, Some(0));
    begin(replicas, balancer, at).await;
}

/// Starts a replica that has ended.
async fn begin(replicas: &mut Replicas, balancer: &Balancer, at: usize) {
    replicas.start(at, &SETS, KEYS).await;
    balancer.set(at, Some(replicas.node(at).url.clone()));
}

/// A rolling restart that no client notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_fails_no_request_and_loses_no_event() {
    let mut replicas = Replicas::with(2, &SETS, KEYS).await;
    let crowd = Crowd::come(&replicas, Loss::None).await;
    for _ in 0..scaled("rolling restarts", 20, 1) {
        for at in 0..2 {
            restart(&mut replicas, &crowd.balancer, at).await;
        }
    }
    let count = crowd.go().await;
    assert!(count > 100, "{count}");
}

/// Killed and frozen replicas: calls may end with an error; sessions and events survive.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_are_killed_and_frozen_in_turn_lose_no_session_and_no_event() {
    let mut replicas = Replicas::with(2, &SETS, KEYS).await;
    let crowd = Crowd::come(&replicas, Loss::Calls).await;
    let balancer = Arc::clone(&crowd.balancer);
    replicas.kill(0).await;
    begin(&mut replicas, &balancer, 0).await;
    // Replica 1 is frozen until replica 0 serves its sessions, then woken and fenced.
    let session = replicas.node(1).session().await;
    replicas.node(1).signal(Signal::STOP);
    balancer.set(1, None);
    let way = replicas.by(&session, 0);
    until("another owner", || async {
        let answer = way.begin("counter", json!({})).await;
        answer.status() == StatusCode::OK && answer.text().await.unwrap().contains("result")
    })
    .await;
    replicas.node(1).signal(Signal::CONT);
    replicas.ready(1).await;
    balancer.set(1, Some(replicas.node(1).url.clone()));
    restart(&mut replicas, &balancer, 0).await;
    let count = crowd.go().await;
    assert!(count > 100, "{count}");
}
