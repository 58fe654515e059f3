//! TCP connect and STARTTLS.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use towpath_proto::push::xmpp::session::ConnectionPrivacy;

/// A connection, with or without TLS.
pub(super) trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for T {}

/// Connects to `server`, without TLS.
pub(super) async fn connect(server: &str) -> io::Result<(Box<dyn AsyncStream>, ConnectionPrivacy)> {
    let stream = TcpStream::connect(server).await?;
    // Stanzas are small; Nagle's algorithm would delay each by a round trip.
    stream.set_nodelay(true)?;
    // Loopback needs no TLS: nobody else can listen, and PLAIN is acceptable.
    let is_local = stream.peer_addr()?.ip().to_canonical().is_loopback();
    let privacy = if is_local { ConnectionPrivacy::Private } else { ConnectionPrivacy::Exposed };
    Ok((Box::new(stream), privacy))
}

/// Encrypts a connection and verifies that the server's certificate is for `host`.
pub(super) async fn encrypt(stream: Box<dyn AsyncStream>, host: &str) -> io::Result<Box<dyn AsyncStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config()?));
    Ok(Box::new(connector.connect(name, stream).await?))
}

fn config() -> io::Result<ClientConfig> {
    // Explicit, so that a program with another default provider still works.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(crate::tls::root_store()).with_no_client_auth())
}
