//! Refusals of requests that no page answers, as pages for those who look with a browser.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Request;

use super::address::wants_html;
use super::error_page::error_page;
use super::visit::Visit;
use crate::document::prebuilt::Answer;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::Engine;
use crate::server::problem::Problem;

/// Head of a browser's request, kept in case that the request is refused.
pub(in crate::server) struct Refused {
    peer: SocketAddr,
    request: Request<()>,
}

impl Refused {
    /// Keeps the head of a request that prefers HTML; `None` for programs, which get a problem document.
    pub(in crate::server) fn of<B>(peer: SocketAddr, request: &Request<B>) -> Option<Self> {
        if !wants_html(request.headers()) {
            return None;
        }
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.version_mut() = request.version();
        *head.headers_mut() = request.headers().clone();
        Some(Self { peer, request: head })
    }

    /// Makes the page that says what was refused, and where to go.
    pub(in crate::server) fn page(self, engine: Arc<Engine>, error: RouteError) -> Answer {
        // Only programs take nothing but HTML: browsers take any other type with less preference.
        if matches!(error.kind, RouteErrorKind::NotAcceptable) {
            return Problem::from(error).response();
        }
        error_page(&Visit::new(engine, self.peer, self.request), error)
    }
}
