//! Fenced blocks of a document.

/// Opening of the mark above a block that is not run.
const NOT_RUN: &str = "<!-- not run:";

/// A fenced block, which may be indented as a part of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    /// Number of the line that opens it, from 1.
    pub(crate) line: usize,
    pub(crate) language: &'a str,
    /// Name of the file that the block is.
    pub(crate) file: Option<&'a str>,
    pub(crate) lines: Vec<&'a str>,
    /// Why the block is not run, from `<!-- not run: … -->` above it.
    pub(crate) not_run: Option<&'a str>,
}

impl Block<'_> {
    /// The text of the block, with a newline at its end.
    pub(crate) fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }
}

/// A document, cut into blocks and the lines outside of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Document<'a> {
    pub(crate) blocks: Vec<Block<'a>>,
    /// Lines outside of blocks with their numbers, from 1.
    pub(crate) prose: Vec<(usize, &'a str)>,
}

impl<'a> Document<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let mut document = Self::default();
        let mut open: Option<(usize, Block<'a>)> = None;
        let mut mark = None;
        for (number, line) in (1..).zip(text.lines()) {
            let start = line.trim_start();
            match &mut open {
                None => match start.strip_prefix("```") {
                    Some(info) => {
                        open = Some((line.len() - start.len(), opened(number, info.trim(), mark.take())));
                    }
                    None => {
                        if !start.is_empty() {
                            mark = reason(start);
                        }
                        document.prose.push((number, line));
                    }
                },
                Some(_) if start.trim_end() == "```" => {
                    document.blocks.extend(open.take().map(|(_, block)| block));
                }
                Some((indent, block)) => {
                    let spaces = line.len() - start.len();
                    block.lines.push(line.get(spaces.min(*indent)..).unwrap_or_default());
                }
            }
        }
        document.blocks.extend(open.map(|(_, block)| block));
        document
    }

    /// Blocks in a language, in order.
    pub(crate) fn in_language(&self, language: &str) -> impl Iterator<Item = &Block<'a>> {
        self.blocks.iter().filter(move |block| block.language == language)
    }
}

fn opened<'a>(line: usize, info: &'a str, not_run: Option<&'a str>) -> Block<'a> {
    let (language, file) = match info.split_once(' ') {
        Some((language, file)) => (language, Some(file.trim())),
        None => (info, None),
    };
    Block { line, language, file, lines: Vec::new(), not_run }
}

/// The reason that a mark gives.
fn reason(line: &str) -> Option<&str> {
    let reason = line.strip_prefix(NOT_RUN)?.trim_end().strip_suffix("-->")?.trim();
    (!reason.is_empty()).then_some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_language_file_and_reason() {
        let text = "a\n```toml a.toml\nx = 1\n\n  y = 2\n```\n\n- b\n\n  <!-- not run: needs root -->\n\n  ```console\n  $ one\n    two\n```\nc\n";
        let document = Document::parse(text);
        let toml = Block {
            line: 2,
            language: "toml",
            file: Some("a.toml"),
            lines: vec!["x = 1", "", "  y = 2"],
            not_run: None,
        };
        let console = Block {
            line: 12,
            language: "console",
            file: None,
            lines: vec!["$ one", "  two"],
            not_run: Some("needs root"),
        };
        assert_eq!(document.blocks, [toml, console]);
        let numbers: Vec<usize> = document.prose.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 7, 8, 9, 10, 11, 16]);
        assert_eq!(document.in_language("console").count(), 1);
    }

    #[test]
    fn a_reason_holds_for_the_next_block_only() {
        let text = "<!-- not run: why -->\n```console\n$ a\n```\n```console\n$ b\n```\n<!-- not run: -->\n```console\n$ c\n```\n";
        let reasons: Vec<_> = Document::parse(text).blocks.iter().map(|block| block.not_run).collect();
        assert_eq!(reasons, [Some("why"), None, None]);
    }
}
