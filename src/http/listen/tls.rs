//! TLS of a listener: certificates from PEM files, reloaded when the files change.
//!
//! Client certificates are not requested: only the token identifies the caller.
//! The handshake is made here, too, within bounds of what is kept of either side.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::spawn_blocking;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::base::{SETTING_MAX, content, moment};

/// Configuration for new handshakes; open connections keep theirs.
pub(crate) type TlsReload = Arc<ArcSwap<ServerConfig>>;

/// Reason why a certificate cannot be used; the text is for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, io::Error),
    /// A file has no usable PEM section of the expected kind.
    #[error("{0} has no usable {1}")]
    NotPem(PathBuf, &'static str),
    /// Certificate and key are well-formed but not usable together.
    #[error("certificate and key do not serve: {0}")]
    Unusable(rustls::Error),
}

/// Paths of the certificate and its key.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// Certificate chain, the server's own certificate first.
    pub(crate) cert: PathBuf,
    /// Private key: PKCS #8, PKCS #1 or SEC 1.
    pub(crate) key: PathBuf,
}

/// Contents of the files at their last read.
#[derive(PartialEq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
}

/// What a watch has found so far.
#[derive(Default)]
struct Found {
    /// The contents at the last look.
    last: Option<Contents>,
    /// The certificate in use.
    used: Option<Vec<u8>>,
    /// Whether the last contents wait, because their certificate alone is out of its time.
    waits: bool,
}

impl Files {
    /// Reads both files for the first time; an error is fatal here.
    pub(crate) fn load(&self) -> Result<TlsReload, TlsError> {
        let contents = self.read()?;
        Ok(Arc::new(ArcSwap::new(self.config(&contents)?)))
    }

    /// Says that the certificate is not valid at this time, with its file and the remedy; none if it is.
    pub(crate) fn lapse(&self) -> Option<String> {
        let what = lapse(&content(&self.cert, SETTING_MAX).ok()?)?;
        Some(self.told(&what))
    }

    fn told(&self, what: &str) -> String {
        let file = self.cert.display();
        format!("the certificate in {file} {what}; put a valid one there, and look at the clock")
    }

    /// Reloads the files every five seconds until `stop`. A bad new pair is logged once, and the old
    /// pair stays in use.
    pub(crate) async fn watch(self, reload: TlsReload, stop: CancellationToken) {
        self.watch_every(EVERY, reload, stop).await;
    }

