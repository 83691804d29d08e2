//! Checks of the certificates and keys in the settings, before the start.
//!
//! Not here: reading the settings (`config`).

use crate::{
    auth::api_key,
    config::{Config, Mistake, Wrong},
    database::vault::Keyring,
    http::listen::{CERTIFICATE, Files, TlsError},
};

/// Mistakes in certificates and keys, found by loading them.
pub(crate) fn mistakes(config: &Config) -> Vec<Mistake> {
    let tls = config.http.tls.as_ref().and_then(|tls| {
        let (cert, key) = (tls.cert.clone(), tls.key.clone());
        let files = Files { cert, key };
        let error = files.load().err()?;
        let (key, remedy) = match &error {
            TlsError::NotPem(_, CERTIFICATE) => ("http.tls.cert", CHAIN),
            TlsError::Unreadable(path, _) if *path == files.cert => ("http.tls.cert", CHAIN),
            TlsError::Unreadable(..) | TlsError::NotPem(..) => (
                "http.tls.key",
                "name a readable PEM file with the private key",
            ),
            TlsError::Unusable(_) => ("http.tls.key", "name the key of that certificate"),
        };
        Some(Wrong::new(error.to_string(), remedy).at(config.place(key), key))
    });
    let master = config.storage.master_key.as_ref().and_then(|text| {
        let wrong = Keyring::parse(text.expose()).err()?;
        Some(wrong.at(config.place("master_key"), "master_key"))
    });
    let admin = config.storage.admin_key.as_ref().and_then(|key| {
        let wrong = Wrong::new("is no API key", "write one that lockgate key new prints");
        let is_key = api_key::hash_of(key.expose()).is_some();
        (!is_key).then(|| wrong.at("environment", "LOCKGATE_ADMIN_KEY"))
    });
    [tls, master, admin].into_iter().flatten().collect()
}

/// Says that the certificate is not valid at this time: key, problem and remedy.
pub(crate) fn lapse(config: &Config) -> Option<String> {
    let tls = config.http.tls.as_ref()?;
    let (cert, key) = (tls.cert.clone(), tls.key.clone());
    let lapse = Files { cert, key }.lapse()?;
    Some(format!("http.tls.cert: {lapse}"))
}

const CHAIN: &str = "name a readable PEM file with the chain";
