//! Transport of requests in place of the network, for simulations.

use std::fmt::Debug;
use std::io;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use towpath_proto::follow::TransferError;

use crate::callback::{CallbackError, CallbackResponse};
use crate::callback_body::{BodySource, UnreadBody};
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

/// Sends a request to a callback by a transport.
pub(super) async fn call(
    transport: &dyn Transport,
    request: http::Request<Bytes>,
) -> Result<(CallbackResponse, UnreadBody), CallbackError> {
    let response = transport.send(request).await;
    let (head, body) = response.map_err(|e| CallbackError::Connect(explain::reason(&e)))?.into_parts();
    Ok((CallbackResponse::head(head.status, &head.headers), UnreadBody(BodySource::Transport(body))))
}
