//! Simple Update Protocol: one document that says which feeds moved.
//!
//! A publisher notes every move in [`publish::RecentMoves`], serves its document, and announces each feed's
//! SUP link ([`discovery`]) with every response for the feed. A consumer is [`follow::Consumer`], which says
//! which feeds to ask again; [`check`] says what a publisher lacks.

pub mod check;
mod check_rules;
pub mod discovery;
pub mod follow;
pub mod id;
pub mod publish;

mod source;
mod tolerant;
pub mod wire;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod consumer_tests;
#[cfg(test)]
mod simulation;
