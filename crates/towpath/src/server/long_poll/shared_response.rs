//! The shared response of a poll as one client's answer, and as bytes of HTTP/1.1.

use std::io::{self, Write as _};

use bytes::{Buf as _, Bytes};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, DATE};
use jiff::Timestamp;
use tokio::io::AsyncWriteExt as _;
use towpath_proto::format::http_date;

use super::parked::ClientStream;
use crate::document::prebuilt::Answer;
use crate::protocols::smart::SharedResponse;
use crate::wall_clock;

/// Length from which a body is written from where it is. Below it, one piece is quicker to write than two.
const LARGE_BODY: usize = 16 << 10;

impl SharedResponse {
    /// Returns the response as hyper sends it.
    pub(super) fn answer(&self) -> Answer {
        Answer { status: StatusCode::OK, headers: self.headers.clone(), body: self.body.clone() }
    }

    /// Writes the response to a parked connection, which stays open after it.
    pub(super) async fn write_http1(&self, stream: &mut ClientStream) -> io::Result<()> {
        let head = self.http1.get_or_init(|| write_http1(self, wall_clock::now()));
        if self.has_own_body() {
            return stream.write_all_buf(&mut head.clone().chain(self.body.clone())).await;
        }
        stream.write_all(head).await
    }

    /// Returns true if the body is not copied behind the head.
    fn has_own_body(&self) -> bool {
        self.body.len() >= LARGE_BODY
    }
}

/// Makes an HTTP/1.1 response (RFC 9112, section 4), or the head of one with a large body, with its date (RFC 9110, section 6.6.1).
fn write_http1(response: &SharedResponse, now: Timestamp) -> Bytes {
    // Room for a usual head, so the buffer is mostly allocated once.
    let body = if response.has_own_body() { &[] } else { &response.body[..] };
    let mut out = Vec::with_capacity(512 + body.len());
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    // Written once, below: two lengths would leave the end of the response open (RFC 9112, section 6.3).
    for (name, value) in response.headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH && *name != DATE)
    {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    // Writing to memory cannot fail.
    let _ = write!(out, "content-length: {}\r\ndate: {}\r\n\r\n", response.body.len(), http_date::write(now));
    out.extend_from_slice(body);
    out.into()
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use http::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn rfc_9112_4_a_response_in_bytes() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>; rel=self"));
        headers.append("link", HeaderValue::from_static("<b>; rel=hub"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        let body = Bytes::from_static(b"{}");
        let response = SharedResponse { headers, body, error: None, cursor: None, http1: OnceLock::new() };
        // Repeated header lines stay apart, and the given length of 7 is replaced by the body's.
        let expected = "HTTP/1.1 200 OK\r\nlink: <a>; rel=self\r\nlink: <b>; rel=hub\r\n\
            content-length: 2\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n{}";
        assert_eq!(write_http1(&response, Timestamp::UNIX_EPOCH), expected);
    }
}
