//! Service for the requests of one connection: what hyper calls, whatever the version of HTTP.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONNECTION, DATE, HOST, ORIGIN};
use http::{Method, Request, Response, Version};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use parking_lot::Mutex;
use tracing::{Instrument as _, Span};

use super::access_log::{AccessRecord, ResponseTiming};
use super::browser_policy::BrowserPolicy;
use super::guarded_stream::RateLimits;
use super::if_match::{self, IfMatch};
use super::long_poll::poll::LongPoll;
use super::long_poll::request_cache::RequestCache;
use super::metrics::requests::{RequestMetrics, Route};
use super::problem::Problem;
use super::publish_cors::PublishOrigin;
use super::range::{self, AskedPart};
use super::response::{ResponseBody, respond};
use super::route;
use super::routed::Routed;
use super::tls::TlsIdentity;
use crate::document::prebuilt::Answer;
use crate::document::response_memory::{MIN_BODY, ResponseMemory};
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::server::date::http_date_now;
use crate::server::read_your_writes::{POSITION, set_age};
use crate::spans;
use crate::stop::Stop;

/// Longest head of a request, in bytes. It is also the size of hyper's buffers.
// Thousands of clients that send a head slowly hold a buffer each.
pub(super) const MAX_HEAD: usize = 32 << 10;

/// State shared by the connections of one worker.
pub(super) struct ConnectionWorker {
    pub(super) engine: Arc<Engine>,
    pub(super) stop: Stop,
    pub(super) request_cache: Mutex<RequestCache>,
    pub(super) browser_policy: BrowserPolicy,
    pub(super) requests: Arc<RequestMetrics>,
    pub(super) limits: Arc<RateLimits>,
    pub(super) tls: Option<Arc<TlsIdentity>>,
}

/// Slot in which a waiting request leaves hyper.
pub(super) type ParkSlot = Arc<Mutex<Option<ParkedRequest>>>;

/// A request that waits, and its connection's part of it.
pub(super) struct ParkedRequest {
    pub(super) long_poll: LongPoll,
    /// The connection stays open after the response.
    pub(super) keep_alive: bool,
    /// The bytes that were read before hyper had the connection, if this is its first request. They may be a part of
    /// the request, or more than it.
    pub(super) raw_request: Option<Bytes>,
    pub(super) access: Option<Box<AccessRecord>>,
}

/// Service for the requests of one connection.
pub(super) struct HttpService {
    pub(super) worker: Arc<ConnectionWorker>,
    pub(super) peer: SocketAddr,
    /// Length from which a body counts as memory of responses.
    min_held: usize,
    /// The answer to the request that waited before hyper had the connection.
    answer: Mutex<Option<Response<ResponseBody>>>,
    /// Record of that request.
    access: Mutex<Option<Box<AccessRecord>>>,
    /// The bytes of the first request that were read before hyper had the connection.
    raw_request: Mutex<Option<Bytes>>,
    /// `None` if the connection cannot be parked.
    slot: Option<ParkSlot>,
}

impl HttpService {
    /// A service for a connection that cannot be parked.
    pub(super) fn new(worker: Arc<ConnectionWorker>, peer: SocketAddr) -> Self {
        let (answer, access, raw_request) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { worker, peer, min_held: MIN_BODY, answer, access, raw_request, slot: None }
    }

    /// Counts bodies from `min` bytes on as memory of responses.
    pub(super) fn holding_from(self, min: usize) -> Self {
        Self { min_held: min, ..self }
    }

    /// Adds what is known of a connection from before hyper had it, and the slot that it is parked by.
    pub(super) fn resumed(
        self,
        answer: Option<Response<ResponseBody>>,
        access: Option<Box<AccessRecord>>,
        raw_request: Option<Bytes>,
        slot: ParkSlot,
    ) -> Self {
        let (answer, access, raw_request) = (answer.into(), access.into(), raw_request.into());
        Self { answer, access, raw_request, slot: Some(slot), ..self }
    }
}

