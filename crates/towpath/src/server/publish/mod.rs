//! Publishing over HTTP: bodies of every form, the files that come with them, and what is due later.

mod attachments;
mod batch;
mod body;
mod fields;
mod foreign;
mod large;
mod limits;
mod line;
mod urls;

pub(super) use attachments::get as attachment;
pub(super) use batch::{BatchReceipt, post};
pub(super) use large::{ReceivedContent, ReceivedFile, check_room, content, is_large};
pub(super) use limits::MAX_CONTENT;
pub(super) use line::{BodyPlace, PublishedLine, line, with_json};
pub(crate) use urls::UrlRule;
