//! Markup of the reports of a check.

use maud::{Markup, html};
use towpath_client::{Offer, Protocol};
use towpath_proto::report::{Finding, FindingOutcome, Level, Report};

use crate::server::console::section_links::link_to;
use crate::server::console::text::{clip, count, foreign};

/// Most further addresses of a protocol that are listed.
const MAX_OTHERS: usize = 10;

/// Result of the check of one protocol.
pub(super) struct ProtocolCheck {
    pub(super) offer: Offer,
    /// Further addresses of the protocol, which were not checked.
    pub(super) others: Vec<String>,
    /// Report, or the reason why there is none.
    pub(super) report: Result<Report, String>,
}

/// Makes the summary of all protocols, and the report of each.
pub(super) fn of_all(checked: &[ProtocolCheck]) -> Markup {
    html! {
        h2 { (count(checked.len() as u64, "protocol")) " found" }
        div class="sheet" { table class="cardlike" {
            caption class="hidden" { "Protocols" }
            thead { tr { th scope="col" { "Protocol" } th scope="col" { "Promise" } th scope="col" { "Result" } th scope="col" class="number" { "Rules" } } }
            tbody { @for one in checked { (summary(one)) } }
        } }
        @for one in checked { (of_one(one)) }
    }
}

fn summary(checked: &ProtocolCheck) -> Markup {
    let protocol = checked.offer.protocol;
    html! {
        tr {
            th scope="row" { a href={ "#" (protocol.name()) } { (protocol.name()) } }
            td data-label="Promise" { (protocol.guarantee()) }
            td data-label="Result" { @match &checked.report {
                Ok(report) if report.conforms() => span class="pass" { "conforms" },
                Ok(report) => span class="fail" { (failed(report, Level::Must)) " MUST failed" },
                Err(_) => span class="soft" { "not checked" },
            } }
            td class="number" data-label="Rules" { @if let Ok(report) = &checked.report { (report.findings.len()) } }
        }
    }
}

fn of_one(checked: &ProtocolCheck) -> Markup {
    let ProtocolCheck { offer, others, report } = checked;
    let protocol = offer.protocol;
    html! {
        section class="gap" id=(protocol.name()) {
            h2 { (protocol.name()) }
            p { (foreign(&clip(&offer.url, 300))) span class="soft" { ", because " (foreign(&clip(&offer.why, 200))) "." } }
            @if !others.is_empty() {
                p class="soft small" { "Not checked at " @for (index, other) in others.iter().take(MAX_OTHERS).enumerate() { @if index > 0 { ", " } (foreign(&clip(other, 300))) } @if others.len() > MAX_OTHERS { " and " (others.len() - MAX_OTHERS) " more" } "." }
            }
            @match report { Ok(report) => (rules(protocol, report)), Err(why) => (fault(why)) }
        }
    }
}

fn rules(protocol: Protocol, report: &Report) -> Markup {
    let failed = |level| failed(report, level);
    html! {
        div class={ "note " (if report.conforms() { "ok" } else { "failing" }) } role="status" {
            p { strong { @if report.conforms() { "It conforms." } @else { "It does not conform." } }
                " " (failed(Level::Must)) " MUST, " (failed(Level::Should)) " SHOULD and " (failed(Level::Advice)) " pieces of advice failed; " (report.findings.len()) " rules were checked." }
        }
        div class="sheet" { table class="cardlike" {
            caption class="hidden" { "Rules of " (protocol.name()) }
            thead { tr { th scope="col" { "Result" } th scope="col" { "Level" } th scope="col" { "Rule" } th scope="col" { "Section" } } }
            tbody { @for finding in sorted(&report.findings) { (row(protocol, finding)) } }
        } }
    }
}

fn failed(report: &Report, level: Level) -> usize {
    report.count(level, FindingOutcome::Fail)
}

/// Returns the findings, failures first.
fn sorted(findings: &[Finding]) -> Vec<&Finding> {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| (finding.outcome != FindingOutcome::Fail, finding.level));
    sorted
}

fn row(protocol: Protocol, finding: &Finding) -> Markup {
    let (class, outcome) = match finding.outcome {
        FindingOutcome::Pass => ("pass", "pass"),
        FindingOutcome::Fail => ("fail", "fail"),
        FindingOutcome::Skipped => ("soft", "not checked"),
    };
    let level = match finding.level {
        Level::Must => "MUST",
        Level::Should => "SHOULD",
        Level::Advice => "advice",
    };
    html! {
        tr {
            td { span class=(class) { (outcome) } }
            td { (level) }
            th scope="row" { (finding.rule) @if !finding.detail.is_empty() { span class="why soft small" { br; (foreign(&clip(&finding.detail, 400))) } } }
            td class="nowrap" data-label="Section" { @match link_to(protocol, &finding.section) { Some(url) => a href=(url) rel="noopener noreferrer" { (finding.section) }, None => (finding.section) } }
        }
    }
}

/// Makes the note of a check that did not come about.
pub(super) fn fault(why: &str) -> Markup {
    html! { div class="note failing" role="alert" { p { (foreign(&clip(why, 600))) } } }
}
