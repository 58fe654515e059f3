//! TLS setup of the HTTP clients: ring for cryptography, the machine's certificates for trust.

use std::sync::Arc;

use reqwest::{Certificate, ClientBuilder};
use rustls::RootCertStore;

/// The HTTP client cannot be set up. The cause is this machine, not a publisher.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client: {0}")]
pub struct SetupError(String);

/// Builds the client that `configure` describes.
///
/// Trusts the machine's certificate store, which includes an operator's own authorities. A machine without one, such
/// as a minimal container, falls back to Mozilla's authorities as compiled in.
pub(super) fn build(configure: impl Fn() -> ClientBuilder) -> Result<reqwest::Client, SetupError> {
    install_provider();
    let with_system_certificates = configure().build();
    let Err(reason) = with_system_certificates else {
        return with_system_certificates.map_err(|e| SetupError(e.to_string()));
    };
    let reason = super::explain::root_cause(&reason);
    tracing::debug!(reason, "no certificate store on this machine: using the built-in certificates");
    let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS;
    let roots = roots.iter().filter_map(|der| Certificate::from_der(der).ok());
    // A second build: a builder is consumed by the failed one.
    configure().tls_certs_only(roots).build().map_err(|e| SetupError(super::explain::root_cause(&e)))
}

/// Returns the authorities that connections beside HTTP trust, as HTTPS does: those of the machine, or of
/// `SSL_CERT_FILE` and `SSL_CERT_DIR` where set, or else Mozilla's.
pub fn root_store() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "a certificate of this machine cannot be read");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    }
    roots
}

/// Installs ring as the process's default provider of TLS cryptography, unless another one is installed.
pub fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread has installed one in between, which serves as well.
        let _: Result<(), Arc<_>> = rustls::crypto::ring::default_provider().install_default();
    }
}
