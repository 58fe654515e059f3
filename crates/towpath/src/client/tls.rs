//! The HTTP client underneath, with its TLS: ring for cryptography, the machine's certificates for trust.

use std::sync::Arc;

use reqwest::{Certificate, ClientBuilder};

/// The HTTP client cannot be made: the machine's fault, not a publisher's.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client: {0}")]
pub struct SetupError(String);

/// Builds the client that `configure` describes.
///
/// Trust comes from the machine's certificate store, so that an operator's own authorities count; on a bare
/// machine without one, from Mozilla's authorities as compiled in.
pub(super) fn build(configure: impl Fn() -> ClientBuilder) -> Result<reqwest::Client, SetupError> {
    install_provider();
    let of_machine = configure().build();
    let Err(reason) = of_machine else { return of_machine.map_err(|e| SetupError(e.to_string())) };
    let reason = super::explain::root_cause(&reason);
    tracing::debug!(reason, "no certificates on this machine: using the built-in ones");
    let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS;
    let roots = roots.iter().filter_map(|der| Certificate::from_der(der).ok());
    configure().tls_certs_only(roots).build().map_err(|e| SetupError(super::explain::root_cause(&e)))
}

pub(crate) fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Losing a race against another thread that installs one is as good.
        let _: Result<(), Arc<_>> = rustls::crypto::ring::default_provider().install_default();
    }
}
