//! An HTTP server with scripted answers, which records its requests.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
};

use serde_json::{Value, json};

use super::harness::until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]
type Shared = Arc<std::sync::Mutex<State>>;

/// A scripted HTTP server.
pub(crate) struct Stage {
    /// The beginning of its URLs.
    pub(crate) url: String,
    state: Shared,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    answers: HashMap<String, Answer>,
    asked: Vec<String>,
}

impl State {
    /// The answer of a path whose refresh tokens are good for one use.
    fn rotated(&mut self, path: &str, request: &str) -> (u16, Value) {
        let Some(Answer::Rotating(tokens, number)) = self.answers.get_mut(path) else {
            return (404, Value::Null);
        };
        let form = request.rsplit("\r\n").next().unwrap_or_default();
        let mut fields = form.split('&');
        if let Some(used) = fields.find_map(|field| field.strip_prefix("refresh_token=")) {
            if used != format!("r{number}") {
                return (400, json!({"error": "invalid_grant"}));
            }
            *number += 1;
        }
        let mut given = tokens.clone();
        given["refresh_token"] = json!(format!("r{number}"));
        (200, given)
    }
}

/// The answer of a path.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// This status and this JSON.
    Json(u16, Value),
    /// This text as JSON, with status 200.
    Text(String),
    /// A redirect.
    Redirect(String),
    /// This JSON with the refresh token `r{number}`, which is good for one use: that gives the next number. Any other one is
    /// refused.
    Rotating(Value, u32),
    /// No answer.
    Slow,
    /// The next answer that the path has.
    Held,
}

impl Stage {
    /// A server without any path.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Shared::default();
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(answer(socket, Arc::clone(&shared)));
            }
        });
        Self { url, state, task }
    }

    /// Sets the answer of a path.
    pub(crate) fn set(&self, path: &str, answer: Answer) {
        self.lock().answers.insert(path.to_owned(), answer);
    }

    /// Sets the answer of a path to this JSON, with status 200.
    pub(crate) fn json(&self, path: &str, body: Value) {
        self.set(path, Answer::Json(200, body));
    }

    /// The requests so far that begin with `begin`, heads and bodies.
    pub(crate) fn asked(&self, begin: &str) -> Vec<String> {
        let state = self.lock();
        let found = state.asked.iter().filter(|asked| asked.starts_with(begin));
        found.cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut socket: TcpStream, state: Shared) {
    let mut request = Vec::new();
    while !is_whole(&request) {
        let mut some = [0; 4096];
        match socket.read(&mut some).await {
            Ok(count @ 1..) => request.extend_from_slice(&some[..count]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let target = request.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default().to_owned();
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    lock().asked.push(request.clone());
    let found = || lock().answers.get(&path).cloned();
    until("the answer", async || {
        !matches!(found(), Some(Answer::Held))
    })
    .await;
    let (status, more, body) = match found() {
        Some(Answer::Json(status, body)) => (status, String::new(), body.to_string()),
        Some(Answer::Rotating(..)) => {
            let (status, body) = lock().rotated(&path, &request);
            (status, String::new(), body.to_string())
        }
        Some(Answer::Text(body)) => (200, String::new(), body),
        Some(Answer::Redirect(to)) => (302, format!("Location: {to}\r\n"), "{}".to_owned()),
        Some(Answer::Slow) => {
            // Wait until the other side closes.
            let _ = socket.read(&mut [0; 1]).await;
            return;
        }
        Some(Answer::Held) => unreachable!("it was waited for"),
        None => (404, String::new(), "{}".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n",
        body.len()
    );
    let _ = socket.write_all((head + &body).as_bytes()).await;
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    body.len() >= length.unwrap_or(0)
}
