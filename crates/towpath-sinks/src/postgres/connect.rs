//! Connections to the database.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::PgAddress;
use super::failure::PgFailure;

/// An open connection. Dropping it closes it.
pub(super) struct PgConnection {
    pub(super) client: Client,
    /// Moves bytes between the client and the socket.
    driver: JoinHandle<()>,
}

impl Drop for PgConnection {
    fn drop(&mut self) {
        // A server that does not answer would keep the task, and the socket, for ever.
        self.driver.abort();
    }
}

/// Opens a connection.
pub(super) async fn connect(address: &PgAddress) -> Result<PgConnection, PgFailure> {
    let failed = |e: tokio_postgres::Error| PgFailure::of(&e);
    let connecting = async {
        if address.config.get_ssl_mode() == SslMode::Disable {
            let (client, connection) = address.config.connect(NoTls).await.map_err(failed)?;
            return Ok(PgConnection { client, driver: tokio::spawn(run(connection)) });
        }
        let tls = MakeRustlsConnect::new(tls_config(address)?);
        let (client, connection) = address.config.connect(tls).await.map_err(failed)?;
        Ok(PgConnection { client, driver: tokio::spawn(run(connection)) })
    };
    // The driver's own limit ends with the TCP connection; a proxy without a server behind it accepts and is silent.
    match tokio::time::timeout(super::CONNECT_TIMEOUT * 2, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(PgFailure::Unavailable("the server accepts connections and does not answer".into())),
    }
}

async fn run(connection: impl Future<Output = Result<(), tokio_postgres::Error>>) {
    // The next statement reports why the connection ended; this tells those who look at the log at the time.
    if let Err(e) = connection.await {
        tracing::debug!(error = %PgFailure::of(&e), "the connection to PostgreSQL ended");
    }
}

/// Makes the TLS configuration: certificates of this machine, or of Mozilla where it has none, and the named ones.
fn tls_config(address: &PgAddress) -> Result<ClientConfig, PgFailure> {
    let mut roots = towpath_client::root_store();
    if let Some(file) = &address.root_certificates {
        let error =
            |e: &dyn std::fmt::Display| PgFailure::Refused(format!("sslrootcert {}: {e}", file.display()));
        for certificate in CertificateDer::pem_file_iter(file).map_err(|e| error(&e))? {
            roots.add(certificate.map_err(|e| error(&e))?).map_err(|e| error(&e))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|e| PgFailure::Refused(format!("cannot set up TLS: {e}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