    async fn watch_every(self, every: Duration, reload: TlsReload, stop: CancellationToken) {
        // Starts without the contents from `load`, so that no change in between is missed.
        let mut found = Found::default();
        loop {
            let files = self.clone();
            let read = spawn_blocking(move || files.read());
            match read
                .await
                .unwrap_or_else(|ended| Err(TlsError::Unreadable(self.cert.clone(), ended.into())))
            {
                Ok(contents) => self.take(contents, &mut found, &reload),
                // The files are being replaced, or are gone: the old pair stays in use.
                Err(error) => tracing::warn!(%error, "cannot look at the TLS certificate"),
            }
            tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(every) => {} }
        }
    }

    /// Takes over a pair that is new. One out of its time waits as long as the pair in use is within its own.
    fn take(&self, contents: Contents, found: &mut Found, reload: &TlsReload) {
        let is_new = found.last.as_ref() != Some(&contents);
        if !is_new && !found.waits {
            return;
        }
        found.waits = false;
        match self.config(&contents) {
            Ok(config) => {
                let is_used_valid = found
                    .used
                    .as_ref()
                    .is_some_and(|cert| lapse(cert).is_none());
                if let Some(what) = lapse(&contents.cert).filter(|_| is_used_valid) {
                    found.waits = true;
                    if is_new {
                        let what = self.told(&what);
                        tracing::warn!("new TLS certificate refused; keeping the old: {what}");
                    }
                } else {
                    reload.store(config);
                    if found.last.is_some() {
                        tracing::info!("TLS certificate replaced");
                    }
                    found.used = Some(contents.cert.clone());
                }
            }
            Err(error) => tracing::error!(%error, "new TLS certificate refused; keeping the old"),
        }
        found.last = Some(contents);
    }

    fn read(&self) -> Result<Contents, TlsError> {
        let read = |path: &Path| {
            content(path, SETTING_MAX).map_err(|error| TlsError::Unreadable(path.to_owned(), error))
        };
        Ok(Contents {
            cert: read(&self.cert)?,
            key: read(&self.key)?,
        })
    }

    fn config(&self, contents: &Contents) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = CertificateDer::pem_slice_iter(&contents.cert)
            .collect::<Result<Vec<_>, _>>()
            .ok()
            .filter(|chain| !chain.is_empty())
            .ok_or_else(|| TlsError::NotPem(self.cert.clone(), CERTIFICATE))?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|_| TlsError::NotPem(self.key.clone(), "private key"))?;
        // The process default provider is not used, because tests run several gateways.
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
                .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
                .map_err(TlsError::Unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Makes the handshake of a connection, of which neither side is kept without a bound.
pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    config: Arc<ServerConfig>,
) -> io::Result<TlsStream<Bounded<S>>> {
    let bounded = Bounded {
        io: stream,
        left: Some(HELLO),
    };
    let mut secured = TlsAcceptor::from(config).accept(bounded).await?;
    let (bounded, session) = secured.get_mut();
    bounded.left = None;
    session.set_buffer_limit(Some(UNSENT));
    Ok(secured)
}

/// A socket of which so much may be read before its handshake is complete. rustls keeps a message of the handshake until it
/// has its end, up to 64 KiB.
pub(super) struct Bounded<S> {
    io: S,
    /// Bytes that may still be read; any number once the handshake is complete.
    left: Option<usize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, left } = &mut *self;
        if *left == Some(0) {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(io).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        *left = left.map(|most| most.saturating_sub(read));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}

/// What is wrong with the time of the server's own certificate, the first of a chain.
fn lapse(chain: &[u8]) -> Option<String> {
    let own = CertificateDer::pem_slice_iter(chain).next()?.ok()?;
    let own = ParsedCertificate::try_from(&own).ok()?;
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    // Its time is looked at before its issuer, which is none of these.
    let (authorities, now) = (RootCertStore::empty(), UnixTime::now());
    let checked =
        verify_server_cert_signed_by_trust_anchor(&own, &authorities, &[], now, algorithms.all);
    let at = |time: UnixTime| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        moment(seconds.saturating_mul(1000))
    };
    match checked {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => Some(format!("has ended at {}", at(not_after))),
        Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        })) => Some(format!("is not valid before {}", at(not_before))),
        _ => None,
    }
}

/// Name of the certificate in [`TlsError::NotPem`].
pub(crate) const CERTIFICATE: &str = "certificate";

