//! TLS of the server itself, with certificates that are read again when their files change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use crate::config::TlsConfig;
use crate::engine::certificate::CertificateEnd;
use crate::stop::{Stop, stopped};

/// Name of HTTP/2 in a TLS handshake (ALPN).
pub(super) const HTTP2_PROTOCOL: &[u8] = b"h2";

/// Interval of looking at the files.
// Polled: where a symbolic link is exchanged, as Kubernetes does for secrets, a watch of the file sees nothing.
const INTERVAL: Duration = Duration::from_secs(2);

/// Reason why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or does not hold what it should.
    #[error("cannot use {key} {path}: {reason}", path = path.display())]
    File {
        /// Key of the configuration.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// Certificate and key do not fit together, or cannot be used for TLS.
    #[error("cannot serve TLS with {cert} and {key}: {reason}", cert = cert.display(), key = key.display())]
    Pair {
        /// File of the certificates.
        cert: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// Cause.
        reason: String,
    },
}

/// Certificate and key as they are now.
pub struct TlsIdentity {
    files: ArcSwap<TlsConfig>,
    end: Arc<CertificateEnd>,
    current: ArcSwap<ServerConfig>,
}

/// Certificate and key that were read, and are not in use yet.
pub(crate) struct LoadedTls {
    files: TlsConfig,
    config: ServerConfig,
    not_after: Option<Timestamp>,
}

/// Times and lengths of both files: they differ after a change.
type FileStamps = [Option<(SystemTime, u64)>; 2];

impl TlsIdentity {
    /// Reads certificate and key.
    ///
    /// # Errors
    ///
    /// Files that cannot be read, or do not fit together.
    pub fn load(files: TlsConfig) -> Result<Self, TlsError> {
        let loaded = Self::read(files)?;
        let end = Arc::new(CertificateEnd::default());
        end.set(loaded.not_after);
        let current = ArcSwap::from_pointee(loaded.config);
        Ok(Self { files: ArcSwap::from_pointee(loaded.files), end, current })
    }

    /// Reads the files of a configuration. Nothing changes yet.
    ///
    /// # Errors
    ///
    /// Files that cannot be read, or do not fit together.
    pub(crate) fn read(files: TlsConfig) -> Result<LoadedTls, TlsError> {
        let (config, not_after) = read(&files)?;
        Ok(LoadedTls { files, config, not_after })
    }

    /// Uses other files from now on. Open connections keep the certificate that they began with.
    pub(crate) fn replace(&self, loaded: LoadedTls) {
        self.end.set(loaded.not_after);
        self.files.store(Arc::new(loaded.files));
        self.current.store(Arc::new(loaded.config));
    }

    /// Returns the end of the certificate in use.
    pub(crate) fn certificate_end(&self) -> &Arc<CertificateEnd> {
        &self.end
    }

    /// Returns an acceptor with the newest certificate.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.load_full())
    }

    /// Reads the files again whenever they change, until the server stops.
    pub(super) async fn watch(self: Arc<Self>, stop: Stop) {
        let mut seen = self.stamps();
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = stopped(&stop) => return,
            }
            let stamps = self.stamps();
            if stamps == seen {
                continue;
            }
            // Also after a failure: one warning for each change, not one for each look.
            seen = stamps;
            self.reload();
        }
    }

    fn reload(&self) {
        let files = self.files.load_full();
        match read(&files) {
            Ok((config, not_after)) => {
                self.end.set(not_after);
                self.current.store(Arc::new(config));
                tracing::info!(file = %files.cert.display(), "the certificate was read again");
            }
            // Two files change one after the other: between them, they may not fit together.
            Err(e) => {
                tracing::warn!(error = %e, "the earlier certificate stays in use until the files change again");
            }
        }
    }

    fn stamps(&self) -> FileStamps {
        let stamp = |path: &Path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        let files = self.files.load();
        [stamp(&files.cert), stamp(&files.key)]
    }
}

/// Reads both files. Also returns the end of the certificate.
fn read(files: &TlsConfig) -> Result<(ServerConfig, Option<Timestamp>), TlsError> {
    let TlsConfig { cert, key, .. } = files;
    let bytes = read_file("[server.tls] cert", cert)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|e| unusable("[server.tls] cert", cert, &e))?;
    if certificates.is_empty() {
        return Err(unusable("[server.tls] cert", cert, &"it has no certificate in PEM form"));
    }
    let bytes = read_file("[server.tls] key", key)?;
    // rustls says what the file lacks, never what is in it.
    let private = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| unusable("[server.tls] key", key, &e))?;
    let pair =
        |e: rustls::Error| TlsError::Pair { cert: cert.clone(), key: key.clone(), reason: e.to_string() };
    // Named here: a default of the process panics where two crates bring different providers.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(pair)?.with_no_client_auth();
    // The first is the server's own; its issuers follow (RFC 8446, section 4.4.2).
    let not_after = certificates.first().and_then(|certificate| end_of(certificate));
    let mut config = builder.with_single_cert(certificates, private).map_err(pair)?;
    // In the order of preference. A client that names neither gets HTTP/1.1.
    let protocols: &[&[u8]] = if files.http2 { &[HTTP2_PROTOCOL, b"http/1.1"] } else { &[b"http/1.1"] };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok((config, not_after))
}

/// Returns the end of a certificate's validity.
fn end_of(certificate: &[u8]) -> Option<Timestamp> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let seconds = certificate.tbs_certificate.validity.not_after.to_unix_duration().as_secs();
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
}

fn read_file(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|e| unusable(key, path, &e))
}

fn unusable(key: &'static str, path: &Path, reason: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { key, path: path.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a new certificate and its key.
    fn write(folder: &Path, cert: &str, key: &str) {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.join(cert), pair.cert.pem()).unwrap();
        std::fs::write(folder.join(key), pair.signing_key.serialize_pem()).unwrap();
    }

    fn files(folder: &Path, cert: &str, key: &str) -> TlsConfig {
        TlsConfig { cert: folder.join(cert), key: folder.join(key), http2: true }
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        write(at, "a.pem", "a.key");
        write(at, "b.pem", "b.key");
        std::fs::write(at.join("empty"), "").unwrap();
        assert!(TlsIdentity::load(files(at, "a.pem", "a.key")).is_ok());
        for (cert, key, expected) in [
            ("none.pem", "a.key", "[server.tls] cert"),
            ("a.pem", "none.key", "[server.tls] key"),
            ("empty", "a.key", "no certificate"),
            ("a.pem", "empty", "empty"),
            ("a.key", "a.key", "no certificate"),
            ("a.pem", "b.key", "b.key"),
        ] {
            let error = TlsIdentity::load(files(at, cert, key)).err().unwrap().to_string();
            assert!(error.contains(expected) && error.contains(at.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn a_broken_file_keeps_the_earlier_certificate() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a.pem", "a.key");
        let identity = TlsIdentity::load(files(folder.path(), "a.pem", "a.key")).unwrap();
        let (before, stamps) = (identity.current.load_full(), identity.stamps());
        std::fs::write(folder.path().join("a.pem"), "broken").unwrap();
        assert_ne!(identity.stamps(), stamps);
        identity.reload();
        assert!(Arc::ptr_eq(&before, &identity.current.load_full()));
        write(folder.path(), "a.pem", "a.key");
        identity.reload();
        assert!(!Arc::ptr_eq(&before, &identity.current.load_full()));
    }
}
