//! TLS of a listener: certificates from PEM files, reloaded when the files change.
//!
//! Client certificates are not requested: only the token identifies the caller.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::base::{SETTING_MAX, content};

/// Configuration for new handshakes; open connections keep theirs.
pub(crate) type TlsReload = Arc<ArcSwap<ServerConfig>>;

/// Reason why a certificate cannot be used; the text is for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
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

impl Files {
    /// Reads both files for the first time; an error is fatal here.
    pub(crate) fn load(&self) -> Result<TlsReload, TlsError> {
        let contents = self.read()?;
        Ok(Arc::new(ArcSwap::new(self.config(&contents)?)))
    }

    /// Reloads the files every five seconds until `stop`. A bad new pair is logged once, and the old
    /// pair stays in use.
    pub(crate) async fn watch(self, reload: TlsReload, stop: CancellationToken) {
        self.watch_every(EVERY, reload, stop).await;
    }

    async fn watch_every(self, every: Duration, reload: TlsReload, stop: CancellationToken) {
        // Starts without the contents from `load`, so that no change in between is missed.
        let mut last: Option<Contents> = None;
        loop {
            let files = self.clone();
            let read = spawn_blocking(move || files.read());
            match read
                .await
                .unwrap_or_else(|ended| Err(TlsError::Unreadable(self.cert.clone(), ended.into())))
            {
                Ok(contents) if last.as_ref() != Some(&contents) => {
                    let is_first = last.is_none();
                    match self.config(&contents) {
                        Ok(config) => {
                            reload.store(config);
                            if !is_first {
                                tracing::info!("TLS certificate replaced");
                            }
                        }
                        Err(error) => {
                            tracing::error!(%error, "new TLS certificate refused; keeping the old");
                        }
                    }
                    last = Some(contents);
                }
                Ok(_) => {}
                // The files are being replaced, or are gone: the old pair stays in use.
                Err(error) => tracing::warn!(%error, "cannot look at the TLS certificate"),
            }
            tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(every) => {} }
        }
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

/// Name of the certificate in [`TlsError::NotPem`].
pub(crate) const CERTIFICATE: &str = "certificate";

/// Interval of reloads. Files are polled because inotify misses mounts of Kubernetes secrets.
const EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
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