/// Bytes of a handshake, with a record of what comes at once behind it (RFC 8446, section 5.2: 16 KiB and 261 bytes) and
/// the read in which that ends. A client hello has some two KiB, and no certificate is asked for.
const HELLO: usize = 32 << 10;
/// Bytes of answers that rustls takes while the socket is full: one record. They count as taken by the client.
const UNSENT: usize = 16 << 10;
/// Interval of reloads. Files are polled because inotify misses mounts of Kubernetes secrets.
const EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio_rustls::client;

    use super::super::tls::*;

    fn pair(name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "a test awaits what it spawns")]
    async fn a_new_certificate_is_loaded_and_a_bad_one_is_not() {
        let dir = tempfile::tempdir().expect("directory");
        let files = Files {
            cert: dir.path().join("c.pem"),
            key: dir.path().join("k.pem"),
        };
        let write = |pair: &(String, String)| {
            std::fs::write(&files.key, &pair.1).expect("write");
            std::fs::write(&files.cert, &pair.0).expect("write");
        };
        write(&pair("one.test"));
        let reload = files.load().expect("first");
        let stop = CancellationToken::new();
        let watching = tokio::spawn(files.clone().watch_every(
            Duration::from_millis(10),
            Arc::clone(&reload),
            stop.clone(),
        ));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = reload.load_full();
        write(&pair("two.test"));
        let changed = tokio::time::timeout(Duration::from_secs(5), async {
            while Arc::ptr_eq(&before, &reload.load_full()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        changed.await.expect("the new one is taken");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let good = reload.load_full();
        std::fs::write(&files.cert, "nonsense").expect("write");
        std::fs::write(&files.key, pair("three.test").1).expect("write");
        tokio::time::sleep(Duration::from_millis(80)).await;
        assert!(
            Arc::ptr_eq(&good, &reload.load_full()),
            "the old one is kept"
        );
        stop.cancel();
        watching.await.expect("ends");
    }

    /// A pair that is valid in these years.
    fn pair_of(from: i32, until: i32) -> Contents {
        let mut made = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
        made.not_before = rcgen::date_time_ymd(from, 1, 1);
        made.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        Contents {
            cert: made.self_signed(&key).expect("certificate").pem().into(),
            key: key.serialize_pem().into(),
        }
    }

    #[test]
    fn a_certificate_out_of_its_time_is_told() {
        let dir = tempfile::tempdir().expect("directory");
        let files = Files {
            cert: dir.path().join("c.pem"),
            key: dir.path().join("k.pem"),
        };
        for (from, until, wanted) in [
            (2020, 2021, Some("has ended at 2021-01-01T00:00:00Z")),
            (2090, 2091, Some("is not valid before 2090-01-01T00:00:00Z")),
            (2020, 2090, None),
        ] {
            let pair = pair_of(from, until);
            std::fs::write(&files.cert, &pair.cert).expect("write");
            std::fs::write(&files.key, &pair.key).expect("write");
            assert!(files.load().is_ok(), "an operator may have no other");
            let file = files.cert.display();
            let told = wanted.map(|what| {
                format!(
                    "the certificate in {file} {what}; put a valid one there, and look at the clock"
                )
            });
            assert_eq!(files.lapse(), told);
        }
    }

    #[test]
    fn a_certificate_that_has_ended_does_not_replace_a_valid_one() {
        let files = Files {
            cert: "c.pem".into(),
            key: "k.pem".into(),
        };
        let begin = |pair: Contents| {
            let reload: TlsReload = Arc::new(ArcSwap::new(files.config(&pair).expect("usable")));
            let mut found = Found::default();
            files.take(pair, &mut found, &reload);
            (reload, found)
        };
        let is_taken = |pair: Contents, found: &mut Found, reload: &TlsReload| {
            let before = reload.load_full();
            files.take(pair, found, reload);
            !Arc::ptr_eq(&before, &reload.load_full())
        };
        let (reload, mut found) = begin(pair_of(2020, 2090));
        assert!(!is_taken(pair_of(2020, 2021), &mut found, &reload));
        assert!(!is_taken(pair_of(2089, 2090), &mut found, &reload));
        assert!(is_taken(pair_of(2020, 2091), &mut found, &reload));
        // Of two that have ended the newer one is as good.
        let (reload, mut found) = begin(pair_of(2020, 2021));
        assert!(is_taken(pair_of(2020, 2022), &mut found, &reload));
        // One that waits is taken when the one in use has ended too.
        let (reload, mut found) = begin(pair_of(2020, 2090));
        let ended = pair_of(2020, 2021);
        let again = Contents {
            cert: ended.cert.clone(),
            key: ended.key.clone(),
        };
        assert!(!is_taken(ended, &mut found, &reload));
        found.used = Some(pair_of(2020, 2022).cert);
        assert!(is_taken(again, &mut found, &reload));
    }

    /// A configuration for a certificate of its own, which comes with it.
    fn own_config() -> (Arc<ServerConfig>, CertificateDer<'static>) {
        let files = Files {
            cert: "c.pem".into(),
            key: "k.pem".into(),
        };
        let (cert, key) = pair("a.test");
        let own = CertificateDer::from_pem_slice(cert.as_bytes()).expect("certificate");
        let contents = Contents {
            cert: cert.into(),
            key: key.into(),
        };
        (files.config(&contents).expect("usable"), own)
    }

    /// The two ends of a connection, of which a socket takes `room` bytes each way.
    async fn secured(
        room: usize,
    ) -> (
        TlsStream<Bounded<DuplexStream>>,
        client::TlsStream<DuplexStream>,
    ) {
        let (config, own) = own_config();
        let mut roots = RootCertStore::empty();
        roots.add(own).expect("a root");
        let trusting =
            rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_root_certificates(roots)
                .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(trusting));
        let (near, far) = tokio::io::duplex(room);
        let name = ServerName::try_from("a.test").expect("a name");
        let both = tokio::join!(accept(near, config), connector.connect(name, far));
        (both.0.expect("server"), both.1.expect("client"))
    }

    /// Of each connection whose client reads nothing 64 KiB of answers were in nobody's share.
    #[tokio::test]
    async fn answers_that_nobody_takes_stay_with_those_who_count_them() {
        let room = 4 << 10;
        let (mut server, mut client) = secured(room).await;
        let answer = vec![b'x'; 256 << 10];
        let mut taken = 0;
        tokio::task::unconstrained(std::future::poll_fn(|cx| {
            while let Poll::Ready(more) = Pin::new(&mut server).poll_write(cx, &answer[taken..]) {
                taken += more.expect("taken");
            }
            Poll::Ready(())
        }))
        .await;
        assert!((1..=UNSENT + room).contains(&taken), "{taken} bytes");
        // The rest is taken as soon as the client reads.
        let rest = async {
            server.write_all(&answer[taken..]).await.expect("write");
            server.flush().await.expect("flush");
        };
        let mut read = vec![0; answer.len()];
        let ((), received) = tokio::join!(rest, client.read_exact(&mut read));
        assert_eq!(received.expect("all of it"), answer.len());
    }

    /// 60 KiB of each were kept for ten seconds, and nobody counted them.
    #[tokio::test]
    async fn a_client_hello_without_its_end_ends_its_connection() {
        // A client hello of 65,531 bytes in records of 8 KiB.
        let mut hello = vec![1, 0, 0xff, 0xfb];
        hello.resize(60 << 10, 0);
        let record = |part: &[u8]| [&[22, 3, 1, 0x20, 0][..], part].concat();
        let sent: Vec<u8> = hello.chunks_exact(8 << 10).flat_map(record).collect();
        let (near, mut far) = tokio::io::duplex(1 << 20);
        far.write_all(&sent).await.expect("write");
        let (config, _) = own_config();
        let accepted = tokio::time::timeout(Duration::from_secs(5), accept(near, config));
        assert!(accepted.await.expect("it goes on").is_err());
    }

    /// A request that comes at once behind the handshake is no part of it.
    #[tokio::test]
    async fn what_comes_behind_a_handshake_has_no_bound() {
        let (mut server, mut client) = secured(1 << 20).await;
        let sent = vec![b'x'; 256 << 10];
        client.write_all(&sent).await.expect("write");
        client.flush().await.expect("flush");
        let mut read = vec![0; sent.len()];
        assert_eq!(server.read_exact(&mut read).await.expect("read"), 256 << 10);
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let files = Files {
            cert: dir.path().join("c.pem"),
            key: dir.path().join("k.pem"),
        };
        std::fs::write(&files.cert, pair("a.test").0).expect("write");
        std::fs::write(&files.key, pair("b.test").1).expect("write");
        assert!(matches!(files.load(), Err(TlsError::Unusable(_))));
    }
}
