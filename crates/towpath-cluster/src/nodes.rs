//! Live nodes of the cluster: how far each has applied the log, and which feature level it supports.
//!
//! A node that is asked answers. Every node also has a consumer on the stream, which names the node. So a node that
//! does not answer, because it is paused or cut off, is known for as long as JetStream keeps its consumer: a minute.
//! Consumers of nodes of level 1 have no name. They are known by their settings.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::{AckPolicy, Config};
use async_nats::jetstream::stream::Stream;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use towpath_store::embedded::command::FIRST_LEVEL;

use crate::apply::GROUP_MESSAGES;
use crate::consumer::{AHEAD, BATCH, INACTIVE};
use crate::frame::LogId;
use crate::health::NodeHealth;

/// Time in which nodes answer.
const ANSWERS: Duration = Duration::from_secs(1);
/// Number of messages that may be delivered to a node and not applied yet: those that wait, a group, and those that the
/// client library has.
const UNAPPLIED: u64 = (AHEAD + GROUP_MESSAGES + 4 * BATCH) as u64;
/// Prefix of the description of a node's consumer; its identity and level follow.
const DESCRIPTION: &str = "towpath node ";

/// Live node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveNode {
    /// Identity; zero for a node of level 1.
    pub(crate) node: u64,
    /// Highest feature level that it supports.
    pub(crate) level: u8,
    /// Sequence number up to which it has applied the log, at least.
    pub(crate) applied: u64,
}

/// Consumer of a node, as JetStream describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NodeConsumer {
    /// Identity and level of the node; `None` for a node of level 1.
    node: Option<(u64, u8)>,
    /// Sequence number of the last delivered message.
    delivered: u64,
}

/// Returns the description of a node's consumer.
pub(crate) fn consumer_description(node: u64, level: u8) -> String {
    format!("{DESCRIPTION}{node:016x}, level {level}")
}

fn parse_description(description: &str) -> Option<(u64, u8)> {
    let (node, level) = description.strip_prefix(DESCRIPTION)?.split_once(", level ")?;
    Some((u64::from_str_radix(node, 16).ok()?, level.parse().ok()?))
}

/// Recognizes the consumer of a node among those of other programs.
fn recognize(config: &Config, delivered: u64) -> Option<NodeConsumer> {
    if let Some(description) = &config.description {
        return parse_description(description).map(|node| NodeConsumer { node: Some(node), delivered });
    }
    let is_first_level = config.durable_name.is_none()
        && config.deliver_subject.is_none()
        && config.ack_policy == AckPolicy::None
        && config.memory_storage
        && config.inactive_threshold == INACTIVE;
    is_first_level.then_some(NodeConsumer { node: None, delivered })
}

fn subject(name: &str) -> String {
    format!("{name}.nodes")
}

/// Answers questions for this node until it is aborted.
pub(crate) async fn answer(
    client: Client,
    name: String,
    log: LogId,
    node: u64,
    supported: u8,
    health: Arc<NodeHealth>,
) {
    let mut questions = match client.subscribe(subject(&name)).await {
        Ok(questions) => questions,
        Err(error) => {
            // Others know this node by its consumer then, and keep messages of the log for longer.
            return tracing::error!(%error, "cannot tell other nodes how far this one is; restart it");
        }
    };
    while let Some(question) = questions.next().await {
        // Anybody may publish here. Without an address there is nobody to answer.
        let Some(reply) = question.reply else { continue };
        let applied = *health.position().borrow();
        let answer = json!({
            "node": format!("{node:016x}"), "log": format!("{log:016x}"), "level": supported, "applied": applied,
        });
        // An error is ignored: the node's consumer still tells of it.
        drop(client.publish(reply, answer.to_string().into()).await);
    }
}

fn parse_answer(answer: &[u8], log: LogId) -> Option<LiveNode> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let number = |key: &str| u64::from_str_radix(answer[key].as_str()?, 16).ok();
    // An answer of another log under the same name tells nothing about this one.
    if number("log")? != log {
        return None;
    }
    let level = answer["level"].as_u64().and_then(|level| level.try_into().ok())?;
    Some(LiveNode { node: number("node")?, level, applied: answer["applied"].as_u64()? })
}

