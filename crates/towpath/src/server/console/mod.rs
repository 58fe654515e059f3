//! Pages for browsers: feeds and their health, items and versions, differences, search, and what a token permits.
//!
//! A page is made on the server and works without JavaScript. Each view has two parts: a module that reads the engine and
//! the log into a plain value, and functions that turn this value into markup. A request comes in through [`PageAddress`],
//! becomes a [`visit::Visit`] (who looks, at what, from when), and leaves as an answer with a strict content security
//! policy. Programs get JSON at the same addresses, from [`programs`].

mod activity;
mod address;
mod answer;
mod assets;
mod check;
mod clock;
mod error_page;
mod feed;
mod feed_head;
mod health;
mod home;
mod item;
mod layout;
mod moment;
mod pretty;
pub(crate) mod programs;
mod query;
mod refused;
mod section_links;
mod shown;
mod sinks;
mod sparkline;
mod text;
mod visit;
mod write;

pub(super) use address::PageAddress;
pub(super) use answer::respond;
pub(crate) use item::difference;
pub(super) use refused::Refused;