impl Service<Request<Incoming>> for HttpService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ServiceFuture;

    fn call(&self, request: Request<Incoming>) -> ServiceFuture {
        if let Some(response) = self.answer.lock().take() {
            self.worker.requests.count(Route::ITEMS, response.status());
            // The stand-in of `Rewind` has brought this request here. What it asked for was checked before it was
            // parked.
            let response = logged(self.access.lock().take(), response, ResponseTiming::AfterWait);
            return ServiceFuture::Now(Some(response));
        }
        // Taken for the first request only: the later ones were read by hyper itself.
        let raw_request = self.raw_request.lock().take();
        let route = Route::of(request.uri().path());
        let access = AccessRecord::begin(&self.worker.engine, self.peer, &request, route);
        if let Some(answer) = self.refused(&request).or_else(|| self.prebuilt(&request)) {
            // Before the range: a failed precondition leaves nothing to cut (RFC 9110, section 13.2.2).
            let answer = if_match::check(answer, || IfMatch::of(&request));
            let answer = range::cut(answer, || AskedPart::of(&request));
            self.worker.requests.count(route, answer.status);
            let response = logged(access, respond(answer), ResponseTiming::AtOnce);
            return ServiceFuture::Now(Some(with_age(&self.worker.engine, response)));
        }
        let slot = self.slot.clone().filter(|_| can_be_parked(&request));
        let park = slot.map(|slot| {
            let keep_alive = is_kept_alive(&request);
            move |long_poll, access| {
                *slot.lock() = Some(ParkedRequest { long_poll, keep_alive, raw_request, access });
            }
        });
        let ConnectionWorker { engine, stop, requests, .. } = &*self.worker;
        let (engine, stop, requests) = (engine.clone(), stop.clone(), requests.clone());
        let (min_held, began) = (self.min_held, Instant::now());
        // Taken now, since routing consumes the request.
        let (condition, asked) = (IfMatch::of(&request), AskedPart::of(&request));
        let span = spans::request(&request, route.name());
        let answer = route::respond(engine.clone(), self.peer, request, stop.clone());
        let responding = async move {
            let routed = pin!(answer).await.map_answer(|answer| if_match::check(answer, || condition));
            let routed = routed.map_answer(|answer| range::cut(answer, || asked));
            let routed = within(&engine.response_memory, min_held, routed);
            let is_long_poll = matches!(routed, Routed::LongPoll(_));
            let (response, access) = respond_or_park(routed, park, access, &stop).await;
            let timing = if is_long_poll { ResponseTiming::AfterWait } else { ResponseTiming::AtOnce };
            match timing {
                ResponseTiming::AfterWait => requests.count(route, response.status()),
                ResponseTiming::AtOnce => requests.observe(route, response.status(), began.elapsed()),
            }
            Span::current().record("http.response.status_code", response.status().as_u16());
            with_age(&engine, logged(access, response, timing))
        };
        ServiceFuture::Later(Box::pin(responding.instrument(span)))
    }
}

/// Checks that a request has exactly one Host header (RFC 9112, section 3.2).
fn has_one_host(request: &Request<Incoming>) -> bool {
    // HTTP/1.0 has no Host header, and old clients send none.
    request.version() < Version::HTTP_11 || request.headers().get_all(HOST).iter().count() == 1
}

/// Returns true if the connection can leave hyper while this request waits: no body is left to be read.
fn can_be_parked(request: &Request<Incoming>) -> bool {
    // HTTP/1.0 connections close by default, and a shared response says HTTP/1.1.
    request.method() == Method::GET && request.version() == Version::HTTP_11 && request.body().is_end_stream()
}

fn is_kept_alive(request: &Request<Incoming>) -> bool {
    let options = request.headers().get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    !options.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}