/// Asks all nodes, and returns those that live.
///
/// # Errors
///
/// That the cluster does not answer, as text. Without the consumers, silent nodes would be missed.
pub(crate) async fn live_nodes(
    client: &Client,
    stream: &Stream,
    name: &str,
    log: LogId,
) -> Result<Vec<LiveNode>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("cannot ask the cluster's nodes: {e}");
    // Subscribed before the question is sent, or the first answers could be missed.
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|e| failed(&e))?;
    client.publish_with_reply(subject(name), inbox, "".into()).await.map_err(|e| failed(&e))?;
    let end = Instant::now() + ANSWERS;
    let mut answered = Vec::new();
    while let Ok(Some(answer)) = timeout_at(end, answers.next()).await {
        answered.extend(parse_answer(&answer.payload, log));
    }
    // Afterwards: a node that began meanwhile has a consumer by now, or begins after the messages that are removed next.
    let mut consumers = Vec::new();
    let mut listed = stream.consumers();
    while let Some(info) = listed.next().await {
        let info = info.map_err(|e| failed(&e))?;
        consumers.extend(recognize(&info.config, info.delivered.stream_sequence));
    }
    Ok(merge(answered, consumers))
}

/// Merges answers and consumers. An answer is newer than the consumers of the same node.
fn merge(answered: Vec<LiveNode>, consumers: Vec<NodeConsumer>) -> Vec<LiveNode> {
    let mut nodes: HashMap<u64, LiveNode> = answered.into_iter().map(|node| (node.node, node)).collect();
    let answered: Vec<u64> = nodes.keys().copied().collect();
    for NodeConsumer { node, delivered } in consumers {
        // Nodes of level 1 are one entry: the lowest position of them counts.
        let (node, level) = node.unwrap_or((0, FIRST_LEVEL));
        // A node may have left an old consumer behind, whose position would hold the removal back for a minute.
        if answered.contains(&node) {
            continue;
        }
        // A lower bound. Too low only keeps messages longer; too high would remove some that the node still
        // needs.
        let applied = delivered.saturating_sub(UNAPPLIED);
        let known = nodes.entry(node).or_insert(LiveNode { node, level, applied });
        known.applied = known.applied.min(applied);
    }
    let mut nodes: Vec<_> = nodes.into_values().collect();
    nodes.sort_unstable_by_key(|node| node.node);
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_nodes_count_by_their_consumers() {
        let live = |node, level, applied| LiveNode { node, level, applied };
        let consumer = |node, delivered| NodeConsumer { node, delivered };
        let nodes = merge(
            vec![live(7, 2, 500)],
            vec![
                // Left behind by an earlier subscription of the node that answered.
                consumer(Some((7, 2)), 3),
                consumer(Some((9, 3)), UNAPPLIED + 20),
                consumer(None, UNAPPLIED + 40),
                consumer(None, 100),
            ],
        );
        assert_eq!(nodes, [live(0, 1, 0), live(7, 2, 500), live(9, 3, 20)]);
    }

    #[test]
    fn consumers_of_other_programs_are_no_nodes() {
        let first = Config {
            ack_policy: AckPolicy::None,
            memory_storage: true,
            inactive_threshold: INACTIVE,
            ..Config::default()
        };
        assert_eq!(recognize(&first, 5), Some(NodeConsumer { node: None, delivered: 5 }));
        let named = Config { description: Some(consumer_description(7, 2)), ..first.clone() };
        assert_eq!(recognize(&named, 5), Some(NodeConsumer { node: Some((7, 2)), delivered: 5 }));
        for other in [
            Config { description: Some("nats stream view".into()), ..first.clone() },
            Config { durable_name: Some("sink".into()), ..first.clone() },
            Config { inactive_threshold: Duration::from_secs(5), ..first.clone() },
            Config { ack_policy: AckPolicy::Explicit, ..first },
        ] {
            assert_eq!(recognize(&other, 5), None, "{other:?}");
        }
    }

    #[test]
    fn answers_of_other_logs_and_programs_are_ignored() {
        let answer = |log: &str| {
            format!(r#"{{"node":"000000000000000a","log":"{log}","level":2,"applied":12}}"#).into_bytes()
        };
        assert_eq!(parse_answer(&answer("1f"), 0x1f), Some(LiveNode { node: 10, level: 2, applied: 12 }));
        assert_eq!(parse_answer(&answer("1e"), 0x1f), None);
        for other in ["", "7", "{}", r#"{"log":"1f","node":3}"#] {
            assert_eq!(parse_answer(other.as_bytes(), 0x1f), None, "{other}");
        }
    }
}
