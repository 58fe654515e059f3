//! HTML in feeds: plain text excerpts, visible and hidden contents, and links of a page's head.
//!
//! All readers use the tokens of the HTML standard (section 13.2.5) and build no tree. Time and memory are
//! linear in the input, regardless of nesting and unclosed elements.

mod alternates;
mod charset;
mod content;
mod entity;
mod head_links;
mod plain_text;
mod relative;
mod text;
mod title;
mod tokens;

pub use alternates::{Alternate, alternates};
pub(crate) use charset::meta_charset;
pub(crate) use content::is_void;
pub use content::{HtmlContent, HtmlLink, content};
pub(crate) use entity::entity;
pub use head_links::head_links;
pub(crate) use plain_text::{escape, is_collapsed, unescape};
pub(crate) use relative::{has_relative, is_address_attribute, is_relative, resolved, resolved_attribute};
pub use text::to_text;
pub(crate) use text::{looks_like_html, title};
pub(crate) use title::plain_title;
pub(crate) use tokens::{TextSink, is_block, read};
