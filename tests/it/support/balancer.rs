//! A balancer without stickiness between clients and replicas, which may cut connections.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// A load balancer that assigns each connection to the next replica.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    listener: Option<TcpListener>,
    tasks: JoinSet<()>,
}

impl Balancer {
    /// A balancer without replicas: their settings need its address.
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            listener: Some(listener),
            tasks: JoinSet::new(),
        }
    }

    /// The setting that makes replicas accept its address as a host.
    pub(crate) fn host(&self) -> String {
        format!("http.allowed_hosts=[\"{}\"]", self.address)
    }

    /// Forwards to `targets` (`host:port`) from now on. A connection is reset behind as many bytes
    /// of answers as `limit` returns for it.
    pub(crate) fn before(
        &mut self,
        targets: Vec<String>,
        mut limit: impl FnMut() -> usize + Send + 'static,
    ) {
        let listener = self.listener.take().expect("it serves already");
        self.tasks.spawn(async move {
            let (mut pairs, mut next) = (JoinSet::new(), targets.iter().cycle());
            while let Ok((near, _)) = listener.accept().await {
                let target = next.next().expect("there are targets").clone();
                pairs.spawn(pair(near, target, limit()));
                while pairs.try_join_next().is_some() {}
            }
        });
    }

    /// The URL of a replica through the balancer.
    pub(crate) fn by(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).unwrap();
        url.set_port(Some(self.address.port())).unwrap();
        url.into()
    }
}

async fn pair(near: TcpStream, target: String, limit: usize) {
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        // Closed with zero linger, so that the other end sees a reset.
        stream.set_zero_linger().unwrap();
    }
    let (mut near_read, mut near_write) = near.into_split();
    let (far_read, mut far_write) = far.into_split();
    let answers = async {
        // The connection ends at its limit.
        let mut answers = far_read.take(limit as u64);
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = answers.read(&mut buffer).await
            && near_write.write_all(&buffer[..read]).await.is_ok()
        {}
    };
    tokio::select! {
        () = answers => {}
        _ = tokio::io::copy(&mut near_read, &mut far_write) => {}
    }
}
