//! Transport of requests in place of the network, for simulations.

use std::fmt::Debug;
use std::io;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use towpath_proto::follow::TransferError;

use crate::callback::{CallbackError, CallbackResponse, MAX_RESPONSE_BYTES};
use crate::explain;

/// Body of a response, piece by piece.
pub type TransportBody = BoxStream<'static, io::Result<Bytes>>;

/// Transport of single requests. Redirects, timeouts, limits and codings stay with the fetcher or the callback client.
pub trait Transport: Send + Sync + Debug {
    /// Sends a request, and returns the response when its head is there.
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, io::Result<http::Response<TransportBody>>>;
}

/// Sends a request by a transport.
pub(super) async fn send(
    transport: &dyn Transport,
    request: reqwest::RequestBuilder,
) -> Result<reqwest::Response, TransferError> {
    let request = request.build().map_err(|e| explain::request_error(&e))?;
    let body = request.body().and_then(reqwest::Body::as_bytes).map(Bytes::copy_from_slice);
    let mut sent = http::Request::new(body.unwrap_or_default());
    *sent.method_mut() = request.method().clone();
    let uri = request.url().as_str().parse();
    *sent.uri_mut() = uri.map_err(|e: http::uri::InvalidUri| TransferError::Url(e.to_string()))?;
    sent.headers_mut().clone_from(request.headers());
    let response = transport.send(sent).await;
    let response = response.map_err(|e| TransferError::Connect(explain::reason(&e)))?;
    Ok(response.map(reqwest::Body::wrap_stream).into())
}

/// Sends a request to a callback by a transport, and reads its response.
pub(super) async fn call(
    transport: &dyn Transport,
    request: http::Request<Bytes>,
) -> Result<CallbackResponse, CallbackError> {
    let failed = |e: io::Error| CallbackError::Connect(explain::reason(&e));
    let (head, mut pieces) = transport.send(request).await.map_err(failed)?.into_parts();
    let mut body = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece.map_err(failed)?);
        if body.len() > MAX_RESPONSE_BYTES {
            break;
        }
    }
    Ok(CallbackResponse { body: body.freeze(), ..CallbackResponse::head(head.status, &head.headers) })
}
