//! `/sinks`: the sinks of the server, for operators. Every request needs the right `admin` for all feeds.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::CACHE_CONTROL;
use http::{HeaderValue, Method, Request, StatusCode};
use serde::Serialize;
use serde_json::json;

use crate::config::{TokenRight, nearest};
use crate::document::prebuilt::Answer;
use crate::document::respond::whole;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::access::may_change;
use crate::engine::sinks::SinkEntry;
use crate::sink::letters;
use crate::sink::orders::{self, Order};

/// Maximum number of dead letters in an answer.
const MAX_LETTERS: usize = 1000;

/// Answers `/sinks` and what is below it.
pub(crate) async fn respond<B>(
    engine: &Engine,
    peer: SocketAddr,
    segments: &[&str],
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    // Of no feed: a token for some feeds only must not see where others are copied to.
    let sender = may_change(&engine.tokens.load(), TokenRight::Admin, "", peer, request)?;
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match segments {
        [] if is_read => answer_json(&json!({ "sinks": engine.sink_statuses().await? })),
        [name] if is_read => answer_json(&engine.sink_status(&*known(engine, name)?).await?),
        [name, "letters"] if is_read => answer_json(
            &json!({ "letters": letters::list(engine, &*known(engine, name)?, MAX_LETTERS).await? }),
        ),
        [name, "letters"] if request.method() == Method::DELETE => {
            let dropped = letters::drop_letters(engine, &*known(engine, name)?).await?;
            tracing::info!(sink = name, token = %sender, dropped, "dead letters were dropped");
            answer_json(&json!({ "dropped": dropped }))
        }
        [name, order @ ("pause" | "resume" | "resend")] if request.method() == Method::POST => {
            let sink = known(engine, name)?;
            let given = match *order {
                "pause" => Order::Pause,
                "resume" => Order::Resume,
                _ => Order::Resend,
            };
            orders::place(engine, &sink, given).await?;
            tracing::info!(sink = name, token = %sender, order, "an order for a sink");
            answer_json(&engine.sink_status(&sink).await?)
        }
        [] => Err(RouteError::method("GET, HEAD, OPTIONS")),
        [_] => Err(RouteError::method("GET, HEAD, OPTIONS, POST")),
        [_, "letters"] => Err(RouteError::method("DELETE, GET, HEAD, OPTIONS")),
        [_, "pause" | "resume" | "resend"] => Err(RouteError::method("OPTIONS, POST")),
        _ => Err(RouteError::not_found("a sink has letters, pause, resume and resend")),
    }
}

fn known(engine: &Engine, name: &str) -> Result<Arc<SinkEntry>, RouteError> {
    engine.sinks.get(name).ok_or_else(|| {
        let sinks = engine.sinks.all();
        // Only an operator comes here, who may know all names.
        let names: Vec<&str> = sinks.iter().map(|sink| sink.config.name.as_str()).collect();
        let hint = nearest(name, &names).map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
        RouteError::not_found(format!("there is no sink {name:?} in the configuration{hint}"))
    })
}

fn answer_json(value: &impl Serialize) -> Result<Answer, RouteError> {
    let text = serde_json::to_string(value).map_err(|e| RouteError::internal(e.to_string()))?;
    let mut answer = whole(StatusCode::OK, "application/json; charset=utf-8", text);
    answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    Ok(answer)
}
