//! Connecting and encrypting.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A connection, encrypted or not.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// The file of certificates to trust instead of the built-in ones, as OpenSSL has it.
const CERTIFICATES: &str = "SSL_CERT_FILE";

/// A connection, and whether it stays within this machine.
pub(super) async fn connect(server: &str) -> io::Result<(Box<dyn Io>, bool)> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let is_local = stream.peer_addr()?.ip().to_canonical().is_loopback();
    Ok((Box::new(stream), is_local))
}

/// The same connection encrypted, with the server of this name and nobody else.
pub(super) async fn encrypt(stream: Box<dyn Io>, host: &str) -> io::Result<Box<dyn Io>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config()?));
    Ok(Box::new(connector.connect(name, stream).await?))
}

fn config() -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match std::env::var_os(CERTIFICATES) {
        Some(file) => {
            for certificate in CertificateDer::pem_file_iter(file).map_err(io::Error::other)? {
                roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
            }
        }
        None => {
            roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
