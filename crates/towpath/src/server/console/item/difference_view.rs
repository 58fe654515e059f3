//! Markup of differences: inline or side by side.

use maud::{Markup, html};

use super::difference::{DifferenceLine, FieldDifference, LineKind, side_by_side};

/// Layout of a comparison.
#[derive(Debug, Clone, Copy)]
pub(in crate::server::console) enum DifferenceLayout {
    Inline,
    /// Old and new side by side.
    Columns,
}

/// Makes the comparison of two versions.
pub(in crate::server::console) fn view(differences: &[FieldDifference], layout: DifferenceLayout) -> Markup {
    html! {
        @if differences.is_empty() { div class="note ok" { p { "The two versions say the same." } } }
        @for field in differences {
            section {
                h3 { (field.name) }
                div class="sheet" tabindex="0" role="region" aria-label={ "Difference of " (field.name) } {
                    table class="diff" {
                        caption class="hidden" { "Difference of " (field.name) }
                        @match layout {
                            DifferenceLayout::Columns => { (columns(&field.lines)) }
                            DifferenceLayout::Inline => { (inline(&field.lines)) }
                        }
                    }
                }
                @if field.is_cut { p class="soft small" { "The texts are too long to be compared whole." } }
            }
        }
    }
}

fn inline(lines: &[DifferenceLine]) -> Markup {
    html! {
        tbody { @for line in lines {
            @if line.kind == LineKind::Skipped { tr class="skip" { td colspan="3" { "unchanged lines" } } } @else {
                tr {
                    td class="n" { (number(line.old)) }
                    td class="n" { (number(line.new)) }
                    td class=[class(line.kind)] { (text(line)) }
                }
            }
        } }
    }
}

fn columns(lines: &[DifferenceLine]) -> Markup {
    html! {
        tbody { @for (old, new) in side_by_side(lines) {
            @if old.is_some_and(|line| line.kind == LineKind::Skipped) { tr class="skip" { td colspan="4" { "unchanged lines" } } } @else {
                tr { (half(old, |line| line.old)) (half(new, |line| line.new)) }
            }
        } }
    }
}

fn half(line: Option<&DifferenceLine>, index: impl Fn(&DifferenceLine) -> Option<usize>) -> Markup {
    html! {
        @match line {
            Some(line) => { td class="n" { (number(index(line))) } td class={ "half " (class(line.kind).unwrap_or_default()) } { (text(line)) } },
            None => { td class="n void" {} td class="half void" {} },
        }
    }
}

fn number(index: Option<usize>) -> Markup {
    html! { @if let Some(index) = index { (index) } }
}

fn class(kind: LineKind) -> Option<&'static str> {
    match kind {
        LineKind::Removed => Some("del"),
        LineKind::Added => Some("add"),
        LineKind::Same | LineKind::Skipped => None,
    }
}

fn text(line: &DifferenceLine) -> Markup {
    // Colours alone tell nothing to those who do not see them.
    let (mark, name) = match line.kind {
        LineKind::Removed => ("− ", "removed: "),
        LineKind::Added => ("+ ", "added: "),
        LineKind::Same | LineKind::Skipped => ("  ", ""),
    };
    html! {
        span aria-hidden="true" { (mark) } @if !name.is_empty() { span class="hidden" { (name) } }
        bdi { @for (differs, part) in &line.parts {
            @match (differs, line.kind) {
                (true, LineKind::Removed) => del { (part) },
                (true, LineKind::Added) => ins { (part) },
                _ => (part),
            }
        } }
    }
}
