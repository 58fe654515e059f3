//! Streaming decoders for content codings (RFC 9110, section 8.4).

use std::fmt;
use std::io;
use std::pin::Pin;

use async_compression::tokio::bufread::{BrotliDecoder, GzipDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt as _;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::io::StreamReader;
use towpath_proto::follow::TransferError;

use super::explain;

/// `Accept-Encoding` of every request.
pub(super) const ACCEPTED: &str = "gzip, br, zstd";

/// Size of a decoded chunk, at most.
const CHUNK: usize = 32 << 10;

/// Maximum window of a zstd body, as a power of two: 8 MiB, the limit for HTTP (RFC 9659).
///
/// The window is allocated as soon as its frame header is read, whatever the body's size.
const ZSTD_WINDOW_LOG: u32 = 23;

/// A body with its content coding removed.
pub(super) enum DecodedBody {
    Identity(Box<reqwest::Response>),
    Encoded(Pin<Box<dyn AsyncRead + Send>>),
}

impl DecodedBody {
    /// Decodes the body of `response` and removes the coding's `headers`.
    pub(super) fn new(response: reqwest::Response, headers: &mut HeaderMap) -> Result<Self, TransferError> {
        let coding = coding_of(headers);
        if coding.is_empty() {
            return Ok(Self::Identity(Box::new(response)));
        }
        let encoded = StreamReader::new(response.bytes_stream().map_err(io::Error::other));
        let decoded: Pin<Box<dyn AsyncRead + Send>> = match coding.as_str() {
            "gzip" | "x-gzip" => {
                let mut decoder = GzipDecoder::new(encoded);
                // RFC 1952, section 2.2: a gzip file may have several members. Without this, all but the first are lost.
                decoder.multiple_members(true);
                Box::pin(decoder)
            }
            "br" => Box::pin(BrotliDecoder::new(encoded)),
            "zstd" => {
                let window = DParameter::window_log_max(ZSTD_WINDOW_LOG);
                let mut decoder = ZstdDecoder::with_params(encoded, &[window]);
                // As for gzip, several frames may form one body (RFC 8878, section 3).
                decoder.multiple_members(true);
                Box::pin(decoder)
            }
            // Also several codings in a row, of which no server needs more than one.
            _ => return Err(TransferError::Coding { coding }),
        };
        // Both describe the encoded body. Kept, they would make a consumer decode twice or miscount.
        for name in [CONTENT_ENCODING, CONTENT_LENGTH] {
            headers.remove(name);
        }
        Ok(Self::Encoded(decoded))
    }

    /// Reads the next chunk; `None` at the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, TransferError> {
        match self {
            Self::Identity(response) => response.chunk().await.map_err(|e| explain::body_error(&e)),
            Self::Encoded(decoder) => {
                // A fresh buffer for each chunk: it is handed on without a copy.
                let mut chunk = BytesMut::with_capacity(CHUNK);
                let length = decoder.read_buf(&mut chunk).await.map_err(|e| explain::decode_error(&e))?;
                Ok((length > 0).then(|| chunk.freeze()))
            }
        }
    }
}

/// Returns the codings that headers name, in lower case; empty without any.
fn coding_of(headers: &HeaderMap) -> String {
    // RFC 9110, section 5.3: several lines of one field are one list.
    let lines = headers.get_all(CONTENT_ENCODING).iter().map(|value| value.to_str().unwrap_or("?"));
    let names = lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_ascii_lowercase());
    names.filter(|name| !matches!(name.as_str(), "" | "identity")).collect::<Vec<_>>().join(", ")
}

impl fmt::Debug for DecodedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity(_) => "Identity",
            Self::Encoded(_) => "Encoded",
        })
    }
}
