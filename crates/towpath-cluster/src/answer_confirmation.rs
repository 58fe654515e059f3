//! Confirmation of bad news: a single answer does not stop a node.
//!
//! The server that answers may be behind the one that delivered a message: it tells of a log that ends before the
//! message, for some milliseconds after an append. A log that really lost messages says so each time.

/// Number of equal answers in a row that are believed.
const CONFIRMATIONS: u32 = 3;

/// Answers in a row that say that the log lost messages, or is another one.
#[derive(Debug, Default)]
pub(crate) struct AnswerConfirmation(u32);

impl AnswerConfirmation {
    /// Counts such an answer. Returns true once it is to be believed.
    pub(crate) fn confirm(&mut self) -> bool {
        self.0 = (self.0 + 1).min(CONFIRMATIONS);
        self.0 == CONFIRMATIONS
    }

    /// Notes any other answer.
    pub(crate) fn clear(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_is_repeated_is_believed() {
        let mut confirmation = AnswerConfirmation::default();
        assert!(!confirmation.confirm() && !confirmation.confirm());
        confirmation.clear();
        assert!(
            !confirmation.confirm()
                && !confirmation.confirm()
                && confirmation.confirm()
                && confirmation.confirm()
        );
    }
}
