//! One answer for all who waited alike: put into bytes once, and written to every socket as it is.
//!
//! Ten thousand clients that wait for one feed are answered at once. hyper would make its buffers and the same
//! head for each of them; here that is done once, and what is left for each is one write.

use std::io::Write as _;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, DATE};
use jiff::Timestamp;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use towpath_proto::format::http_date;

use super::connection::HEAD_TIMEOUT;
use crate::engine::smart::Told;
use crate::stop::{Stop, stopped};

/// Sends an answer to a client whose connection is kept, and waits for its next request. Returns the socket once
/// there is something to read; `None` where there will not be.
pub(super) async fn send(mut stream: TcpStream, told: &Told, stop: &Stop) -> Option<TcpStream> {
    let written = told.written.get_or_init(|| write(told, Timestamp::now()));
    stream.write_all(written).await.ok()?;
    let is_ready = tokio::select! {
        ready = timeout(HEAD_TIMEOUT, stream.readable()) => matches!(ready, Ok(Ok(()))),
        () = stopped(stop) => false,
    };
    is_ready.then_some(stream)
}

/// A response of HTTP/1.1 (RFC 9112, section 4) with its date (RFC 9110, section 6.6.1).
fn write(told: &Told, now: Timestamp) -> Bytes {
    let mut out = Vec::with_capacity(512 + told.body.len());
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    for (name, value) in told.headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH && *name != DATE) {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    // Writing to memory cannot fail.
    let _ = write!(out, "content-length: {}\r\ndate: {}\r\n\r\n", told.body.len(), http_date::write(now));
    out.extend_from_slice(&told.body);
    out.into()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use http::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn rfc_9112_4_an_answer_in_bytes() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>; rel=self"));
        headers.append("link", HeaderValue::from_static("<b>; rel=hub"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        let told = Told { headers, body: Bytes::from_static(b"{}"), cursor: None, written: OnceLock::new() };
        let expected = "HTTP/1.1 200 OK\r\nlink: <a>; rel=self\r\nlink: <b>; rel=hub\r\n\
            content-length: 2\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n{}";
        assert_eq!(write(&told, Timestamp::UNIX_EPOCH), expected);
    }
}
