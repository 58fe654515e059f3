//! Detectors in code, for everything that patterns cannot match.

use crate::item::Item;

/// Defines the detectors: variant, and name in a rule.
macro_rules! detectors {
    ($($variant:ident = $name:literal,)*) => {
        /// Detector in code; docs/risk.md describes each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Detector {
            $($variant,)*
        }

        impl Detector {
            /// All detectors with their names.
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
    /// Returns the detector with a name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(detector, _)| *detector)
    }
}

/// Detectors that found something in an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Signals {
    bits: u64,
    /// `true` if a rule of the group `bait` fired.
    pub(super) bait: bool,
    /// `true` if a text of the item contains a link.
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

/// Inspects content that is not text.
pub(super) fn inspect_binary(item: &Item, signals: &mut Signals) {
    /// Windows, ELF, Mach-O in both byte orders and widths; Mach-O's `cafebabe` is also Java's.
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
    // A declared program counts even if its bytes are of an unknown kind.
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
