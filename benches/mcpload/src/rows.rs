//! --rows: sessions of many tenants at once; each answer is held against its tenant's canary.

use crate::{
    client::{check_text, clip, Conn, Msg, Reply, Session, Target, BOTH},
    load::round,
    Args,
};
use hyper::{header::HeaderMap, Method, StatusCode};
use serde_json::{json, Value};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// What every canary begins with: whatever begins so and is not one's own is foreign.
const MARK: &str = "TENANT-";

struct Row {
    target: Target,
    canary: String,
    name: String,
}

/// What all sessions count together.
#[derive(Default)]
struct Sums {
    left: Cell<u64>,
    calls: Cell<u64>,
    stolen: Cell<u64>,
    foreign_bytes: Cell<u64>,
    errors: RefCell<BTreeMap<String, u64>>,
}

impl Sums {
    fn error(&self, mut e: String) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() >= 16 && !errors.contains_key(&e) {
            e = "other".into();
        }
        *errors.entry(e).or_default() += 1;
    }

    /// Counts the bytes of other tenants' canaries in `text`, and tells if its own is there.
    fn look(&self, text: &str, own: &str) -> bool {
        let mut has_own = false;
        for (at, _) in text.match_indices(MARK) {
            let rest = &text[at..];
            if rest.starts_with(own) {
                has_own = true;
            } else {
                let end = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
                    .unwrap_or(rest.len());
                self.foreign_bytes
                    .set(self.foreign_bytes.get() + end as u64);
            }
        }
        has_own
    }
}

pub async fn mixed(args: &Rc<Args>, file: &str) -> Result<Value, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut parts = line.split('\t');
        let (Some(url), Some(header), Some(canary)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(format!("{file}:{}: three columns", number + 1));
        };
        let patience = Duration::from_secs_f64(args.timeout);
        let headers = [header.to_owned()];
        rows.push(Row {
            target: Target::new(url, &headers, &args.protocol_version, patience)?,
            canary: canary.into(),
            name: format!("r{number}"),
        });
    }
    let rows = Rc::new(rows);
    let t = Instant::now();
    let mut sessions = Vec::new();
    for some in (0..rows.len())
        .collect::<Vec<_>>()
        .chunks(args.open_concurrency.max(1))
    {
        let open = |at: usize| {
            let rows = rows.clone();
            tokio::task::spawn_local(async move {
                let mut conn = Conn::default();
                let row = &rows[at];
                let session = Session::open(&row.target, &mut conn, row.name.clone()).await?;
                Ok::<_, String>((session, conn))
            })
        };
        let opening: Vec<_> = some.iter().map(|at| open(*at)).collect();
        for one in opening {
            sessions.push(one.await.map_err(|e| e.to_string())??);
        }
    }
    let open_s = t.elapsed().as_secs_f64();
    let (sessions, conns): (Vec<_>, Vec<_>) = sessions.into_iter().unzip();
    let sessions = Rc::new(sessions);
    let sums = Rc::new(Sums::default());
    sums.left.set(args.calls);
    let t = Instant::now();
    let tasks: Vec<_> = conns
        .into_iter()
        .enumerate()
        .map(|(at, conn)| {
            let (rows, sessions, sums) = (rows.clone(), sessions.clone(), sums.clone());
            let seed = args.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (at as u64 + 1);
            tokio::task::spawn_local(lane(at, rows, sessions, conn, seed, sums))
        })
        .collect();
    for task in tasks {
        task.await.map_err(|e| e.to_string())?;
    }
    let seconds = t.elapsed().as_secs_f64();
    let errors: u64 = sums.errors.borrow().values().sum();
    Ok(json!({
        "mode": "rows", "sessions": sessions.len(), "open_s": round(open_s), "seed": args.seed,
        "calls": sums.calls.get(), "stolen_sessions_tried": sums.stolen.get(),
        "foreign_bytes": sums.foreign_bytes.get(),
        "errors": errors, "error_kinds": *sums.errors.borrow(),
        "seconds": round(seconds), "rps": round(sums.calls.get() as f64 / seconds),
    }))
}

/// Random calls of one session until all are made.
async fn lane(
    at: usize,
    rows: Rc<Vec<Row>>,
    sessions: Rc<Vec<Session>>,
    mut conn: Conn,
    mut seed: u64,
    sums: Rc<Sums>,
) {
    let row = &rows[at];
    while sums.left.get() > 0 {
        sums.left.set(sums.left.get() - 1);
        // xorshift64*: which call comes next needs no better randomness.
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        let random = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16;
        let work = one(row, at, &sessions, &mut conn, random, &sums);
        match timeout(row.target.timeout, work).await {
            Ok(Ok(())) => sums.calls.set(sums.calls.get() + 1),
            Ok(Err(e)) => {
                sums.error(e);
                conn.close();
            }
            Err(_) => {
                sums.error("timeout".into());
                conn.close();
            }
        }
    }
}

async fn one(
    row: &Row,
    at: usize,
    sessions: &[Session],
    conn: &mut Conn,
    random: u64,
    sums: &Sums,
) -> Result<(), String> {
    let session = &sessions[at];
    let id = session.next_id();
    let text = format!("{}.{}.{id}", row.name, row.canary);
    let call = |tool: &str| {
        let args = format!(r#"{{"text":"{text}"}}"#);
        session.call_body(&row.target, id, tool, &args, false)
    };
    let (body, wanted) = match random % 10 {
        0..=4 => (call("whose"), Some(format!("{} {text}", row.canary))),
        5 | 6 => (call("echo"), Some(text.clone())),
        7 => {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#);
            (body.into(), None)
        }
        8 => {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/read","params":{{"uri":"test://{text}"}}}}"#
            );
            (body.into(), None)
        }
        _ => {
            let other = (random / 10) as usize % sessions.len();
            if other == at {
                return Ok(());
            }
            return steal(row, &sessions[other].headers, call("whose"), conn, sums).await;
        }
    };
    let sent = conn.send(&row.target, Method::POST, &session.headers, BOTH, body);
    let mut reply = Reply::any(sent.await?);
    let status = reply.status;
    let (is_sse, got) = (reply.sse, reply.text().await);
    let has_own = sums.look(&got, &row.canary);
    if status != StatusCode::OK {
        return Err(format!("http {} {}", status.as_u16(), clip(&got)));
    }
    if !has_own {
        return Err("an answer without its canary".into());
    }
    let message = if is_sse {
        let mut data = got.lines().filter_map(|line| line.strip_prefix("data: "));
        data.next_back().unwrap_or_default()
    } else {
        &got
    };
    let read: Msg = serde_json::from_str(message).map_err(|e| format!("bad json: {e}"))?;
    if read.id.is_none_or(|got| got.get() != id.to_string()) {
        return Err("wrong id".into());
    }
    wanted.map_or(Ok(()), |wanted| check_text(message, &wanted))
}

/// The session of somebody else: it must be as if there were none.
async fn steal(
    row: &Row,
    headers: &HeaderMap,
    body: bytes::Bytes,
    conn: &mut Conn,
    sums: &Sums,
) -> Result<(), String> {
    let sent = conn.send(&row.target, Method::POST, headers, BOTH, body);
    let mut reply = Reply::any(sent.await?);
    let status = reply.status;
    let got = reply.text().await;
    sums.stolen.set(sums.stolen.get() + 1);
    sums.look(&got, &row.canary);
    match status {
        StatusCode::NOT_FOUND => Ok(()),
        status => Err(format!("a stolen session: http {}", status.as_u16())),
    }
}