/// Waits for a routed request's response. A long poll is parked instead, if that is possible.
async fn respond_or_park(
    routed: Routed,
    park: Option<impl FnOnce(LongPoll, Option<Box<AccessRecord>>)>,
    access: Option<Box<AccessRecord>>,
    stop: &Stop,
) -> (Response<ResponseBody>, Option<Box<AccessRecord>>) {
    match (routed, park) {
        // A parked poll gets the bytes of a shared response, which names no origin.
        (Routed::LongPoll(long_poll), Some(park)) if long_poll.origin.is_none() => {
            park(long_poll, access);
            // `serve_http` looks into the slot after each poll of hyper, and drops this future.
            std::future::pending().await
        }
        (routed, _) => (routed.respond(stop).await, access),
    }
}

/// Records the response in the record of its request, which is logged once the body was sent.
fn logged(
    access: Option<Box<AccessRecord>>,
    mut response: Response<ResponseBody>,
    timing: ResponseTiming,
) -> Response<ResponseBody> {
    if let Some(mut access) = access {
        access.record_response(response.status().as_u16(), timing);
        response.body_mut().count_in(Some(access));
    }
    response
}

/// Counts an answer's body while it is sent. Beyond the limit, large bodies are refused.
fn within(memory: &Arc<ResponseMemory>, min_held: usize, routed: Routed) -> Routed {
    routed.map_answer(|answer| {
        if memory.refuses(&answer.body, min_held) {
            let busy =
                RouteError::busy("too many responses wait for slow clients ([server] response_mib); retry");
            return Problem::from(busy).response();
        }
        Answer { body: memory.hold_from(min_held, answer.body), ..answer }
    })
}

impl HttpService {
    /// Refuses what no page of another site and no confused proxy may ask for.
    fn refused(&self, request: &Request<Incoming>) -> Option<Answer> {
        // With two Host headers, a proxy and this server could see different hosts.
        if !has_one_host(request) {
            let problem =
                RouteError::bad_request("an HTTP/1.1 request has one Host header (RFC 9112, section 3.2)");
            return Some(Problem::from(problem).response());
        }
        let ConnectionWorker { engine, browser_policy, .. } = &*self.worker;
        let may_publish = || PublishOrigin::of(engine, request).is_some();
        let error = browser_policy.check(request, &engine.cors, may_publish).err()?;
        Some(Problem::from(error).response())
    }

    /// The fast path: a document in memory that needs no compression.
    fn prebuilt(&self, request: &Request<Incoming>) -> Option<Answer> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        // The document may be older than the position that this client has seen.
        if request.headers().contains_key(POSITION) {
            return None;
        }
        let path = request.uri().path_and_query()?.as_str();
        // No token is asked for: documents of private feeds are never in this cache.
        let document = self.worker.engine.documents.get(path)?;
        // Routing negotiates properly, and may build the other representation.
        if !document.is_acceptable(request.headers()) {
            return None;
        }
        // `None` where a body has still to be compressed, which takes too long for this thread.
        let mut answer = document.respond(request.headers())?;
        if let Some(origin) = request.headers().get(ORIGIN) {
            self.worker.engine.cors.load().add_for(Some(origin), &mut answer.headers);
        }
        self.worker.engine.metrics.fast.inc();
        Some(answer)
    }
}

/// Adds the headers that say when it is answered, and how old the answer may be.
pub(super) fn with_age(engine: &Engine, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    // Hyper's own date stands still after the clock was set back, until that has passed the time before.
    response.headers_mut().insert(DATE, http_date_now());
    set_age(engine, response.headers_mut());
    response
}

/// A response that is ready, or one that is being made.
pub(super) enum ServiceFuture {
    Now(Option<Response<ResponseBody>>),
    Later(Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>),
}

impl ServiceFuture {
    /// A response that needs no work.
    pub(super) fn ready(response: Response<ResponseBody>) -> Self {
        Self::Now(Some(response))
    }
}

impl Future for ServiceFuture {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Now(response) => {
                // hyper polls no future again that was ready, so pending is never seen.
                response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)))
            }
            Self::Later(future) => future.as_mut().poll(context).map(Ok),
        }
    }
}
