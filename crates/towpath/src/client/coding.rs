//! Undoing a body's content coding (RFC 9110, section 8.4) as it comes.

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

/// What requests accept.
pub(super) const ACCEPTED: &str = "gzip, br, zstd";

/// The largest piece that a decoder gives.
const PIECE: usize = 32 << 10;

/// The largest window that a zstd body may ask memory for: 8 MiB, all that HTTP allows (RFC 9659).
const ZSTD_WINDOW_LOG: u32 = 23;

/// A body without its coding.
pub(super) enum Decoded {
    Plain(Box<reqwest::Response>),
    Coded(Pin<Box<dyn AsyncRead + Send>>),
}

impl Decoded {
    /// Takes the coding off `response`, and out of the `headers` that tell of it.
    pub(super) fn of(response: reqwest::Response, headers: &mut HeaderMap) -> Result<Self, TransferError> {
        let coding = headers.get(CONTENT_ENCODING).map_or("", |v| v.to_str().unwrap_or("?"));
        let coding = coding.trim().to_ascii_lowercase();
        if matches!(coding.as_str(), "" | "identity") {
            return Ok(Self::Plain(Box::new(response)));
        }
        let coded = StreamReader::new(response.bytes_stream().map_err(io::Error::other));
        let decoded: Pin<Box<dyn AsyncRead + Send>> = match coding.as_str() {
            "gzip" | "x-gzip" => {
                let mut decoder = GzipDecoder::new(coded);
                // What follows the first member is data as well (RFC 1952, section 2.2).
                decoder.multiple_members(true);
                Box::pin(decoder)
            }
            "br" => Box::pin(BrotliDecoder::new(coded)),
            "zstd" => {
                let window = DParameter::window_log_max(ZSTD_WINDOW_LOG);
                let mut decoder = ZstdDecoder::with_params(coded, &[window]);
                decoder.multiple_members(true);
                Box::pin(decoder)
            }
            other => {
                let reason = format!("it is encoded with {other:?}, which was not asked for");
                return Err(TransferError::Body(reason));
            }
        };
        for name in [CONTENT_ENCODING, CONTENT_LENGTH] {
            headers.remove(name);
        }
        Ok(Self::Coded(decoded))
    }

    /// The next piece; `None` at the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, TransferError> {
        match self {
            Self::Plain(response) => response.chunk().await.map_err(|e| explain::broken_body(&e)),
            Self::Coded(decoder) => {
                let mut piece = BytesMut::with_capacity(PIECE);
                let length = decoder.read_buf(&mut piece).await.map_err(|e| explain::broken_coding(&e))?;
                Ok((length > 0).then(|| piece.freeze()))
            }
        }
    }
}

impl fmt::Debug for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Coded(_) => "Coded",
        })
    }
}
