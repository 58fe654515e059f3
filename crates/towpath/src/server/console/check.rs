//! Check: an address, the protocol it speaks, and how well it does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use maud::{Markup, html};
use tokio::sync::{Semaphore, watch};
use towpath_client::{
    CallQueue, FetchOptions, Fetcher, FollowPace, MemoryBudget, Offer, PrivateFetches, Protocol, ReadLimits,
    checker, discover, drive_check,
};
use towpath_proto::report::{Finding, FindingOutcome, Level, Report};
use url::Url;

use super::error_page::sign_in;
use super::layout::{Page, Section, secret};
use super::section_links::link_to;
use super::shown::Shown;
use super::text::{clip, foreign};
use super::visit::Visit;
use super::write::form_data::FormData;
use crate::config::PrivateFetchesConfig;
use crate::document::route_error::RouteError;

/// Longest time of a check.
const PATIENCE: Duration = Duration::from_secs(60);
/// Checks at a time. Each reads whole feeds.
const AT_A_TIME: usize = 2;

/// Largest document of a check, and largest entity of Data Replication, in MiB. Command lines may read more.
const LARGEST_MIB: usize = 16;

/// Checks of this server.
struct Checks(Arc<Semaphore>);

/// Result of a check.
struct Checked {
    offer: Offer,
    report: Report,
}

/// Shows the form.
pub(super) fn page(visit: &Visit) -> Page {
    with_result(visit, "", &html! {})
}

/// Checks the address of a form.
pub(super) async fn run(visit: &Visit, form: &FormData) -> Result<Shown, RouteError> {
    if !visit.is_publisher() {
        return Err(RouteError::forbidden("Checking other servers needs a token that may publish"));
    }
    let asked = form.text("url").trim();
    let url = match Url::parse(asked) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && asked.len() <= 2000 => url,
        _ => return Ok(with_result(visit, asked, &fault("That is no http or https address.")).into()),
    };
    let checks = visit.engine.extensions.get_or_insert_with(|| Checks(Arc::new(Semaphore::new(AT_A_TIME))));
    let Ok(place) = checks.0.clone().try_acquire_owned() else {
        return Err(RouteError::busy("Other checks are running. Try again in a minute"));
    };
    let fetcher = fetcher(visit)?;
    // On the runtime of background work: a check parses whole feeds, and other pages must not wait for that.
    let checking = visit.engine.runtime.spawn(
        async move {
            let _place = place;
            tokio::time::timeout(PATIENCE, check(fetcher, url)).await
        }
        .boxed(),
    );
    let result = match checking.await.map_err(|e| RouteError::internal(format!("the check panicked: {e}")))? {
        Ok(Ok(checked)) => report(&checked),
        Ok(Err(why)) => fault(&why),
        Err(_) => fault("The check took more than a minute. Use towpath check for large feeds."),
    };
    Ok(with_result(visit, asked, &result).into())
}

/// Makes a client that reaches no private address, unless the configuration opens all of them.
fn fetcher(visit: &Visit) -> Result<Fetcher, RouteError> {
    let private = match visit.engine.config.server.private_fetches {
        PrivateFetchesConfig::All => PrivateFetches::All,
        // Nobody configured this address: a token for a feed is none for this machine's network.
        PrivateFetchesConfig::None | PrivateFetchesConfig::Named => PrivateFetches::None,
    };
    // The budget of the server's sources: checks must not double the memory that documents take.
    let memory = visit.engine.extensions.get_or_insert_with(MemoryBudget::default).clone();
    let options = FetchOptions { private, memory, total_timeout: PATIENCE, ..FetchOptions::default() };
    Fetcher::new(options).map_err(|e| RouteError::internal(e.to_string()))
}

/// Returns the limits of what a check reads.
fn limits() -> Result<ReadLimits, String> {
    let mut limits = ReadLimits::default();
    for name in ["max_mib", "entity_mib"] {
        limits.set(name, LARGEST_MIB)?;
    }
    Ok(limits)
}

async fn check(fetcher: Fetcher, url: Url) -> Result<Checked, String> {
    let offer = discover(&fetcher, url.as_str(), FollowPace::Polled).await.map_err(|e| e.to_string())?;
    let mut check = checker(offer.protocol, &offer.url, limits()?).map_err(|e| e.to_string())?;
    // It never stops: the time limit drops it.
    let (_keep, stop) = watch::channel(false);
    if !drive_check(&mut *check, &fetcher, &stop, CallQueue::none()).await {
        return Err("The check did not come to its end.".to_owned());
    }
    Ok(Checked { offer, report: check.report().clone() })
}

fn with_result(visit: &Visit, asked: &str, result: &Markup) -> Page {
    let body = html! {
        div class="title" { h1 { "Check a feed" } }
        p { "Finds the protocol that a feed speaks, and reports rule by rule how it keeps to the text of that protocol." }
        @if visit.is_publisher() { @if let Some(session) = &visit.session {
            form class="filter" method="post" action={ (visit.root) "/check" } {
                (secret(session.form_secret()))
                div class="field wide" {
                    label for="url" { "Address of a feed, or of a page that names it" }
                    input id="url" type="url" name="url" value=(asked) required maxlength="2000" placeholder="https://";
                }
                button class="main" type="submit" { "Check" }
            }
        } } @else {
            div class="note" { p { "Checking other servers needs a token that may publish. " a href=(sign_in(visit)) { "Sign in" } ", or use " code { "towpath check URL" } "." } }
        }
        (result)
    };
    Page::new("Check", Section::Check, body)
}

fn fault(why: &str) -> Markup {
    html! { div class="note failing" role="alert" { p { (foreign(&clip(why, 600))) } } }
}

fn report(checked: &Checked) -> Markup {
    let Checked { offer, report } = checked;
    let failed = |level| report.count(level, FindingOutcome::Fail);
    html! {
        div class={ "note " (if report.conforms() { "ok" } else { "failing" }) } role="status" {
            p { strong { @if report.conforms() { "It conforms." } @else { "It does not conform." } }
                " " (foreign(&clip(&offer.url, 300))) " speaks " (offer.protocol.name()) ", because " (foreign(&clip(&offer.why, 200))) "." }
            p { (failed(Level::Must)) " MUST, " (failed(Level::Should)) " SHOULD and " (failed(Level::Advice)) " pieces of advice failed; " (report.findings.len()) " rules were checked." }
        }
        div class="sheet" { table class="cardlike" {
            caption class="hidden" { "Rules" }
            thead { tr { th scope="col" { "Result" } th scope="col" { "Level" } th scope="col" { "Rule" } th scope="col" { "Section" } } }
            tbody { @for finding in sorted(&report.findings) { (row(offer.protocol, finding)) } }
        } }
    }
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
