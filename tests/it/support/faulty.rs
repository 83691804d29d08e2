//! A TCP forwarder with faults: delays, stalls and resets at chosen places.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::Instant,
};

/// The fault that is applied to bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    /// No fault.
    Pass,
    /// A delay.
    Delay(Duration),
    /// A stall until the next mode; connections stay open.
    Stall,
    /// Connections are reset, and new ones are closed at once.
    Cut,
    /// Each connection, also a new one, is reset behind so many bytes of answers.
    Sever(usize),
    /// The server's half of each connection is closed; requests still pass.
    HalfClose,
    /// So many bytes per second in each direction.
    Trickle(usize),
    /// One commit of PostgreSQL is hit; everything else passes.
    Commit(Hit),
}

/// The commit that is hit; its connection is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// A value that a statement of the transaction contains.
    pub(crate) names: [u8; 32],
    /// The number of such commits that pass before it.
    pub(crate) after: usize,
    /// True if the server receives the commit, so that only its answer is lost.
    pub(crate) is_done: bool,
}

/// A forwarder of connections to one address.
pub(crate) struct Faulty {
    pub(crate) address: SocketAddr,
    mode: watch::Sender<Mode>,
    target: watch::Sender<String>,
    /// The number of open connections.
    open: watch::Sender<usize>,
    commits: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Faulty {
    /// A forwarder to `target` (`host:port`) that passes everything.
    pub(crate) async fn before(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, _) = watch::channel(Mode::Pass);
        let (open, _) = watch::channel(0);
        let (target, to) = watch::channel(target.to_owned());
        let commits = Arc::<AtomicUsize>::default();
        let (told, counted, mut tasks) = (mode.clone(), Arc::clone(&commits), JoinSet::new());
        let opened = open.clone();
        tasks.spawn(async move {
            let mut pairs = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let pair = pair(
                    near,
                    to.borrow().clone(),
                    told.clone(),
                    Arc::clone(&counted),
                );
                let opened = opened.clone();
                opened.send_modify(|open| *open += 1);
                pairs.spawn(async move {
                    pair.await;
                    opened.send_modify(|open| *open -= 1);
                });
            }
        });
        Self {
            address,
            mode,
            target,
            open,
            commits,
            _tasks: tasks,
        }
    }

    /// Sets the fault from now on.
    pub(crate) fn set(&self, mode: Mode) {
        self.commits.store(0, Ordering::SeqCst);
        self.mode.send_replace(mode);
    }

    /// The current fault.
    pub(crate) fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    /// Cuts every connection; new ones go elsewhere.
    pub(crate) async fn redirect(&self, target: &str) {
        self.set(Mode::Cut);
        self.target.send_replace(target.to_owned());
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open == 0).await.unwrap();
        self.set(Mode::Pass);
    }
}

async fn pair(
    near: TcpStream,
    target: String,
    mode: watch::Sender<Mode>,
    commits: Arc<AtomicUsize>,
) {
    let mut told = mode.subscribe();
    if *told.borrow() == Mode::Cut {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        // Closed with zero linger, so that the other end sees a reset.
        stream.set_zero_linger().unwrap();
    }
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let is_hit = Arc::<AtomicBool>::default();
    let way = |kind| Way {
        kind,
        mode: mode.clone(),
        is_hit: Arc::clone(&is_hit),
        commits: Arc::clone(&commits),
        is_named: false,
        answered: 0,
    };
    tokio::select! {
        () = way(Kind::Asked).run(near_read, far_write) => {}
        () = way(Kind::Answered).run(far_read, near_write) => {}
        _ = told.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

/// One direction of a connection.
struct Way {
    kind: Kind,
    mode: watch::Sender<Mode>,
    /// True if the connection ends instead of the next answer.
    is_hit: Arc<AtomicBool>,
    commits: Arc<AtomicUsize>,
    /// True if the current transaction contains the value of the hit.
    is_named: bool,
    /// The bytes of answers that were counted.
    answered: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Asked,
    Answered,
}

impl Way {
    async fn run(
        mut self,
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
    ) {
        let (sender, mut pieces) = tokio::sync::mpsc::channel::<(Instant, Vec<u8>)>(1024);
        let mut mode = self.mode.subscribe();
        let reading = async {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = from.read(&mut buffer).await {
                let piece = (Instant::now(), buffer[..read].to_vec());
                if sender.send(piece).await.is_err() {
                    return;
                }
            }
            drop(sender);
        };
        let writing = async {
            loop {
                let closing = mode.wait_for(|mode| *mode == Mode::HalfClose);
                let next = tokio::select! {
                    _ = closing, if self.kind == Kind::Answered => None,
                    next = pieces.recv() => Some(next),
                };
                let Some(next) = next else {
                    // A closed half: further answers are dropped until the client closes.
                    to.shutdown().await.unwrap_or_default();
                    while pieces.recv().await.is_some() {}
                    return;
                };
                let Some((since, piece)) = next else { return };
                let now = *mode.wait_for(|mode| *mode != Mode::Stall).await.unwrap();
                if let Mode::Delay(delay) = now {
                    tokio::time::sleep_until(since + delay).await;
                }
                if !self.pass(now, &piece, &mut to).await {
                    return;
                }
            }
        };
        tokio::select! {
            // Bytes that were read are forwarded before the end.
            () = async { reading.await; std::future::pending().await } => {}
            () = writing => {}
        }
    }

    /// Forwards a piece, or a part of it; false at the end of the connection.
    async fn pass(
        &mut self,
        mode: Mode,
        piece: &[u8],
        to: &mut tokio::net::tcp::OwnedWriteHalf,
    ) -> bool {
        match mode {
            Mode::Sever(most) if self.kind == Kind::Answered => {
                let left = most.saturating_sub(self.answered).min(piece.len());
                self.answered += left;
                to.write_all(&piece[..left]).await.is_ok() && left == piece.len()
            }
            Mode::Trickle(rate) => {
                for part in piece.chunks((rate / 20).max(1)) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    if to.write_all(part).await.is_err() {
                        return false;
                    }
                }
                true
            }
            Mode::Commit(hit) => {
                let is_it = self.kind == Kind::Asked && self.is_commit(hit, piece);
                if is_it {
                    self.is_hit.store(true, Ordering::SeqCst);
                    self.mode.send_replace(Mode::Pass);
                }
                (!is_it || hit.is_done) && self.whole(piece, to).await
            }
            _ => self.whole(piece, to).await,
        }
    }

    async fn whole(&self, piece: &[u8], to: &mut tokio::net::tcp::OwnedWriteHalf) -> bool {
        let is_lost = self.kind == Kind::Answered && self.is_hit.load(Ordering::SeqCst);
        !is_lost && to.write_all(piece).await.is_ok()
    }

    /// True if a piece is the commit to hit.
    fn is_commit(&mut self, hit: Hit, piece: &[u8]) -> bool {
        let has = |text: &[u8]| piece.windows(text.len()).any(|part| part == text);
        self.is_named = (self.is_named && !has(b"BEGIN")) || has(&hit.names);
        let is_end = self.is_named && has(b"COMMIT");
        self.is_named &= !is_end;
        is_end && self.commits.fetch_add(1, Ordering::SeqCst) == hit.after
    }
}
