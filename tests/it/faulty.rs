//! A TCP forwarder that breaks what goes through it: delays, stalls, resets.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::Instant,
};

/// What happens to bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    /// They go through.
    Pass,
    /// They go through later.
    Delay(Duration),
    /// They wait until another mode; connections stay open.
    Stall,
    /// Connections are reset, and new ones are closed at once.
    Cut,
}

/// Forwards connections to one address.
pub(crate) struct Faulty {
    pub(crate) address: SocketAddr,
    mode: watch::Sender<Mode>,
    _tasks: JoinSet<()>,
}

impl Faulty {
    /// Before `target` (`host:port`); passes everything.
    pub(crate) async fn before(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, told) = watch::channel(Mode::Pass);
        let (target, mut tasks) = (target.to_owned(), JoinSet::new());
        tasks.spawn(async move {
            let mut pairs = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                pairs.spawn(pair(near, target.clone(), told.clone()));
            }
        });
        Self {
            address,
            mode,
            _tasks: tasks,
        }
    }

    /// From now on.
    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn pair(near: TcpStream, target: String, mut mode: watch::Receiver<Mode>) {
    if *mode.borrow() == Mode::Cut {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        // Closed with what was not read: the other end sees a reset.
        stream.set_zero_linger().unwrap();
    }
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::select! {
        () = one_way(near_read, far_write, mode.clone()) => {}
        () = one_way(far_read, near_write, mode.clone()) => {}
        _ = mode.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

async fn one_way(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
) {
    let (sender, mut pieces) = tokio::sync::mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if sender
                .send((Instant::now(), buffer[..read].to_vec()))
                .await
                .is_err()
            {
                return;
            }
        }
        drop(sender);
    };
    let writing = async {
        while let Some((since, piece)) = pieces.recv().await {
            let now = *mode.wait_for(|mode| *mode != Mode::Stall).await.unwrap();
            if let Mode::Delay(delay) = now {
                tokio::time::sleep_until(since + delay).await;
            }
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, writing);
}
