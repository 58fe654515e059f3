//! Small charts of the last days, drawn on the server.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::activity::Activity;
use super::text::number;
use crate::engine::change_counts::ChangeCounts;

const WIDTH: f64 = 120.0;
const HEIGHT: f64 = 26.0;
/// Height of the smallest bar: one change among thousands must be seen.
const LEAST: f64 = 1.6;

/// Draws the changes of the last days: a bar for each day, in three parts.
pub(super) fn sparkline(activity: &Activity) -> Markup {
    let sum =
        |part: fn(&ChangeCounts) -> u32| activity.days.iter().map(|day| u64::from(part(day))).sum::<u64>();
    let (new, changed, removed) = (sum(|day| day.new), sum(|day| day.changed), sum(|day| day.removed));
    if !activity.is_complete {
        return html! { span class="soft small" { "counting…" } };
    }
    if new + changed + removed == 0 {
        return html! { span class="soft small" { "no changes" } };
    }
    let label =
        format!("30 days: {} new, {} changed, {} removed", number(new), number(changed), number(removed));
    let [of_new, of_changed, of_removed] = bars(&activity.days);
    html! {
        svg class="spark" viewBox="0 0 120 26" role="img" aria-label=(label) preserveAspectRatio="none" {
            title { (label) }
            path class="base" d="M0 26H120" {}
            @for (class, path) in [("b-new", of_new), ("b-changed", of_changed), ("b-removed", of_removed)] {
                @if !path.is_empty() { path class=(class) d=(path) {} }
            }
        }
    }
}

/// Returns the outlines of the bars' three parts, from the ground up.
fn bars(days: &[ChangeCounts]) -> [String; 3] {
    let most = days.iter().map(|day| day.total()).max().unwrap_or(0).max(1);
    let step = WIDTH / days.len().max(1) as f64;
    let mut paths = [String::new(), String::new(), String::new()];
    for (index, day) in days.iter().enumerate() {
        let mut ground = HEIGHT;
        for (path, count) in paths.iter_mut().zip([day.new, day.changed, day.removed]) {
            if count == 0 {
                continue;
            }
            let height = (f64::from(count) / f64::from(most) * HEIGHT).max(LEAST).min(ground);
            ground -= height;
            let (x, width) = (index as f64 * step, step - 0.8);
            // Writing to a String cannot fail.
            let _ = write!(path, "M{x:.0} {ground:.1}h{width:.1}v{height:.1}h-{width:.1}z");
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::console::activity::DAYS;

    #[test]
    fn parts_stand_on_each_other() {
        let mut days = vec![ChangeCounts::default(); DAYS];
        days[29] = ChangeCounts { new: 2, changed: 1, removed: 1 };
        assert_eq!(
            bars(&days),
            ["M116 13.0h3.2v13.0h-3.2z", "M116 6.5h3.2v6.5h-3.2z", "M116 0.0h3.2v6.5h-3.2z"]
        );
        let drawn = sparkline(&Activity { days, is_complete: true }).into_string();
        assert!(
            drawn.contains("30 days: 2 new, 1 changed, 1 removed") && !drawn.contains("style"),
            "{drawn}"
        );
    }

    #[test]
    fn nothing_to_draw() {
        let quiet = |is_complete| {
            sparkline(&Activity { days: vec![ChangeCounts::default(); DAYS], is_complete }).into_string()
        };
        assert!(quiet(true).contains("no changes") && quiet(false).contains("counting"));
    }
}
