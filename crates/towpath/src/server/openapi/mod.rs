//! The HTTP API: the table of its operations, and its description as an OpenAPI document.
//!
//! The router asks the table first. So an address that is not described is not there.

mod operation;
mod operations;
mod pages;
mod parameters;
mod protocols;
mod routes;
mod schemas;

use std::collections::BTreeMap;

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::document::prebuilt::Answer;
use crate::document::respond::whole;
use crate::engine::Engine;
use crate::server::session::COOKIE_NAME;
use operation::{Media, Operation, Response, Right, Verb};

pub(super) use routes::{methods, methods_with_options};
pub(super) use schemas::CHANGE_SCHEMA;

/// Statuses of problem documents that every operation may answer with.
const COMMON: [u16; 5] = [400, 429, 431, 500, 503];
/// Statuses of requests with a body, beside.
const OF_BODIES: [u16; 4] = [408, 413, 415, 501];

/// Groups of operations, with their descriptions.
const GROUPS: [(&str, &str, &[Operation]); 9] = [
    ("feeds", "Feeds and their event streams", operations::FEEDS),
    ("items", "Smart Feeds pull, and publishing", operations::ITEMS),
    ("uploads", "Resumable uploads (tus 1.0.0)", operations::UPLOADS),
    ("diffdelta", "DiffDelta and Simple Update Protocol", protocols::DIFFDELTA),
    ("history", "Feed History: Atom, RSS and JSON Feed", protocols::HISTORY),
    ("replication", "Data Replication", protocols::REPLICATION),
    ("push", "WebSub", protocols::PUSH),
    ("server", "Health, counters and sinks, for operators", operations::SERVER),
    ("pages", "Pages and forms for browsers", pages::PAGES),
];

/// Returns every operation.
fn all() -> impl Iterator<Item = &'static Operation> {
    GROUPS.iter().flat_map(|(_, _, operations)| *operations)
}

/// Answers `/openapi.json`.
pub(super) fn openapi(engine: &Engine) -> Answer {
    let publishing = match engine.tokens.load().is_open() {
        true => Publishing::Open,
        false => Publishing::ByToken,
    };
    let body = document(&engine.base_url, publishing);
    whole(StatusCode::OK, "application/json; charset=utf-8", body.to_string())
}

/// Right to publish on a server, and to administer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Publishing {
    /// The server has no tokens, so clients publish without one.
    Open,
    ByToken,
}

/// Makes the document of a server.
fn document(base_url: &str, publishing: Publishing) -> Value {
    // Sorted, so that two versions of the document can be compared.
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for (tag, _, operations) in &GROUPS {
        for operation in *operations {
            let path = paths.entry(operation.path).or_default();
            path.insert(operation.verb.key().to_owned(), describe(operation, tag, publishing));
        }
    }
    let tags: Vec<Value> =
        GROUPS.iter().map(|(name, about, _)| json!({ "name": name, "description": about })).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "towpath",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "One ordered log per feed, and published protocols to follow it by. Errors are problem documents \
                            (RFC 9457); for browsers they are pages.",
            "license": { "name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT" },
        },
        "servers": [{ "url": base_url }],
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "A token of the configuration" },
                "session": { "type": "apiKey", "in": "cookie", "name": COOKIE_NAME, "description": "Signed in on the page" },
            },
            "responses": responses(),
            "headers": headers(),
            "schemas": schemas::schemas(),
        },
    })
}

fn describe(operation: &Operation, tag: &str, publishing: Publishing) -> Value {
    let of_path = operation.path.split('/').filter(|part| part.starts_with('{'));
    let names = of_path.chain(operation.parameters.iter().copied());
    let parameters: Vec<Value> = names.filter_map(parameters::parameter).collect();
    let mut described = json!({
        "operationId": operation.id,
        "tags": [tag],
        "summary": operation.summary,
        "parameters": parameters,
        "responses": all_responses(operation),
    });
    let token = || json!({ "token": [] });
    let security = match operation.right {
        Right::None => vec![],
        // The empty requirement makes the token optional (OpenAPI 3.1, Security Requirement Object): only private
        // feeds need one.
        Right::Read => vec![json!({}), token()],
        Right::Publish | Right::Admin if publishing == Publishing::Open => vec![json!({}), token()],
        Right::Publish | Right::Admin => vec![token()],
        Right::Session => vec![json!({ "session": [] })],
    };
    described["security"] = security.into();
    if !operation.body.is_empty() {
        described["requestBody"] =
            json!({ "required": !operation.is_body_optional, "content": content(operation.body) });
    }
    described
}

