//! Details of a feed's state, which only those who may publish to it read.

/// Details of failures and of what is to be published, which strangers do not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DetailVisibility {
    Shown,
    Hidden,
}

impl DetailVisibility {
    pub(crate) fn shown_if(may_read: bool) -> Self {
        if may_read { Self::Shown } else { Self::Hidden }
    }

    pub(crate) fn are_shown(self) -> bool {
        self == Self::Shown
    }
}
