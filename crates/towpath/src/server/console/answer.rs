//! Answers with pages: headers, compression, and the route of each address.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::ETAG;
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use sha2::{Digest, Sha256};

use super::address::PageAddress;
use super::error_page::error_page;
use super::layout::Page;
use super::shown::{Shown, html_answer};
use super::visit::Visit;
use super::{assets, check, feed, home, item, sinks, write};
use crate::document::prebuilt::{Answer, Document, Valid};
use crate::document::respond::respond as respond_with;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::work::run_detached;
use crate::server::problem::Problem;

/// Answers a request for a page.
pub(in crate::server) async fn respond(
    engine: Arc<Engine>,
    peer: SocketAddr,
    address: PageAddress,
    request: Request<Incoming>,
) -> Answer {
    let (parts, body) = request.into_parts();
    let mut visit = Visit::new(engine.clone(), peer, Request::from_parts(parts.clone(), ()));
    let shown = match address {
        PageAddress::Get(path) => show(&visit, &path).await,
        PageAddress::Post(path) => {
            let acting = async move {
                let shown = write::act(&mut visit, &path, Request::from_parts(parts, body)).await;
                (visit, shown)
            };
            let shown;
            (visit, shown) = match run_detached(&engine, acting).await {
                Ok(acted) => acted,
                Err(error) => return Problem::from(RouteError::from(error)).response(),
            };
            shown
        }
    };
    match shown {
        Ok(Shown::Answer(answer)) => answer,
        Ok(Shown::Page(page)) => finish(&visit, StatusCode::OK, &page).await,
        Ok(Shown::With(status, page)) => finish(&visit, status, &page).await,
        Err(error) => error_page(&visit, error),
    }
}

async fn show(visit: &Visit, path: &[String]) -> Result<Shown, RouteError> {
    let segments: Vec<&str> = path.iter().map(String::as_str).collect();
    match segments.as_slice() {
        [""] => home::show(visit).await.map(Shown::Page),
        ["assets", name] => {
            let asset = assets::find(name);
            let asset = asset.ok_or_else(|| RouteError::not_found("there is no such file of the pages"))?;
            respond_with(asset, visit.request.headers()).await.map(Shown::Answer)
        }
        ["favicon.ico"] => respond_with(assets::favicon(), visit.request.headers()).await.map(Shown::Answer),
        ["sign-in"] => Ok(write::sign_in_page(visit)),
        ["sinks"] => sinks::page(visit).await.map(Shown::Page),
        ["sinks", name] => sinks::letters_page(visit, name).await.map(Shown::Page),
        ["check"] => Ok(check::page(visit).into()),
        ["live"] => Ok(feed::show_live(visit).into()),
        ["feeds", id] => feed::show(visit, id, "").await,
        ["feeds", feed, "items", id] => item::show(visit, feed, id).await,
        ["feeds", id, tab] => feed::show(visit, id, tab).await,
        _ => Err(RouteError::not_found("there is nothing at this address")),
    }
}

/// Renders a page. The readers' browsers revalidate it, so that a page that stayed the same costs no transfer.
async fn finish(visit: &Visit, status: StatusCode, page: &Page) -> Answer {
    let text = page.render(visit).into_string();
    let mut plain = html_answer(status, text);
    if status != StatusCode::OK {
        return plain;
    }
    let tag = format!("W/\"{}\"", hex::encode(&Sha256::digest(&plain.body)[..12]));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        plain.headers.insert(ETAG, tag);
    }
    let document = Document::new(plain.body, plain.headers, Valid::UntilReplaced);
    let request = visit.request.headers();
    match respond_with(Arc::new(document), request).await {
        Ok(answer) => answer,
        Err(error) => error_page(visit, error),
    }
}
