//! Which request is answered by what.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use super::body::ReplyBody;
use super::connection::respond;
use super::document::{Answer, Document};
use super::problem::Problem;
use super::{items, pages, replication};
use crate::blocking::blocking;
use crate::engine::Engine;
use crate::engine::diffdelta::served;

/// Answers a request that the fast path did not.
pub(super) async fn answer(
    engine: Arc<Engine>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    engine.metrics.routed.inc();
    let answer = dispatch(&engine, peer, request).await.unwrap_or_else(|problem| problem.answer());
    if answer.status.as_u16() >= 400 {
        engine.metrics.refused.inc();
    }
    respond(answer)
}

async fn dispatch(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    let path = request.uri().path().to_owned();
    let segments = segments(&path)?;
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    match segments.as_slice() {
        ["feeds", feed, "items"] if request.method() == Method::POST => {
            items::post(engine, peer, feed, request).await
        }
        ["feeds", feed, "items", id] => items::item(engine, peer, feed, id, request).await,
        ["feeds", feed, "snapshots"] if request.method() == Method::POST => {
            replication::make(engine, peer, feed, &request).await
        }
        _ if !matches!(*request.method(), Method::GET | Method::HEAD) => Err(Problem::method("GET, HEAD")),
        [""] => pages::home(engine, request.headers()),
        ["feeds"] => pages::feeds(engine),
        ["feeds", feed] => pages::feed(engine, feed, request.headers()).await,
        ["feeds", feed, "replication"] => replication::newest(engine, feed, &request).await,
        ["feeds", feed, "replication", "pages", number] => {
            replication::page(engine, feed, number, &request).await
        }
        ["feeds", feed, "snapshots"] => replication::snapshots(engine, feed).await,
        ["feeds", feed, "snapshots", id] => replication::index(engine, feed, id, &request).await,
        ["feeds", feed, "snapshots", id, "pages", number] => {
            replication::snapshot_page(engine, feed, id, number, &request).await
        }
        ["metrics"] => Ok(pages::metrics(engine)),
        ["openapi.json"] => Ok(pages::openapi(engine)),
        segments => {
            let document = served::document(engine, &path, segments).await?;
            let document =
                document.ok_or_else(|| Problem::not_found(format!("there is nothing at {path}")))?;
            Ok(serve(document, &request).await)
        }
    }
}

/// The decoded parts of a path.
fn segments(path: &str) -> Result<Vec<Cow<'_, str>>, Problem> {
    let parts = path.strip_prefix('/').unwrap_or(path).split('/');
    let decode = |part| percent_decode_str(part).decode_utf8();
    parts.map(decode).collect::<Result<_, _>>().map_err(|_| Problem::bad_request("the path is not UTF-8"))
}

/// Answers with a document; compresses it apart from the connections where nobody asked for that form before.
pub(super) async fn serve(document: Arc<Document>, request: &Request<Incoming>) -> Answer {
    if let Some(answer) = document.answer(request.headers()) {
        return answer;
    }
    let headers = request.headers().clone();
    let compressed = blocking(move || document.answer_compressing(&headers)).await;
    compressed.unwrap_or_else(|e| Problem::internal(e.to_string()).answer())
}
