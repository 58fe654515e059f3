//! What code detects where a pattern cannot.

use crate::item::Item;

/// Names the detectors once: the variant and what a rule calls it.
macro_rules! detectors {
    ($($variant:ident = $name:literal,)*) => {
        /// Something that code finds in an item; see docs/risk.md for what each looks at.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Detector {
            $($variant,)*
        }

        impl Detector {
            /// Every detector and its name.
            pub(super) const ALL: &[(Self, &str)] = &[$((Self::$variant, $name),)*];
        }
    };
}

detectors! {
    TagCharacters = "tag-characters",
    BidiOverride = "bidi-override",
    BidiUnbalanced = "bidi-unbalanced",
    ZeroWidthInWord = "zero-width-in-word",
    InvisibleRun = "invisible-run",
    VariationSelectorRun = "variation-selector-run",
    TerminalEscape = "terminal-escape",
    ScriptElement = "script-element",
    EventHandler = "event-handler",
    ActiveUrl = "active-url",
    EmbeddedFrame = "embedded-frame",
    MetaRefresh = "meta-refresh",
    PasswordField = "password-field",
    HiddenText = "hidden-text",
    MismatchedLink = "mismatched-link",
    HomographHost = "homograph-host",
    PunycodeHost = "punycode-host",
    UserinfoUrl = "userinfo-url",
    AddressHost = "address-host",
    ExecutableLink = "executable-link",
    ScriptFileLink = "script-file-link",
    DoubleExtension = "double-extension",
    ExecutableContent = "executable-content",
    Base64Blob = "base64-blob",
    HiddenInstructions = "hidden-instructions",
    BaitLink = "bait-link",
}

impl Detector {
    /// The detector of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(detector, _)| *detector)
    }
}

/// What the detectors found in an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Signals {
    bits: u64,
    /// A rule of the group `bait` fired.
    pub(super) bait: bool,
    /// A text of the item has a link in it.
    pub(super) link: bool,
}

impl Signals {
    pub(super) fn set(&mut self, detector: Detector) {
        self.bits |= 1 << detector as u64;
    }

    pub(super) fn set_if(&mut self, detector: Detector, condition: bool) {
        self.bits |= u64::from(condition) << detector as u64;
    }

    pub(super) fn has(self, detector: Detector) -> bool {
        self.bits & (1 << detector as u64) != 0
    }
}

/// Looks at what is not text.
pub(super) fn look_at_item(item: &Item, signals: &mut Signals) {
    /// Windows, ELF, Mach-O in both byte orders and both widths; Mach-O's `cafebabe` is Java's too.
    const MAGIC: [&[u8]; 7] = [
        b"MZ\x90\x00",
        b"MZP\x00",
        b"\x7fELF",
        b"\xcf\xfa\xed\xfe",
        b"\xce\xfa\xed\xfe",
        b"\xfe\xed\xfa\xcf",
        b"\xca\xfe\xba\xbe",
    ];
    let Some(content) = &item.content else { return };
    let claimed = matches!(
        content.essence().as_str(),
        "application/x-msdownload"
            | "application/x-dosexec"
            | "application/vnd.microsoft.portable-executable"
            | "application/x-executable"
            | "application/x-mach-binary"
            | "application/hta"
    );
    let is_program = claimed || MAGIC.iter().any(|magic| content.bytes.starts_with(magic));
    signals.set_if(Detector::ExecutableContent, is_program);
}
