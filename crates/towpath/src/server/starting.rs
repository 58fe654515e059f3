//! Answers while the store is being opened. That takes minutes where a node of a cluster first catches up, or its log
//! cannot be reached.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::health;
use super::listeners::StartedListeners;
use super::problem::Problem;
use super::response::respond;
use super::tls::TlsIdentity;
use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;

/// Time for which requests wait instead: after a usual start they are served then.
const PATIENCE: Duration = Duration::from_secs(3);
/// Number of connections that are answered at once.
const CONNECTIONS: usize = 64;
/// Time for a connection to ask and to be answered.
const LIMIT: Duration = Duration::from_secs(5);
/// Pause after a connection that could not be accepted.
const RETRY: Duration = Duration::from_millis(50);

/// Answers requests until it is dropped: `/livez` that the process lives, `/readyz` and all others that it starts.
pub(crate) async fn answer_starting(
    listeners: &mut StartedListeners,
    tls: Option<&TlsIdentity>,
) -> Infallible {
    sleep(PATIENCE).await;
    tracing::info!("requests get 503 until the store is open");
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listeners.accept(), if connections.len() < CONNECTIONS => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok(accepted) => {
                let acceptor = tls.map(TlsIdentity::acceptor);
                connections.spawn(timeout(LIMIT, answer_connection(accepted.stream, acceptor)));
            }
            // Too many open files, mostly: a retry without a pause would spin.
            Err(_) => sleep(RETRY).await,
        }
    }
}

async fn answer_connection(stream: TcpStream, acceptor: Option<TlsAcceptor>) {
    match acceptor {
        None => answer_one(stream).await,
        Some(acceptor) => {
            // Who breaks off the handshake waits for no answer.
            if let Ok(stream) = acceptor.accept(stream).await {
                answer_one(stream).await;
            }
        }
    }
}

/// Answers one request and closes the connection, so that the next one is for the server.
async fn answer_one(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service = service_fn(|request: Request<Incoming>| {
        ready(Ok::<_, Infallible>(respond(answer(request.uri().path()))))
    });
    // The client has gone if this fails.
    let _ = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await;
}

fn answer(path: &str) -> Answer {
    match path {
        "/livez" => health::live(),
        "/readyz" => health::starting(),
        _ => Problem::from(RouteError::busy("the server starts: its store is being opened")).response(),
    }
}
