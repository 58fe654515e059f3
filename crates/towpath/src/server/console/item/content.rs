//! Content of an item in the form that suits its type.

use maud::{Markup, html};
use towpath_proto::Content;
use towpath_proto::change::Change;
use towpath_proto::item::ContentForm;

use super::super::text::{bytes, clip, foreign, number, prefix};
use super::super::visit::Visit;
use super::json_tree;

/// Most bytes of a text that a page shows.
const MAX_TEXT: usize = 200 << 10;
/// Bytes that are shown as hexadecimal digits.
const HEX_BYTES: usize = 2048;

/// Form in which content is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentKind {
    Html,
    Json,
    Text,
    Image,
    Bytes,
}

/// Image types that browsers show, and that run nothing within an image element.
const IMAGES: [&str; 7] =
    ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/svg+xml", "image/bmp"];

/// Returns the form in which content is shown.
pub(super) fn kind_of(content: &Content) -> ContentKind {
    let essence = content.essence();
    if IMAGES.contains(&essence.as_str()) {
        return ContentKind::Image;
    }
    match content.shown() {
        Some((ContentForm::Html, _)) => ContentKind::Html,
        Some(_) if content.is_json() => ContentKind::Json,
        Some((ContentForm::Text, _)) => ContentKind::Text,
        // XML is shown as its text.
        None if essence.ends_with("xml") && content.text().is_some() => ContentKind::Text,
        None => ContentKind::Bytes,
    }
}

/// Makes the content's part of the page.
pub(super) fn view(visit: &Visit, change: &Change) -> Markup {
    let Some(content) = &change.item.content else {
        return html! { p class="soft" { "This item has no content beyond its fields." } };
    };
    let seq = change.seq.to_string();
    let part = |view: &str| {
        let path = visit.request.uri().path();
        format!("{path}{}", super::super::query::Query::default().with(&[("view", view), ("version", &seq)]))
    };
    html! {
        div class="row" {
            span class="soft" { (foreign(&clip(&content.media_type, 100))) ", " (bytes(content.bytes.len() as u64)) }
            a class="button" href=(part("raw")) download="" { "Download" }
        }
        @match kind_of(content) {
            ContentKind::Html => {
                iframe class="content" sandbox="" loading="lazy" title="Content" src=(part("frame")) {}
                details class="details" { summary { "Source" } (text(content)) }
            },
            ContentKind::Image => { img class="picture" alt="Content of the item" loading="lazy" src=(part("image")); },
            ContentKind::Json => (json_tree::view(content).unwrap_or_else(|| text(content))),
            ContentKind::Text => (text(content)),
            ContentKind::Bytes => (hex_dump(content)),
        }
    }
}

fn text(content: &Content) -> Markup {
    let whole = content.text().unwrap_or_default();
    let shown = prefix(whole, MAX_TEXT);
    html! {
        pre class="text" dir="auto" tabindex="0" { bdi { (shown) } }
        @if shown.len() < whole.len() { p class="soft" { "The first " (number(shown.len() as u64)) " bytes. Download the rest." } }
    }
}

fn hex_dump(content: &Content) -> Markup {
    let shown = &content.bytes[..content.bytes.len().min(HEX_BYTES)];
    html! {
        pre tabindex="0" { @for (index, line) in shown.chunks(16).enumerate() { (hex_line(index * 16, line)) "\n" } }
        @if shown.len() < content.bytes.len() { p class="soft" { "The first " (number(shown.len() as u64)) " bytes. Download the rest." } }
    }
}

/// Makes a line of a hex dump: offset, bytes, and the readable ones among them.
fn hex_line(offset: usize, line: &[u8]) -> String {
    let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
    let readable =
        |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '·' };
    let shown: String = line.iter().map(readable).collect();
    format!("{offset:06x}  {:<47}  {shown}", digits.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_decide_how_content_is_shown() {
        let kind = |media_type: &str| kind_of(&Content::new(media_type, "x"));
        for (media_type, expected) in [
            ("text/html; charset=utf-8", ContentKind::Html),
            ("application/ld+json", ContentKind::Json),
            ("text/markdown", ContentKind::Text),
            ("application/atom+xml", ContentKind::Text),
            ("image/svg+xml", ContentKind::Image),
            ("image/x-unknown", ContentKind::Bytes),
            ("application/octet-stream", ContentKind::Bytes),
        ] {
            assert_eq!(kind(media_type), expected, "{media_type}");
        }
        assert_eq!(kind_of(&Content::new("text/plain", vec![0xff])), ContentKind::Bytes);
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!(
            hex_line(16, b"<b>\x00\xff"),
            "000010  3c 62 3e 00 ff                                   <b>··"
        );
    }
}
