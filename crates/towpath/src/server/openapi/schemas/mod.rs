//! Schemas of bodies: from the program's types where it makes them, and of the published texts.

mod bodies;
mod forms;
mod published;
mod texts;

pub(in crate::server) use self::published::CHANGE_SCHEMA;

use std::sync::LazyLock;

use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::engine::item_versions::ItemVersions;
use crate::engine::sink_status::SinkStatus;
use crate::protocols::catalog::{FeedDescription, FeedEntry};
use crate::server::items::ItemReceipt;
use crate::server::publish::BatchReceipt;
use crate::server::read_links::ReadLinks;
use crate::sink::letters::DeadLetter;
use crate::source::status::SourceHealth;

/// Returns the schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let mut schemas = of_types();
    schemas.extend(bodies::lists());
    schemas.extend(bodies::requests());
    schemas.extend(texts::documents());
    published::add(&mut schemas);
    schemas
}

/// Returns an example of a body, by the name of its schema.
pub(super) fn example(schema: &str) -> Option<Value> {
    let line = || json!({ "id": "order-1", "json": { "chairs": 2 }, "item": { "title": "Order 1", "tags": ["new"] } });
    Some(match schema {
        "PublishedLines" => json!([line()]),
        "Lines" => format!("{}\n", line()).into(),
        "ItemForm" => json!({ "id": "order-2", "title": "Order 2", "content": "Two chairs" }),
        "FeedSettings" => json!({ "title": "Orders", "ttl": "1m" }),
        "MergePatch" => json!({ "chairs": 3 }),
        "HubForm" => json!({
            "hub.mode": "unsubscribe",
            "hub.topic": "http://127.0.0.1:8080/feeds/orders/items",
            "hub.callback": "http://127.0.0.1:8081/callback",
        }),
        "Problem" => json!({
            "type": "urn:towpath:problem:not-found", "title": "Not Found", "status": 404, "detail": "there is no feed \"x\"",
        }),
        _ => return ANSWERS.get(schema).cloned(),
    })
}

/// Bodies that a server gave, by the names of their schemas.
static ANSWERS: LazyLock<Map<String, Value>> =
    LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());

/// Schemas of what the program makes from its types.
fn of_types() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.contract = Contract::Serialize;
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    generator.subschema_for::<FeedDescription<SourceHealth>>();
    generator.subschema_for::<FeedEntry<SourceHealth>>();
    generator.subschema_for::<SinkStatus>();
    generator.subschema_for::<DeadLetter>();
    generator.subschema_for::<ItemReceipt>();
    generator.subschema_for::<ItemVersions>();
    generator.subschema_for::<BatchReceipt>();
    generator.subschema_for::<ReadLinks>();
    generator.take_definitions(true)
}
