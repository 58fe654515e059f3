//! Checks of a good service, and of one with a fault in one of its answers.

use super::limits::{log_in, receive};
use super::simulation::{ALICE, PlainPassword, SERVICE};
use crate::follow::{Checker as _, Exchange as _, Now};
use crate::format::xml::ATOM;
use crate::planted::PlantedFaults;
use crate::push::xmpp::check::{NodeChecker, xmpp_rules};
use crate::push::xmpp::wire::session::OverXmpp as _;
use crate::push::xmpp::wire::uri::NodeUri;
use crate::report::{FindingOutcome, Level, Report};
use crate::smart::tests::time;

const PUBSUB: &str = "http://jabber.org/protocol/pubsub";
const RSM: &str = "http://jabber.org/protocol/rsm";

fn page(ids: [&str; 2], cursors: [u32; 2]) -> String {
    let item = |id: &str| format!("<item id='{id}'><entry xmlns='{ATOM}'><id>{id}</id></entry></item>");
    let items: String = ids.into_iter().map(item).collect();
    let [first, last] = cursors;
    format!(
        "<pubsub xmlns='{PUBSUB}'><items node='n'>{items}</items><set xmlns='{RSM}'>\
         <first>cursor:{first}</first><last>cursor:{last}</last><count>4</count></set></pubsub>"
    )
}

fn error(condition: &str) -> String {
    format!("<error type='cancel'><{condition} xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>")
}

/// Returns the content of a good service's answer to a step of the check.
fn good(step: &str) -> String {
    match step {
        "Info" => format!(
            "<query xmlns='http://jabber.org/protocol/disco#info'><feature var='{PUBSUB}'/>\
             <feature var='{RSM}'/><feature var='http://jabber.org/protocol/shim'/></query>"
        ),
        "First" | "Back" => page(["a", "b"], [1, 2]),
        "Next" => page(["c", "d"], [3, 4]),
        "Count" => {
            format!(
                "<pubsub xmlns='{PUBSUB}'><items node='n'/><set xmlns='{RSM}'><count>4</count></set></pubsub>"
            )
        }
        "Unknown" => error("item-not-found"),
        _ => String::new(),
    }
}

/// Runs a check whose answers `answer` gives by step; `None` for no answer.
fn check(answer: impl Fn(&str) -> Option<String>) -> Report {
    let uri = NodeUri { service: SERVICE.into(), node: "n".into() };
    let mut check = NodeChecker::new(&uri, ALICE, Box::new(PlainPassword)).unwrap();
    let mut sent = log_in(&mut check);
    while !check.is_finished() {
        let id = &sent[sent.rfind("check-").unwrap()..];
        let step = id["check-".len()..].split(['"', '\'']).next().unwrap().to_owned();
        let Some(content) = answer(&step) else {
            check.handle_received(Now::simulated(time(100)));
            break;
        };
        let kind = if content.starts_with("<error") { "error" } else { "result" };
        receive(&mut check, &format!("<iq type='{kind}' from='{SERVICE}' id='check-{step}'>{content}</iq>"));
        sent = check.session().poll_output().unwrap_or_default();
    }
    assert!(check.is_finished());
    check.report().clone()
}

fn failed(report: &Report) -> Vec<&str> {
    let failed = report.findings.iter().filter(|finding| finding.outcome == FindingOutcome::Fail);
    failed.map(|finding| finding.rule.as_str()).collect()
}

#[test]
fn a_good_service_passes_everything() {
    let report = check(|step| Some(good(step)));
    assert_eq!(failed(&report), [""; 0], "{report:#?}");
    assert_eq!(report.count(Level::Must, FindingOutcome::Skipped), 0, "{report:#?}");
}

/// Step of the check, text to replace (empty for the whole answer), replacement, part of the rule that is to be named.
#[test]
fn planted_faults_are_named() {
    let refused = error("forbidden");
    let feature = |var: &str| format!("<feature var='{var}'/>");
    let (pubsub, rsm) = (feature(PUBSUB), feature(RSM));
    let entry = format!("<entry xmlns='{ATOM}'><id>b</id></entry>");
    let items = format!(
        "<items node='n'><item id='a'>{}</item><item id='b'>{entry}</item></items>",
        entry.replace('b', "a")
    );
    let faults = [
        ("Info", pubsub.as_str(), "", "protocol/pubsub is advertised"),
        ("Info", rsm.as_str(), "", "protocol/rsm is advertised"),
        ("Info", "protocol/shim", "protocol/ship", "protocol/shim is advertised"),
        ("Info", "", refused.as_str(), "protocol/pubsub is advertised"),
        ("First", "", refused.as_str(), "items can be asked for"),
        ("First", "node='n'", "node='m'", "an answer names its node"),
        ("Next", " node='n'", "", "an answer names its node"),
        ("First", entry.as_str(), "<text>b</text>", "items are always formatted as Atom entries"),
        ("Next", "2005/Atom", "2005/Other", "items are always formatted as Atom entries"),
        ("First", "id='b'", "id='a'", "all items have a unique id within a feed"),
        ("First", " id='b'", "", "all items have a unique id within a feed"),
        ("First", "cursor:1", "1", "cursors are provided"),
        ("First", "<last>cursor:2</last>", "", "cursors are provided"),
        ("Next", "<first>cursor:3</first>", "", "cursors are provided"),
        ("First", "<count>4</count>", "", "the RSM count contains"),
        ("First", "<item id='a'>", "", "an empty page has no first and no last"),
        ("Next", "id='c'", "id='a'", "after leads to the next page"),
        ("Next", "", refused.as_str(), "after leads to the next page"),
        ("Back", "id='a'", "id='c'", "before leads back"),
        ("Back", "", refused.as_str(), "before leads back"),
        ("Count", "<count>4</count>", "", "max 0 asks for the count alone"),
        ("Count", "", refused.as_str(), "max 0 asks for the count alone"),
        ("Unknown", "item-not-found", "bad-request", "an unknown node is item-not-found"),
        ("Unknown", "", "<pubsub/>", "an unknown node is item-not-found"),
        ("Subscribe", "", refused.as_str(), "the node can be subscribed to"),
        ("Unsubscribe", "", refused.as_str(), "a subscription can be ended"),
    ];
    let mut planted = PlantedFaults::new("XMPP");
    for (at, from, to, rule) in faults {
        let report = check(|step| {
            let answer = good(step);
            if step != at {
                return Some(answer);
            }
            if from.is_empty() {
                return Some(to.to_owned());
            }
            assert!(answer.contains(from), "{from} is not in {answer}");
            // An item cannot go without its end, so all of them go.
            let is_item = from.starts_with("<item ");
            Some(if is_item {
                answer.replace(&items, "<items node='n'/>")
            } else {
                answer.replacen(from, to, 1)
            })
        });
        planted.judge(rule, &format!("{at} {from} -> {to}"), failed(&report));
    }
    let report = check(|step| (step != "Count").then(|| good(step)));
    planted.judge("every request is answered", "silence", failed(&report));
    planted.assert_complete(xmpp_rules().iter().map(|rule| rule.text));
}
