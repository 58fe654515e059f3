//! Markup of the form to publish an item.

use maud::{Markup, html};
use towpath_proto::Item;

use super::super::error_page::sign_in;
use super::super::item::difference_view::DifferenceLayout;
use super::super::item::{difference, difference_view};
use super::super::layout::secret;
use super::super::visit::Visit;
use super::item_form::ItemForm;
use crate::engine::Feed;

/// Makes the note for readers who have not signed in.
pub(super) fn signed_out(visit: &Visit) -> Markup {
    html! {
        div class="note" {
            p { strong { "Publishing in the browser needs a token." } }
            p { a href=(sign_in(visit)) { "Sign in" } ", or publish with " code { "towpath put" } " or " code { "PUT /feeds/…/items/…" } "." }
        }
    }
}

/// Makes the form, below a note or a preview.
pub(super) fn form(
    visit: &Visit,
    feed: &Feed,
    draft: &ItemForm,
    form_secret: &str,
    above: Option<Markup>,
) -> Markup {
    let is_new = draft.version.is_none();
    html! {
        @if let Some(above) = above { (above) }
        form class="form" method="post" action={ (visit.feed_path(feed)) "/publish" } {
            (secret(form_secret))
            @if let Some(version) = draft.version {
                input type="hidden" name="version" value=(version);
                input type="hidden" name="id" value=(draft.id);
                p class="soft" { "Edits " bdi class="mono" { (draft.id) } ", version " (version) "." }
            } @else {
                div class="field" {
                    label for="id" { "Id (unique within the feed)" }
                    input id="id" name="id" value=(draft.id) required maxlength="2048" autofocus[is_new];
                }
            }
            div class="field" { label for="title" { "Title" } input id="title" name="title" value=(draft.title) dir="auto"; }
            div class="two" {
                div class="field" { label for="url" { "Link" } input id="url" name="url" type="url" value=(draft.url); }
                div class="field" { label for="published" { "Published, such as 2026-01-31T12:00:00Z" } input id="published" name="published" value=(draft.published); }
            }
            div class="field" { label for="summary" { "Summary" } textarea id="summary" name="summary" rows="3" dir="auto" { "\n" (draft.summary) } }
            div class="two" {
                div class="field" { label for="tags" { "Tags, one on each line" } textarea id="tags" name="tags" rows="3" { "\n" (draft.tags) } }
                div class="field" { label for="authors" { "Authors, one on each line" } textarea id="authors" name="authors" rows="3" { "\n" (draft.authors) } }
            }
            @if draft.keeps_content {
                input type="hidden" name="keeps_content" value="1";
                p class="soft" { "The content is no text that fits a form, and stays as it is." }
            } @else {
                div class="field" { label for="media_type" { "Media type of the content" }
                    input id="media_type" name="media_type" value=(draft.media_type) list="media-types" placeholder="text/plain" maxlength="1024";
                    datalist id="media-types" { @for name in ["text/plain", "text/html", "text/markdown", "application/json"] { option value=(name) {} } }
                }
                div class="field" { label for="item-content" { "Content" } textarea id="item-content" name="content" rows="12" dir="auto" { "\n" (draft.content) } }
            }
            div class="row" {
                button class="main" type="submit" name="action" value="publish" { "Publish" }
                button type="submit" name="action" value="preview" { "Preview" }
            }
        }
    }
}

/// Shows the fields as readers would get them: what differs from the latest version.
pub(super) fn preview(visit: &Visit, before: Option<&Item>, item: &Item) -> Markup {
    let empty = Item::new(item.id.clone());
    let risk = visit.engine.scorer.score(item);
    html! {
        section class="note ok" aria-label="Preview" {
            h2 { "Preview" }
            p { "Nothing is published yet. " @if before.is_some() { "This would change:" } @else { "This would be the first version:" } }
            (difference_view::view(&difference::compare(before.unwrap_or(&empty), item), DifferenceLayout::Inline))
            @if risk.is_flagged() { p class="risk" { "Readers would see a risk of " (format!("{:.2}", risk.score)) ": " (risk.reasons.join(", ")) "." } }
        }
    }
}
