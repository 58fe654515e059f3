//! Responses as hyper takes them.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

use crate::document::prebuilt::Answer;

/// Body of a response: whole, or produced while it is sent.
pub(crate) struct ResponseBody(Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>);

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self(Either::Left(Full::new(bytes)))
    }
}

impl ResponseBody {
    /// A body of the chunks of a channel, as they arrive. It ends when the sender is dropped.
    pub(crate) fn channel(mut chunks: mpsc::Receiver<Bytes>) -> Self {
        let frames =
            poll_fn(move |context| chunks.poll_recv(context).map(|chunk| Some(Ok(Frame::data(chunk?)))));
        Self(Either::Right(BodyExt::boxed_unsync(StreamBody::new(frames))))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::pin::Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.0.size_hint()
    }
}

/// Converts an answer to hyper's response.
pub(super) fn respond(answer: Answer) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}
