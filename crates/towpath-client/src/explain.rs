//! Network errors as one readable phrase. The phrases omit the URL, because the error that wraps them names it.

use std::error::Error;
use std::io;

use rustls::{CertificateError, Error as TlsError};
use towpath_proto::follow::TransferError;

use super::address_policy::RefusedAddress;

/// Converts the error of a request without a response.
pub(super) fn request_error(error: &reqwest::Error) -> TransferError {
    if error.is_builder() {
        return TransferError::Url(root_cause(error));
    }
    if let Some(refused) = find::<RefusedAddress>(error) {
        return TransferError::Address(refused.to_string());
    }
    if error.is_timeout() {
        return TransferError::Timeout("no connection in time".into());
    }
    TransferError::Connect(reason(error))
}

/// Converts the error of a truncated body.
pub(super) fn body_error(error: &reqwest::Error) -> TransferError {
    TransferError::Body(reason(error))
}

/// Converts the error of an encoded body: truncated in transfer, or invalid for its coding.
pub(super) fn decode_error(error: &io::Error) -> TransferError {
    match find::<reqwest::Error>(error) {
        Some(transfer) => body_error(transfer),
        None => TransferError::Body(format!("its compression is broken ({})", root_cause(error))),
    }
}

/// Returns the innermost error's message, without the operating system's error number.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let text = chain(error).last().unwrap_or(error).to_string();
    // The number means nothing to most readers, and the text says the same.
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

/// Returns the cause of a failed request as one phrase: TLS, name resolution, HTTP, or the connection.
pub fn reason(error: &(dyn Error + 'static)) -> String {
    // TLS first: rustls errors arrive wrapped in an io::Error, whose kind says nothing.
    if let Some(tls) = chain(error).find_map(tls_error) {
        return tls_reason(tls);
    }
    // hyper-util has no public type for DNS errors, so only the text identifies them.
    if chain(error).any(|e| e.to_string().starts_with("dns error")) {
        return format!("its host name cannot be resolved ({})", root_cause(error));
    }
    if let Some(http) = find::<hyper::Error>(error) {
        if http.is_incomplete_message() {
            return "the server closed the connection before the end of its answer".into();
        }
        if http.is_parse_too_large() {
            return "the answer's headers are too large".into();
        }
        if http.is_parse() {
            return format!("the answer is not HTTP ({})", root_cause(error));
        }
    }
    match find::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => "the connection was refused".into(),
        Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => "the connection was reset".into(),
        Some(io::ErrorKind::UnexpectedEof) => {
            "the server closed the connection before the end of its answer".into()
        }
        _ => root_cause(error),
    }
}

fn tls_reason(error: &TlsError) -> String {
    match error {
        TlsError::InvalidCertificate(reason) => certificate_reason(reason),
        TlsError::AlertReceived(alert) => format!("the server refused the TLS handshake ({alert:?})"),
        TlsError::InvalidMessage(_) => "the server does not speak TLS at this address".into(),
        other => format!("no TLS connection: {other}"),
    }
}

fn certificate_reason(reason: &CertificateError) -> String {
    use CertificateError as C;
    match reason {
        C::Expired | C::ExpiredContext { .. } => "its TLS certificate has expired".into(),
        C::NotValidYet | C::NotValidYetContext { .. } => "its TLS certificate is not valid yet".into(),
        C::NotValidForName | C::NotValidForNameContext { .. } => {
            "its TLS certificate is for another host name".into()
        }
        C::UnknownIssuer => {
            "its TLS certificate is signed by an authority that this machine does not trust".into()
        }
        C::Revoked => "its TLS certificate has been revoked".into(),
        // rustls wraps this case of webpki as an opaque error.
        other if other.to_string().contains("CaUsedAsEndEntity") => {
            "its TLS certificate is signed by itself, and this machine does not trust it".into()
        }
        other => format!("its TLS certificate is not acceptable: {other}"),
    }
}

/// Iterates over the error and its causes, outermost first.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&e| match e.downcast_ref::<io::Error>() {
        // io::Error::source() returns the source of the wrapped error and so skips the wrapped error itself.
        Some(io) => io.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => e.source(),
    })
}

pub(super) fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    chain(error).find_map(|e| e.downcast_ref::<E>())
}

fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    error.downcast_ref::<TlsError>()
}
