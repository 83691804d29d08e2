//! A forwarder between a client and a gateway that cuts connections.

use std::net::SocketAddr;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::support::harness::Gateway;

/// A forwarder that can cut all its connections.
pub(crate) struct Cutter {
    address: SocketAddr,
    cuts: watch::Sender<u32>,
    _tasks: JoinSet<()>,
}

impl Cutter {
    /// A cutter in front of a new gateway with these settings.
    pub(crate) async fn before(sets: &[&str]) -> (Self, Gateway) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let host = format!("http.allowed_hosts=[\"{address}\"]");
        let gateway = Gateway::start(&[&[host.as_str()], sets].concat()).await;
        let target = gateway.base().strip_prefix("http://").unwrap().to_owned();
        let (cuts, told) = watch::channel(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(Self::forward(listener, target, told));
        let cutter = Self {
            address,
            cuts,
            _tasks: tasks,
        };
        (cutter, gateway)
    }

    async fn forward(listener: TcpListener, target: String, told: watch::Receiver<u32>) {
        let mut pairs = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            let (target, mut told) = (target.clone(), told.clone());
            told.mark_unchanged();
            pairs.spawn(async move {
                let mut far = TcpStream::connect(target).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    _ = told.changed() => {}
                }
            });
        }
    }

    /// The MCP endpoint through the cutter.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Cuts all open connections, and returns their number.
    pub(crate) fn cut(&self) -> usize {
        // One receiver is the acceptor's.
        let open = self.cuts.receiver_count() - 1;
        self.cuts.send_modify(|cuts| *cuts += 1);
        open
    }
}
