//! The pages for browsers, and their JSON for programs.

pub(crate) mod html;
