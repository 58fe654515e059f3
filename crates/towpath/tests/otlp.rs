//! Traces: spans of a real server at a small receiver of OTLP.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::callback::CallbackServer;
use crate::common::TestFolder;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Every span that came so far.
fn spans(calls: &[crate::callback::CallbackRequest]) -> Vec<Value> {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let traces = calls.iter().filter(|call| call.path == "/v1/traces");
    let resources = traces.flat_map(|call| list(&call.json(), "resourceSpans"));
    let scopes = resources.flat_map(|resource| list(&resource, "scopeSpans"));
    scopes.flat_map(|scope| list(&scope, "spans")).collect()
}

fn attribute<'a>(span: &'a Value, name: &str) -> Option<&'a Value> {
    let attributes = span["attributes"].as_array()?;
    attributes.iter().find(|attribute| attribute["key"] == name).map(|attribute| &attribute["value"])
}

#[test]
fn requests_polls_appends_sinks_and_deliveries_are_spans() {
    let (collector, subscriber) = (CallbackServer::good(), CallbackServer::good());
    let config = "[server]\nallow_private_callbacks = true\n[[feed]]\nid = \"own\"\n[[feed]]\nid = \"polled\"\n\
        [feed.source]\nurl = \"polled.json\"\nevery = \"1s\"\n\
        [[sink]]\nname = \"copy\"\nfeeds = [\"own\"]\ninto = \"sqlite:copy.db\"\n";
    let dir = TestFolder::new(config);
    dir.write("polled.json", br#"{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1"}]}"#);
    let mut command = dir.command(&["serve", "--listen", "127.0.0.1:0", "--log", "warn"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.base).env("OTEL_BSP_SCHEDULE_DELAY", "200");
    let server = dir.start(command);
    let form = format!(
        "hub.mode=subscribe&hub.topic={}/feeds/own/items&hub.callback={}/called",
        server.base, subscriber.base
    );
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    let subscribed = server.ask("POST", "/feeds/own/hub", &headers, form.as_bytes());
    assert_eq!(subscribed.status, 202, "{}", subscribed.text());
    subscriber.wait_for("verified", |calls| !calls.is_empty());
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let put = server.ask("PUT", "/feeds/own/items/a", &[("traceparent", &traceparent)], b"one");
    assert_eq!(put.status, 201, "{}", put.text());
    assert_eq!(server.get("/feeds/own/items?timeout=0&link=hush").status, 200);
    let wanted: BTreeSet<&str> = ["PUT item", "append", "poll", "sink", "delivery"].into();
    let calls = collector.wait_for("all spans", |calls| {
        let spans = spans(calls);
        let is_there = |name: &&str| spans.iter().any(|span| span["name"] == **name);
        let is_appended = spans.iter().any(|span| span["name"] == "append" && span["traceId"] == TRACE);
        wanted.iter().all(is_there) && is_appended
    });
    let spans = spans(&calls);
    let request = spans.iter().find(|span| span["name"] == "PUT item").unwrap();
    assert_eq!((&request["traceId"], &request["parentSpanId"]), (&TRACE.into(), &PARENT.into()));
    assert_eq!(attribute(request, "http.route").unwrap()["stringValue"], "item");
    let status = attribute(request, "http.response.status_code").unwrap();
    assert!(status.to_string().contains("201"), "{request}");
    // The append is a part of the request.
    let appended = spans.iter().find(|span| span["name"] == "append" && span["traceId"] == TRACE).unwrap();
    assert_eq!(appended["parentSpanId"], request["spanId"]);
    let service =
        &calls.iter().find(|call| call.path == "/v1/traces").unwrap().json()["resourceSpans"][0]["resource"];
    assert_eq!(attribute(service, "service.name").unwrap()["stringValue"], "towpath");
    assert!(calls.iter().all(|call| !String::from_utf8_lossy(&call.body).contains("hush")));
    // What is left is sent when the server stops.
    let before = collector.calls().len();
    assert_eq!(server.get("/feeds/own").status, 200);
    assert_eq!(server.stop(), Some(0));
    assert!(collector.calls().len() > before);
    assert!(dir.log().is_empty(), "spans are no log lines: {}", dir.log());
}