fn all_responses(operation: &Operation) -> Map<String, Value> {
    let mut all = Map::new();
    let rights: &[u16] = match operation.right {
        Right::None => &[],
        Right::Read | Right::Publish | Right::Admin => &[401, 403],
        Right::Session => &[401, 403, 404, 409],
    };
    let of_body: &[u16] = if operation.body.is_empty() { &[] } else { &OF_BODIES };
    // If-Match holds for everything that is read.
    let of_reads: &[u16] = if operation.verb == Verb::Get { &[412] } else { &[] };
    let kind = match operation.path {
        "/feeds/{feed}/hub" => "TextProblem",
        _ if operation.is_page() => "PageProblem",
        _ => "Problem",
    };
    for status in COMMON.iter().chain(rights).chain(of_body).chain(of_reads).chain(operation.problems) {
        let kind = if *status == 416 { "RangeProblem" } else { kind };
        all.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{kind}") }));
    }
    for response in operation.responses {
        all.insert(response.0.to_string(), own_response(response));
    }
    all
}

fn own_response(&(status, about, media): &Response) -> Value {
    let mut response = json!({ "description": about });
    if !media.is_empty() {
        response["content"] = content(media);
    }
    let reference = |name: &str| json!({ "$ref": format!("#/components/headers/{name}") });
    if status < 300 && !media.is_empty() {
        response["headers"] = json!({
            "ETag": reference("ETag"),
            "Towpath-Position": reference("Position"),
            "Towpath-Replica-Age": reference("Age"),
            "Towpath-Reset": reference("Reset"),
            "X-SUP-ID": reference("SupId"),
        });
        if status == 206 {
            response["headers"]["Content-Range"] = reference("ContentRange");
        }
    } else if (300..400).contains(&status) && status != 304 {
        response["headers"] = json!({ "Location": reference("Location") });
    }
    response
}

fn content(media: &[Media]) -> Value {
    let entry = |(media_type, schema): &Media| {
        let mut described = json!({ "schema": { "$ref": format!("#/components/schemas/{schema}") } });
        if let Some(example) = schemas::example(schema) {
            described["example"] = example;
        }
        ((*media_type).to_owned(), described)
    };
    Value::Object(media.iter().map(entry).collect())
}

fn responses() -> Value {
    let problem = || json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
    let text = || json!({ "schema": { "type": "string" } });
    let headers = || {
        json!({
            "Retry-After": { "$ref": "#/components/headers/RetryAfter" },
            "WWW-Authenticate": { "$ref": "#/components/headers/Challenge" },
        })
    };
    json!({
        "Problem": {
            "description": "What is wrong: a problem document, or a page for browsers",
            "headers": headers(),
            "content": { "application/problem+json": problem(), "text/html": text() },
        },
        "RangeProblem": {
            "description": "Nothing is in the range: a problem document, or a page for browsers",
            "headers": { "Content-Range": { "$ref": "#/components/headers/ContentRange" } },
            "content": { "application/problem+json": problem(), "text/html": text() },
        },
        "PageProblem": {
            "description": "What is wrong, as a page",
            "headers": headers(),
            "content": { "text/html": text(), "application/problem+json": problem() },
        },
        "TextProblem": {
            "description": "What is wrong, in plain text (WebSub 5.1.2); as a problem document if the server is at a limit",
            "headers": headers(),
            "content": { "text/plain": text(), "application/problem+json": problem() },
        },
    })
}

fn headers() -> Value {
    let text = |about: &str| json!({ "description": about, "schema": { "type": "string" } });
    json!({
        "ETag": text("Entity tag, for If-None-Match and If-Match"),
        "Position": {
            "description": "Where the feed's log ends with what was appended; any node honours it in a request to read",
            "schema": { "type": "integer" },
        },
        "Age": text("Only on a node that is cut off from its cluster, and then on every answer: how old it may be, in seconds, \
                     or unknown"),
        "Reset": text("Only if since is a cursor of another log: this one began anew, and the page begins at its start"),
        "SupId": text("Of a feed: where its moves are told of, and its SUP ID (Simple Update Protocol, section 6.1)"),
        "Location": text("The address to go to"),
        "RetryAfter": { "description": "Seconds after which to ask again", "schema": { "type": "integer" } },
        "Challenge": text("Bearer, with 401"),
        "ContentRange": text("The bytes of the part and the length of the whole; with 416 the length only"),
    })
}

#[cfg(test)]
mod tests;
